"""
Text in, plain data out, with the line of every key.

YAML goes through `yaml.compose`, which knows lines; duplicate keys, foreign tags, alias bombs and absurd nesting
are refused before any value is built. JSON goes through the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import yaml

from hsplan.errors import InputError, Problem, shown

MAX_TEXT_BYTES = 8 * 2**20
MAX_DEPTH = 40
MAX_NODES = 200_000
NOT_DECIMAL = re.compile(r"[-+]?(?:[0-9][0-9_]*(?::[0-9][0-9_.]*)+|0[0-9_]+)")
EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]{1,2}")
UNVERIFIED = re.compile(r"^#\s*unverified:\s*(.+?)\s*$", re.MULTILINE)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data, where it came from, and `where(path)` -> `file:line: path` for a dotted key path."""

    data: dict[str, Any]
    origin: str
    where: Callable[[str], str]
    unverified: tuple[str, ...] = ()


@lru_cache(maxsize=4)
def parse_yaml(text: str, origin: str, remedy: str = "a spec is a mapping that starts with `model:`") -> Document:
    """
    Data of a YAML mapping; raises InputError with file and line, and `remedy` for anything but a mapping.

    A grid reads the same text thousands of times: the last few are kept, and nobody changes their data.
    """
    try:
        _limit_depth(text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(Problem(where=f"{origin}:{line}", what=f"not valid YAML: {error.problem}")) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(Problem(where=origin, what=f"not valid YAML: {shown(str(error))}")) from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(Problem(where=f"{origin}:1", what="not a mapping", remedy=remedy))
    lines: dict[str, int] = {}
    data = _Builder(origin, lines).mapping(node, "")

    def where(path: str) -> str:
        return f"{origin}:{_nearest_line(lines, path)}: {path}"

    return Document(data=data, origin=origin, where=where, unverified=tuple(UNVERIFIED.findall(text)))


def parse_json(text: str, origin: str) -> Document:
    """Data of a JSON object such as config.json; raises InputError with file and line."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(items)
        if len(data) < len(items):
            seen: set[str] = set()
            key = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise InputError(Problem(where=where(key), what="the key stands twice", remedy="keep one"))
        return data

    def where(path: str) -> str:
        match = re.search(rf'"{re.escape(path.rsplit(".", 1)[-1])}"\s*:', text)
        line = text.count("\n", 0, match.start()) + 1 if match else 1
        return f"{origin}:{line}: {path}"

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise InputError(Problem(where=f"{origin}:{error.lineno}", what=f"not valid JSON: {error.msg}")) from None
    except (RecursionError, ValueError) as error:
        raise InputError(Problem(where=origin, what=f"not valid JSON: {shown(str(error))}")) from None
    if not isinstance(data, dict):
        raise InputError(Problem(where=f"{origin}:1", what="not a JSON object"))
    return Document(data=data, origin=origin, where=where)


def _limit_depth(text: str) -> None:
    """Raise ValueError for nesting and sizes that no spec has: composing recurses, so this comes first."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _nearest_line(lines: dict[str, int], path: str) -> int:
    """The line of the key at `path`, or of the closest key above it."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path, 1)


class _Builder:
    """Plain data from composed nodes; fills `lines` with the line of every key path."""

    def __init__(self, origin: str, lines: dict[str, int]) -> None:
        self.origin = origin
        self.lines = lines
        self.nodes = self.depth = 0
        self.scalars = _LOADER("")

    def fail(self, node: yaml.Node, what: str, remedy: str = "") -> InputError:
        return InputError(Problem(where=f"{self.origin}:{node.start_mark.line + 1}", what=what, remedy=remedy))

    def value(self, node: yaml.Node, path: str) -> Any:
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise self.fail(node, f"more than {MAX_NODES:,} values once the aliases are written out")
        if self.depth > MAX_DEPTH:
            raise self.fail(node, "an alias holds itself, or aliases nest too deep")
        if isinstance(node, yaml.MappingNode):
            found: Any = self.mapping(node, path)
        elif isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            found = [self.value(child, path) for child in node.value]
        else:
            found = self.scalar(node)
        self.depth -= 1
        return found

    def scalar(self, node: yaml.Node) -> Any:
        if node.tag not in _SCALARS:
            kind = node.tag.rsplit(":", 1)[-1]
            raise self.fail(node, f"a value of type {shown(kind)}", "quote it if a text is meant")
        if NOT_DECIMAL.fullmatch(node.value):
            return node.value  # YAML 1.1 reads 1:30 in base 60 and 010 in base 8; nobody means that here
        if isinstance(node, yaml.ScalarNode) and not node.style and EXPONENT.fullmatch(node.value):
            return float(node.value)  # a text in YAML 1.1, a number in JSON, YAML 1.2 and for its writer
        try:
            return self.scalars.construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise self.fail(node, f"not a readable number: {shown(node.value)}") from None

    def mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            raise self.fail(node, f"the tag {shown(node.tag)} is not used in specs")
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                raise self.fail(key_node, f"a key must be a text, not {shown(key_node.value)}", "quote it")
            key = key_node.value
            key_path = f"{path}.{key}" if path else key
            if key in data:
                first = self.lines[key_path]
                raise self.fail(key_node, f"{shown(key_path)} stands twice, first in line {first}", "keep one")
            self.lines[key_path] = key_node.start_mark.line + 1
            data[key] = self.value(value_node, key_path)
        return data
