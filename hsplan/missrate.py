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


class Calls(msgspec.Struct, frozen=True):
    """
    Calls that read `steps` successive steps at once, as with drafts, in shares of the ids of one step.

    `ids`: different ids that a call reads, for each of `contexts`; `misses`: those of them that miss, also for each of
    `slots`.
    """

    steps: int
    ids: tuple[float, ...]
    misses: tuple[tuple[float, ...], ...]


class MissRates(msgspec.Struct, frozen=True):
    """
    Curves of one workload profile for steps of `top_k` ids: `calls` of 1, 2, … steps, over `slots` and `contexts`.

    `steps` were counted; `command` made them.
    """

    profile: str
    command: str
    steps: int
    top_k: int
    slots: tuple[int, ...]
    contexts: tuple[int, ...]
    calls: tuple[Calls, ...]

    def of(self, steps: int) -> Calls | None:
        """The calls that read so many steps; None beyond the curves."""
        return next((call for call in self.calls if call.steps == steps), None)


@cache
def rate_profiles() -> tuple[str, ...]:
    """Names of the workload profiles that have curves."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in DATA.glob(f"{PREFIX}*.json")))


@cache
def miss_rates(profile: str) -> MissRates:
    """The curves of a profile; raises FileNotFoundError for one without."""
    return msgspec.json.decode((DATA / f"{PREFIX}{profile}.json").read_bytes(), type=MissRates)


def miss_share(profile: str, *, top_k: int, slots: int, context: int, steps: int = 1) -> float | None:
    """
    Misses of a call over `top_k`, in a hot buffer of `slots`, for a request of `context` tokens.

    A call reads `steps` steps at once, with drafts more than one: then the share may exceed 1. None where the curves
    have no calls of so many. Straight lines over the logarithms of slots and context; beyond the curves their ends
    hold. Curves are of top-k 2,048: for another, slots and context count in multiples of it. A request that fits
    misses nothing.
    """
    rates = miss_rates(profile)
    call = rates.of(steps)
    if call is None:
        return None
    if context <= slots:
        return 0.0
    scale = rates.top_k / top_k
    by_context = [_between(rates.slots, shares, slots * scale) for shares in call.misses]
    return _between(rates.contexts, by_context, context * scale)


def most_steps(profile: str) -> int:
    """The most steps a call that the curves of a profile have."""
    return max(call.steps for call in miss_rates(profile).calls)


def ids_read(profile: str, *, top_k: int, context: int, steps: int) -> int | None:
    """Different ids that a call of `steps` steps reads, as `miss_share` looks its misses up."""
    rates = miss_rates(profile)
    call = rates.of(steps)
    return None if call is None else round(top_k * _between(rates.contexts, call.ids, context * rates.top_k / top_k))


def _between(places: Sequence[int], values: Sequence[float], place: float) -> float:
    if place <= places[0]:
        return values[0]
    if place >= places[-1]:
        return values[-1]
    at = bisect.bisect_right(places, place)
    share = math.log(place / places[at - 1]) / math.log(places[at] / places[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])
