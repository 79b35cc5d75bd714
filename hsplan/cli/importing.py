"""A model's config.json in, the text of a spec out, read back and compared before anyone sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from hsplan.errors import InputError, Problem, printable
from hsplan.families import Model, read_model
from hsplan.hardware import gpu_named
from hsplan.spec import Loaded, load_spec
from hsplan.spec.document import parse_yaml
from hsplan.spec.source import find

WIDTH = 100


def imported(path: Path, *, gpu: str, tp: int) -> str:
    """
    The YAML spec of the model at `path` on `tp` cards `gpu`.

    Fields that no rule reads and that are not known to be harmless are left out: a spec takes only known ones.
    Raises InputError when `path` is no config.json or folder with one, or the GPU is not known.
    """
    card = gpu_named(gpu, "--gpu").name
    source = find(path)
    if not source.is_config:
        raise InputError(Problem(where=str(path), what="is a spec already", remedy="give a config.json"))
    original = read_model(load_spec(path, {"gpu": card, "tp": tp}))
    name = (source.folder or path).resolve().name.lower()
    text = _text(name, _without(source.document.data, original.ignored_fields), original, card, tp)
    _check(text, original, path)
    return text


def _without(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """`fields` less `names`, which stand at the top or in a nested text_config."""
    kept = {key: value for key, value in fields.items() if key not in names}
    if isinstance(kept.get("text_config"), dict):
        kept["text_config"] = _without(kept["text_config"], names)
    return kept


def _text(name: str, fields: dict[str, Any], model: Model, gpu: str, tp: int) -> str:
    left_out = [f"# Left out, no rule of hsplan reads it: {printable(field)}" for field in model.ignored_fields]
    body = _yaml({"name": name, "model": fields, "deployment": {"engine": "sglang", "gpu": gpu, "tp": tp}})
    body = body.replace("\ndeployment:\n", "\n# Any key of `hsplan estimate --help` may stand here.\ndeployment:\n")
    return "\n".join([f"# {model.architecture}. Source: config.json, fields as they are.", *left_out, body])


def _yaml(data: dict[str, Any]) -> str:
    """Block style; lists and mappings of plain values on one line."""
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=WIDTH, allow_unicode=True)
    deployment = yaml.safe_dump({"deployment": data["deployment"]}, sort_keys=False, default_flow_style=False)
    return text[: text.rindex("\ndeployment:") + 1] + deployment


def _check(text: str, original: Model, path: Path) -> None:
    """The spec must read back as the same model; anything else is a bug; a text that YAML has not is an InputError."""
    try:
        loaded: Loaded = load_spec(parse_yaml(text, "imported spec").data, {})
    except InputError:
        what, remedy = "a text in it cannot be written as YAML", "look for unpaired surrogates such as \\ud800"
        raise InputError(Problem(where=str(path), what=what, remedy=remedy)) from None
    same = repr(msgspec.structs.replace(read_model(loaded), **_not_compared(original)))
    assert same == repr(msgspec.structs.replace(original, **_not_compared(original))), "reads back differently"  # noqa: S101


def _not_compared(original: Model) -> dict[str, Any]:
    """Ignored fields are left out of the spec, and an inventory is made of the fields that are compared."""
    return {"ignored_fields": original.ignored_fields, "inventory": None}
