"""
Which layers compute top-k: the four ways a config says it, in the order in which a release reads them.

Sources: `dsa_layer_skips_topk` of SGLang 0.5.17 to 0.5.23; PRs #21405 (pattern, freq), #27114 (offset), #30275
(cli_factor), #30531 (cli_factor before the pattern).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hsplan.errors import InputError, Problem

Owners = tuple[bool, ...]
NO_OWNER = "layer 0 would share the top-k of a layer before it, and there is none"


def owners_by_schedule(fields: Mapping[str, Any], num_layers: int, precedence: tuple[str, ...]) -> Owners:
    """
    One flag a layer, True where it computes its own top-k.

    `fields` are the schedule fields of config.json (absent or None: not said); `precedence` names the rules that
    the release reads, the first one present wins. Raises InputError for values that the engine asserts against
    and when layer 0 would skip.
    """
    for rule in precedence:
        owners = RULES[rule](fields, num_layers)
        if owners is not None:
            break
    else:
        owners = (True,) * num_layers
    if not owners[0]:
        remedy = f"make layer 0 full in `{rule}`"
        raise InputError(Problem(where=f"model.{rule}", what=NO_OWNER, remedy=remedy))
    return owners


def _by_types(fields: Mapping[str, Any], num_layers: int) -> Owners | None:
    types = fields.get("indexer_types")
    if types is None:
        return None
    listed = tuple(kind != "shared" for kind in types[:num_layers])
    return listed + (True,) * (num_layers - len(listed))


def _by_cli_factor(fields: Mapping[str, Any], num_layers: int) -> Owners | None:
    factor = fields.get("cli_factor")
    if factor is None:
        return None
    _positive("cli_factor", factor)
    return None if factor == 1 else tuple(i % factor == 0 for i in range(num_layers))


def _by_pattern(fields: Mapping[str, Any], num_layers: int) -> Owners | None:
    pattern = fields.get("index_topk_pattern")
    if pattern is None:
        return None
    listed = tuple(letter != "S" for letter in pattern[:num_layers])
    return listed + (True,) * (num_layers - len(listed))


def _by_freq(fields: Mapping[str, Any], num_layers: int) -> Owners | None:
    return _every(fields, num_layers, fields.get("index_skip_topk_offset"))


def _by_freq_without_offset(fields: Mapping[str, Any], num_layers: int) -> Owners | None:
    return _every(fields, num_layers, None)


def _every(fields: Mapping[str, Any], num_layers: int, offset: int | None) -> Owners | None:
    freq = fields.get("index_topk_freq")
    if freq is None:
        return None
    _positive("index_topk_freq", freq)
    if offset is not None:
        _positive("index_skip_topk_offset", offset)
    # Without an offset the engines count from layer 1, which equals offset 2.
    start = 1 if offset is None else offset - 1
    return tuple(max(i - start, 0) % freq == 0 for i in range(num_layers))


def _positive(name: str, value: int) -> None:
    if value <= 0:
        problem = Problem(
            where=f"model.{name}", what=f"{name} is {value}", remedy="the engine asserts that it is positive"
        )
        raise InputError(problem)


RULES: dict[str, Callable[[Mapping[str, Any], int], Owners | None]] = {
    "indexer_types": _by_types,
    "cli_factor": _by_cli_factor,
    "index_topk_pattern": _by_pattern,
    "index_topk_freq": _by_freq,
    "index_topk_freq without offset": _by_freq_without_offset,
}
