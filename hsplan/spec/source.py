"""
Finding a spec: a shipped name, a YAML file, a config.json, or a folder with one. No network.

A config.json is read raw, never through a library that might drop or default its fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hsplan.errors import InputError, Problem, nearest, shown
from hsplan.files import reason_of
from hsplan.spec.document import MAX_TEXT_BYTES, Document, parse_json, parse_yaml

MAPPING = "spec"
QUANT_FILE = "hf_quant_config.json"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """
    A document and what kind it is.

    `is_config`: a model's own config.json, where unknown harmless fields are only noted.
    `folder`: the model folder it lies in, where safetensors may be.
    """

    document: Document
    is_config: bool = False
    folder: Path | None = None

    @property
    def title(self) -> str:
        """Name of the file, or of the folder around a config.json; empty for a mapping."""
        if self.folder is not None:
            return self.folder.resolve().name
        return Path(self.document.origin).stem if self.document.origin != MAPPING else ""


def shipped_folder() -> Path:
    """The folder of the shipped specs: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "model_specs"
    return inside if inside.is_dir() else package.parent / "model_specs"


def shipped_names() -> list[str]:
    """Names of the shipped specs, sorted."""
    return sorted(path.stem for path in shipped_folder().glob("*.yaml"))


def from_mapping(data: Mapping[str, Any]) -> Source:
    """A spec given as a mapping; it is copied only where it changes later."""
    return Source(document=Document(data=dict(data), origin=MAPPING, where=lambda path: path or "spec"))


def find(text: str | os.PathLike[str]) -> Source:
    """The source that `text` names. Raises InputError when there is none or it cannot be read."""
    try:
        name = os.fspath(text)
        if isinstance(name, bytes):
            raise TypeError
    except TypeError:
        what = f"a spec is a path, the name of a shipped spec or a mapping, not {type(text).__name__}"
        raise InputError(Problem(what=what, remedy='as plan("glm-5.2-fp8")')) from None
    if not name:
        remedy = "give a file, a model folder or a shipped spec (hsplan specs list)"
        raise InputError(Problem(what="the name of the spec is empty", remedy=remedy))
    try:
        if os.sep not in name and (shipped := shipped_folder() / f"{name}.yaml").is_file():
            return Source(document=parse_yaml(_read(shipped), shipped.name))
        path = Path(name).expanduser()
        if path.is_dir():
            return _folder(path)
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(Problem(where=shown(name), what=f"cannot be read: {reason_of(error)}")) from None
    if not exists:
        remedy = f"give a file, a model folder or a shipped spec; {nearest(name, shipped_names())}"
        raise InputError(Problem(what=f"no spec {shown(name)!r}", remedy=remedy))
    if path.suffix.lower() == ".json":
        return Source(document=_config(path), is_config=True, folder=path.parent)
    return Source(document=parse_yaml(_read(path), str(path)))


def _folder(path: Path) -> Source:
    config = path / "config.json"
    if not config.exists():
        remedy = "give a model folder with config.json, or a spec file"
        raise InputError(Problem(where=str(path), what="the folder has no config.json", remedy=remedy))
    return Source(document=_config(config), is_config=True, folder=path)


def _config(path: Path) -> Document:
    """config.json, with the quantisation of an hf_quant_config.json beside it (older ModelOpt exports)."""
    document = parse_json(_read(path), str(path))
    beside = path.with_name(QUANT_FILE)
    if path.name != "config.json" or "quantization_config" in document.data or not beside.exists():
        return document
    quantization = parse_json(_read(beside), str(beside)).data.get("quantization")
    if not isinstance(quantization, dict):
        raise InputError(Problem(where=str(beside), what="has no `quantization` object"))
    data = {**document.data, "quantization_config": {"quant_method": "modelopt", **quantization}}
    return msgspec.structs.replace(document, data=data)


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError(Problem(where=str(path), what="is not a regular file"))
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            what = f"is larger than {MAX_TEXT_BYTES // 2**20} MiB; no spec is"
            raise InputError(Problem(where=str(path), what=what))
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        raise InputError(Problem(where=str(path), what=what, remedy="save the file as UTF-8")) from None
    except (OSError, ValueError) as error:
        raise InputError(Problem(where=str(path), what=f"cannot be read: {reason_of(error)}")) from None
