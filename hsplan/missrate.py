"""How often hot buffers miss: stored curves of simulated workloads, looked up and never simulated."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

DATA = Path(__file__).with_name("data")
PREFIX = "missrate-"
DEFAULT_PROFILE = "glm-5.1-longbench"


class MissRates(msgspec.Struct, frozen=True):
    """
    Curves of one workload profile: `misses` holds for each of `contexts` the share of the `top_k` ids of a step that
    miss, for each of `slots`. `steps` were counted; `command` made them.
    """

    profile: str
    command: str
    steps: int
    top_k: int
    slots: tuple[int, ...]
    contexts: tuple[int, ...]
    misses: tuple[tuple[float, ...], ...]


@cache
def rate_profiles() -> tuple[str, ...]:
    """Names of the workload profiles that have curves."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in DATA.glob(f"{PREFIX}*.json")))


@cache
def miss_rates(profile: str) -> MissRates:
    """The curves of a profile; raises FileNotFoundError for one without."""
    return msgspec.json.decode((DATA / f"{PREFIX}{profile}.json").read_bytes(), type=MissRates)


def miss_share(profile: str, *, top_k: int, slots: int, context: int) -> float:
    """
    The share of a step's `top_k` ids that miss in a hot buffer of `slots`, for a request of `context` tokens.

    Straight lines over the logarithms of slots and context; beyond the curves their ends hold. Curves are of top-k
    2,048: for another, slots and context count in multiples of it. A request that fits misses nothing.
    """
    if context <= slots:
        return 0.0
    rates = miss_rates(profile)
    scale = rates.top_k / top_k
    by_context = [_between(rates.slots, shares, slots * scale) for shares in rates.misses]
    return _between(rates.contexts, by_context, context * scale)


def _between(places: Sequence[int], values: Sequence[float], place: float) -> float:
    if place <= places[0]:
        return values[0]
    if place >= places[-1]:
        return values[-1]
    at = bisect.bisect_right(places, place)
    share = math.log(place / places[at - 1]) / math.log(places[at] / places[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])
