"""
Options on the command line to the overrides of one plan or of many.

A repeated option makes a grid: every combination of the values is one plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from hsplan.cli.options import is_switch, is_text
from hsplan.errors import InputError, Problem, shown
from hsplan.spec.document import EXPONENT, NOT_DECIMAL

MAX_COMBINATIONS = 10_000
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))
_LOADER = yaml.SafeLoader("")

Overrides = dict[str, Any]


def grid_of(options: Mapping[str, Any]) -> tuple[list[Overrides], list[str]]:
    """
    The overrides of every combination, and the keys that vary.

    `options` are those of `spec_options`: the values of each leaf, and `offload` for offload with its defaults.
    Raises InputError for more than 10,000 combinations.
    """
    launched: Overrides = {"offload": {}} if options["offload"] else {}
    given = {leaf: _values(leaf, values) for leaf, values in options.items() if leaf != "offload" and values}
    count = math.prod(map(len, given.values()))
    if count > MAX_COMBINATIONS:
        remedy = f"repeat fewer options: at most {MAX_COMBINATIONS:,}"
        raise InputError(Problem(what=f"the options make {count:,} combinations", remedy=remedy))
    combinations = [
        {**launched, **dict(zip(given, values, strict=True))} for values in itertools.product(*given.values())
    ]
    return combinations, [leaf for leaf, values in given.items() if len(values) > 1]


def scalar(text: str) -> Any:
    """The value that YAML reads for `text`: a number, null, or the text; `[0,15]` and `{a: 1}` hold such."""
    if text.startswith("{") and text.endswith("}"):
        pairs = [part.partition(":") for part in text[1:-1].split(",") if part.strip()]
        found = {key.strip(): _plain(value.strip()) for key, _, value in pairs}
        if len(found) < len(pairs):
            raise InputError(Problem(where=shown(text), what="a key stands twice", remedy="keep one"))
        return found
    if text.startswith("[") and text.endswith("]"):
        return [_plain(part.strip()) for part in text[1:-1].split(",")]
    return _plain(text)


def _plain(text: str) -> Any:
    if NOT_DECIMAL.fullmatch(text):
        return text
    if EXPONENT.fullmatch(text):
        return float(text)
    tag = _LOADER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _SCALARS:
        return text
    try:
        return _LOADER.construct_object(yaml.ScalarNode(tag, text))
    except (ValueError, yaml.YAMLError):
        return text


def _values(leaf: str, values: Sequence[Any]) -> list[Any]:
    """Each value once, in the order given."""
    distinct = list(dict.fromkeys(values))
    return distinct if is_switch(leaf) or is_text(leaf) else [scalar(text) for text in distinct]
