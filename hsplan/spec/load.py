"""
From a source and overrides to a checked `Spec`.

The common case is one conversion. Only when it fails is the data walked key by key, so that a user sees
every problem at once with its line and what would be right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from hsplan.errors import InputError, Problem, nearest, shown
from hsplan.hardware import GPUS
from hsplan.missrate import rate_profiles
from hsplan.spec import source as sources
from hsplan.spec.schema import MIN_BYTES, SECTIONS, SIZE_KEYS, Offload, Spec, leaf_sections
from hsplan.steptime import step_profiles
from hsplan.units import MAX_BYTES, parse_bytes

LEAVES = leaf_sections()
ROOT_KEYS = Spec.__struct_fields__
KEYWORDS = ("auto", "here")
LEAST_STEP_MS = 0.001  # of one request; less would make rates that are no numbers
PATH_KEYS = (("weights", "path"), ("deployment", "link_curve"))


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """
    A spec with what errors and the weight reader need to know of its origin.

    `where(path)` is the printable place of a key; `is_config` says that `model` is a model's own config.json;
    `folder` is the model folder; `unverified` what the shipped spec says was not checked against an original;
    `title` names the spec for a reader: its name, else the file or folder it came from, else empty.
    """

    spec: Spec
    where: Callable[[str], str]
    is_config: bool
    folder: Path | None
    unverified: tuple[str, ...]
    title: str


def load_spec(spec: str | os.PathLike[str] | Mapping[str, Any], overrides: Mapping[str, Any]) -> Loaded:
    """
    Read `spec` (path, shipped name or mapping), lay `overrides` (leaf keys or whole sections) over it, check it.

    Raises InputError with at most ten problems, each with file, line, key and remedy.
    """
    try:
        overrides = {key: plain(value) for key, value in overrides.items()}
        source = sources.from_mapping(plain(spec)) if isinstance(spec, Mapping) else sources.find(spec)
    except RecursionError:
        raise InputError(Problem(what="the spec is nested too deeply", remedy="no spec is")) from None
    document = source.document
    data = {"model": document.data, "deployment": {}} if source.is_config else document.data
    base = Path(document.origin).parent if not isinstance(spec, Mapping) else Path()
    model_source = source
    named = overrides.get("model", data.get("model"))
    if isinstance(named, str):
        model_source = _model_source(named, Path() if "model" in overrides else base, document.where)
        data = {**data, "model": _model_of(model_source)}
        overrides = {key: value for key, value in overrides.items() if key != "model"}
    data = _split_engine(data)
    if overrides:
        data = _merge(data, overrides)
    where = _where(source, model_source, overrides)
    checked = _resolve_paths(_convert(data, where), base)
    return Loaded(
        spec=checked,
        title=checked.name or source.title,
        where=where,
        is_config=model_source.is_config,
        folder=model_source.folder,
        unverified=model_source.document.unverified,
    )


def plain(value: Any) -> Any:
    """Mappings and sequences of any kind as dicts and lists, scalars of arrays as Python's; all else as it is."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    item = getattr(value, "item", None)
    if callable(item):
        try:
            return item()
        except (TypeError, ValueError, RuntimeError):  # an array of several
            return value
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


def changed(loaded: Loaded, values: Mapping[str, Any]) -> Loaded:
    """The same with other values of leaf keys or whole sections, which must be valid; only offload may be absent."""
    spec = loaded.spec
    for key, value in values.items():
        if key in SECTIONS:
            spec = msgspec.structs.replace(spec, **{key: value})
            continue
        section = LEAVES[key]
        old = getattr(spec, section) or Offload()
        spec = msgspec.structs.replace(spec, **{section: msgspec.structs.replace(old, **{key: value})})
    return msgspec.structs.replace(loaded, spec=spec)


def _where(source: sources.Source, model: sources.Source, overrides: Mapping[str, Any]) -> Callable[[str], str]:
    """Places of keys: options by their flag, model fields in the file they came from."""

    def where(path: str) -> str:
        leaf = path.rsplit(".", 1)[-1]
        if path == "deployment.release" and _names_release(overrides):
            leaf, path = "engine", "deployment.engine"
        if leaf in overrides and LEAVES.get(leaf) == path.rpartition(".")[0]:
            return "--" + leaf.replace("_", "-")
        if path.startswith("model.") and model.is_config:
            return model.document.where(path.removeprefix("model."))
        return (model if path.startswith("model.") else source).document.where(path)

    return where


def _model_source(name: str, base: Path, where: Callable[[str], str]) -> sources.Source:
    try:
        beside = base / Path(name).expanduser()
        return sources.find(beside if os.sep in name or beside.exists() else name)
    except InputError as error:
        problems = [msgspec.structs.replace(p, where=p.where or where("model")) for p in error.problems]
        raise InputError(problems) from None
    except (OSError, ValueError, RuntimeError):
        raise InputError(Problem(where=where("model"), what=f"no model {shown(name)!r}")) from None


def _model_of(source: sources.Source) -> Any:
    if source.is_config:
        return source.document.data
    model = source.document.data.get("model")
    if not isinstance(model, dict):
        what = "names a spec whose own `model` is no mapping of config.json fields"
        raise InputError(Problem(where=source.document.where("model"), what=what))
    return model


def _merge(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the overrides laid over it: a leaf goes into its section, a section is merged by key."""
    merged = dict(data)
    weights: dict[str, Any] = {}
    for key, value in _with_release(overrides).items():
        section = LEAVES.get(key)
        laid = value
        if section == "weights":
            weights[key] = value
            laid = weights
        elif section is not None:
            laid = {key: value}
        elif key in ROOT_KEYS:
            section = key
        else:
            known = [*LEAVES, *ROOT_KEYS]
            raise InputError(Problem(what=f"unknown option {shown(key)!r}", remedy=nearest(key, known)))
        old = merged.get(section)
        if section in SECTIONS and old not in (None, "auto") and not isinstance(old, Mapping):
            continue  # what is written there is wrong, and reported as such
        if isinstance(old, Mapping) and isinstance(laid, Mapping) and section not in ("weights", "model"):
            laid = {**old, **laid}
        merged[section] = laid
    return merged


def _split_engine(data: dict[str, Any]) -> dict[str, Any]:
    """`engine: sglang@0.5.17` as engine and release."""
    deployment = data.get("deployment")
    if not isinstance(deployment, Mapping) or not _names_release(deployment):
        return data
    return {**data, "deployment": _with_release(deployment)}


def _with_release(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """`engine: sglang@0.5.17` as engine and release."""
    if not _names_release(keys):
        return keys
    engine, _, release = keys["engine"].partition("@")
    if keys.get("release", release) != release:
        what = f"two releases: {shown(release)} with the engine, and {shown(keys['release'])}"
        raise InputError(Problem(where="deployment.release", what=what, remedy="give one of them"))
    return {**keys, "engine": engine, "release": release}


def _names_release(keys: Mapping[str, Any]) -> bool:
    engine = keys.get("engine")
    return isinstance(engine, str) and "@" in engine


def _convert(data: dict[str, Any], where: Callable[[str], str]) -> Spec:
    try:
        spec = msgspec.convert(_parse_sizes(data), Spec)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        problems = list(_problems(data, where))
        raise InputError(problems or Problem(where=where(""), what="not a valid spec")) from None
    problems = list(_relations(spec, where))
    if problems:
        raise InputError(problems)
    return spec


def _parse_sizes(data: dict[str, Any]) -> dict[str, Any]:
    """Sizes such as "134.127GiB" as ints; raises ValueError where one cannot be read."""
    for section, keys in SIZE_KEYS.items():
        values = data.get(section)
        if isinstance(values, Mapping):
            for key in keys:
                value = values.get(key)
                if isinstance(value, str) and value not in KEYWORDS:
                    values = {**values, key: parse_bytes(value)}
                    data = {**data, section: values}
    return data


def _resolve_paths(spec: Spec, base: Path) -> Spec:
    """Relative `weights.path` and `deployment.link_curve` are meant from the folder of the spec file."""
    for section, key in PATH_KEYS:
        values = getattr(spec, section)
        path = None if values == "auto" else getattr(values, key)
        if path is not None:
            values = msgspec.structs.replace(values, **{key: _resolved(path, base, f"{section}.{key}")})
            spec = msgspec.structs.replace(spec, **{section: values})
    return spec


def _resolved(path: str, base: Path, where: str) -> str:
    try:
        return str(base / Path(path).expanduser())
    except RuntimeError:
        what = f"no home folder for {shown(path)!r}"
        raise InputError(Problem(where=where, what=what, remedy="write the whole path")) from None


def _problems(data: Mapping[str, Any], where: Callable[[str], str]) -> Iterator[Problem]:
    """Everything that is wrong with the keys of `data`, one problem each."""
    for key in data:
        if key not in ROOT_KEYS:
            yield _unknown(key, "", ROOT_KEYS, where)
    if not isinstance(data.get("model"), dict):
        remedy = "`model` holds config.json fields, a shipped name or a path"
        yield Problem(where=where("model"), what="`model` is missing or no mapping", remedy=remedy)
    if not isinstance(data.get("name"), str | None):
        yield Problem(where=where("name"), what="`name` is no text", remedy="quote it")
    for section, struct in SECTIONS.items():
        values = data.get(section)
        if isinstance(values, Mapping):
            yield from _section_problems(section, struct, values, where)
        elif section == "deployment":
            yield Problem(where=where(section), what="`deployment` is missing or no mapping", remedy="name a GPU there")
        elif (
            section in data
            and not (section == "weights" and values == "auto")
            and (section != "offload" or values is not None)
        ):
            yield Problem(
                where=where(section), what=f"`{section}` is no mapping", remedy=f"write keys under `{section}:`"
            )


def _section_problems(
    section: str, struct: type[msgspec.Struct], values: Mapping[str, Any], where: Callable[[str], str]
) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for key, value in values.items():
        path = f"{section}.{key}"
        field = fields.get(key)
        if field is None:
            yield _unknown(key, section, tuple(fields), where)
            continue
        try:
            is_size = key in SIZE_KEYS.get(section, ()) and isinstance(value, str) and value not in KEYWORDS
            msgspec.convert(parse_bytes(value) if is_size else value, field.type)
        except (msgspec.ValidationError, OverflowError, RecursionError):
            yield Problem(
                where=where(path),
                what=f"{_quoted(value)} is not valid",
                remedy=_remedy(section, key, value, field.type),
            )
        except ValueError as error:
            yield Problem(where=where(path), what=f"{_quoted(value)} is not a size", remedy=str(error))
    for key, field in fields.items():
        if field.required and key not in values:
            remedy = f"give --{key.replace('_', '-')}, or write it in a spec; known: {', '.join(GPUS)}"
            yield Problem(where=where(section), what=f"`{section}.{key}` is missing", remedy=remedy)


def _remedy(section: str, key: str, value: Any, kind: Any) -> str:
    """What would be right in place of a wrong value, near to what was meant when that shows."""
    if key in SIZE_KEYS.get(section, ()) and not isinstance(value, bool) and isinstance(value, int) and value > 0:
        return 'a number alone is bytes: give a size such as "134.127GiB" or "2TiB"'
    if isinstance(value, str):
        thousands = re.fullmatch(r"(\d{1,9})([kKmM])", value)
        if thousands:
            return f"write {int(thousands[1]) * (1024 if thousands[2] in 'kK' else 1024**2)}"
        words = _literals(kind)
        if words and (hint := nearest(value, words)).startswith("did you mean"):
            return hint
    return f"give {expected(kind)}"


def _literals(kind: Any) -> list[str]:
    """The words that a type takes."""
    info = inspect.type_info(kind)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return [str(v) for part in parts if isinstance(part, inspect.LiteralType) for v in part.values if v != "auto"]


def _quoted(value: Any) -> str:
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


def _unknown(key: object, section: str, known: tuple[str, ...], where: Callable[[str], str]) -> Problem:
    path = f"{section}.{shown(key)}" if section else shown(key)
    home = LEAVES.get(key) if isinstance(key, str) else None
    remedy = f"it belongs under `{home}:`" if home and home != section else nearest(key, known)
    return Problem(where=where(path), what=f"unknown key {shown(key)!r}", remedy=remedy)


def expected(kind: Any) -> str:
    """The type of a key in words."""
    info = inspect.type_info(kind)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return " or ".join(filter(None, map(_words, parts)))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(extra_json_schema={"description": text}):
            return str(text)
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values))
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a text"
        case inspect.IntType(ge=low, le=high) if (low, high) == (MIN_BYTES, MAX_BYTES):
            return 'bytes, from 1 MiB on, or a size such as "30GiB"'
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high:,}" if high is not None else "a whole number"
        case inspect.FloatType(gt=above, lt=below, ge=low, le=high):
            least = f"above {above}" if above is not None else f"from {low}"
            most = f"and below {below:,}" if below is not None else f"to {high:,.0f}"
            return f"a number {least} {most}"
        case inspect.ListType():
            return "the first layer and the end, such as [0, 15]"
        case inspect.StructType(fields=fields):
            return "a mapping of " + ", ".join(field.name for field in fields)
        case _:
            return ""


def _of_no_profile(key: str, name: str, known: tuple[str, ...]) -> str:
    """What is right in place of a name that no stored curve or step has."""
    if key == "step_ms" and ":" in name:
        return f'put braces round it: "{{{shown(name)}}}"'
    if key == "profile" and (os.sep in name or name.endswith((".yaml", ".yml"))):
        return "plans look up stored curves only; `hsplan simulate --profile` takes profiles of your own"
    return nearest(name, known)


def _relations(spec: Spec, where: Callable[[str], str]) -> Iterator[Problem]:
    """Checks that need more than one key, or data."""
    for key, name, known in (
        ("profile", spec.workload.profile, rate_profiles()),
        ("step_ms", spec.workload.step_ms, step_profiles()),
    ):
        if isinstance(name, str) and name not in known:
            what = f"unknown {'step ' * (key == 'step_ms')}profile {shown(name)!r}"
            yield Problem(where=where(f"workload.{key}"), what=what, remedy=_of_no_profile(key, name, known))
    unknown = isinstance(spec.workload.step_ms, str) and spec.workload.step_ms not in step_profiles()
    step = None if unknown else spec.workload.step
    if step is not None and step.at(1, spec.workload.context) < LEAST_STEP_MS:
        remedy = f"give at least {LEAST_STEP_MS} for fixed or per_request"
        yield Problem(where=where("workload.step_ms"), what="a step of no time at all", remedy=remedy)
    weights = spec.weights
    if weights != "auto" and sum(getattr(weights, key) is not None for key in weights.__struct_fields__) != 1:
        remedy = "give exactly one of checkpoint, bytes_per_rank, path"
        yield Problem(where=where("weights"), what="`weights` is ambiguous or empty", remedy=remedy)
    span = spec.deployment.layer_range
    if span is not None and span[0] >= span[1]:
        remedy = "write [first, end) with first < end"
        yield Problem(where=where("deployment.layer_range"), what=f"{span} holds no layer", remedy=remedy)
    if span is not None and spec.deployment.pp > 1:
        remedy = "give layer_range for one stage, or pp for all of them"
        yield Problem(where=where("deployment.layer_range"), what="layer_range and pp together", remedy=remedy)
