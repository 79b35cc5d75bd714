"""Misses of a workload by hot-buffer size: exact for the kernel's order at every size, and for other policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hsplan.workload.layers import Layers
from hsplan.workload.policies import POLICIES
from hsplan.workload.split import BestSplit
from hsplan.workload.stack import MissCurve, StackDistances

Ids = npt.NDArray[np.int32]
PAGE = 64
MOST_SLOTS = 2**15  # what the kernels count slots with


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Misses of the layers of one trace, as shares of the ids that they read; one entry a size in each list."""

    layers: tuple[int, ...]
    count: int
    lru: tuple[float, ...]
    policies: dict[str, tuple[float, ...]]


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """
    Sizes, one a group, with which all layers miss least in the memory of equal ones: a what-if, no engine has it.

    `lru` is the mean of their misses.
    """

    slots: tuple[int, ...]
    lru: float


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """
    Misses as shares of the ids read, the mean over `layers`; `slots` and each list of a policy have one entry a size.

    `highest_token` is the largest id, `most_ids` and `mean_ids` are those of a call, `calls` were counted after
    `warm_up` others. `lru` is the kernel's order: call of last use, then token id. `groups` has the layers of each
    trace; `split` is empty when there is one group only, or a size that kernels do not count to.
    """

    highest_token: int
    most_ids: int
    mean_ids: float
    calls: int
    warm_up: int
    layers: int
    slots: tuple[int, ...]
    lru: tuple[float, ...]
    policies: dict[str, tuple[float, ...]]
    groups: tuple[Group, ...]
    split: tuple[Split, ...]


class _Counted(msgspec.Struct, frozen=True):
    """Misses of one trace: `missed` by policy and size, of all calls that count; `curve` has the kernel's."""

    layers: Layers
    curve: MissCurve
    missed: dict[str, list[int]]


def simulate(
    traces: Sequence[Sequence[Ids]],
    layers: Sequence[Layers],
    slots: Sequence[int],
    *,
    warm_up: int,
    policies: Sequence[str],
    report: Callable[[int, int], None],
) -> Simulated:
    """
    Misses of `traces`, one for each of `layers`: what every call reads, sorted and distinct, as many calls in each.

    The first `warm_up` calls, fewer than there are, fill the buffer. `slots` hold at least the ids of a call each.
    `report(done, total)` is called after each trace and policy.
    """
    context = 1 + max(int(call[-1]) for trace in traces for call in trace if call.size)
    most_ids = max(call.size for trace in traces for call in trace)
    total = len(traces) * (1 + len(policies) * len(slots))
    ticks = itertools.count(1)

    def count(trace: Sequence[Ids], group: Layers) -> _Counted:
        curve = _curve(trace, warm_up, context, most_ids, max(*slots, MOST_SLOTS))
        missed = {"lru": [curve.misses(size) for size in slots]}
        report(next(ticks), total)
        for name in policies:
            missed[name] = []
            for size in slots:
                missed[name].append(sum(POLICIES[name](trace, size, context)[warm_up:]))
                report(next(ticks), total)
        return _Counted(group, curve, missed)

    found = [count(trace, group) for trace, group in zip(traces, layers, strict=True)]
    readers, calls = sum(group.count for group in layers), len(traces[0]) - warm_up
    return Simulated(
        highest_token=context - 1,
        most_ids=most_ids,
        mean_ids=_read(found) / readers / calls,
        calls=calls,
        warm_up=warm_up,
        layers=readers,
        slots=tuple(slots),
        lru=_shares(found, "lru"),
        policies={name: _shares(found, name) for name in policies},
        groups=tuple(
            Group(
                layers=one.layers.ids,
                count=one.layers.count,
                lru=_shares([one], "lru"),
                policies={name: _shares([one], name) for name in policies},
            )
            for one in found
        ),
        split=_splits(found, slots, most_ids, context) if len(found) > 1 and max(slots) <= MOST_SLOTS else (),
    )


def _curve(trace: Sequence[Ids], warm_up: int, context: int, top_k: int, most_slots: int) -> MissCurve:
    distances, curve = StackDistances(context, top_k), MissCurve(most_slots)
    for now, ids in enumerate(trace):
        found = distances.step(ids)
        if now >= warm_up:
            curve.add(found)
    return curve


def _read(found: Sequence[_Counted]) -> int:
    """Ids that all layers read, at least 1: who reads nothing misses nothing."""
    return max(sum(one.layers.count * one.curve.accesses for one in found), 1)


def _shares(found: Sequence[_Counted], policy: str) -> tuple[float, ...]:
    """Misses of all layers over the ids that they read, by size."""
    by_size = zip(*([one.layers.count * count for count in one.missed[policy]] for one in found), strict=True)
    return tuple(sum(counts) / _read(found) for counts in by_size)


def _splits(found: Sequence[_Counted], slots: Sequence[int], most_ids: int, context: int) -> tuple[Split, ...]:
    """
    For each of `slots`, in the memory of buffers of that size: sizes whole pages larger or smaller, one a group.

    None is smaller than the ids of a call, larger than kernels count, or a page larger than the request.
    """
    layers = [one.layers.count for one in found]
    pages = {size: (size - most_ids) // PAGE for size in slots}
    best: dict[int, BestSplit] = {}
    splits = []
    for size in sorted(slots, reverse=True):
        least = size - pages[size] * PAGE
        if least not in best:
            top = max(min(MOST_SLOTS, context + PAGE - 1), least)
            curves = [
                [one.layers.count * one.curve.misses(own) for own in range(least, top + 1, PAGE)] for one in found
            ]
            best[least] = BestSplit(curves, layers, sum(layers) * pages[size])
        sizes = [least + PAGE * more for more in best[least].pages(sum(layers) * pages[size])]
        missed = sum(one.layers.count * one.curve.misses(own) for one, own in zip(found, sizes, strict=True))
        splits.append(Split(slots=tuple(sizes), lru=missed / _read(found)))
    return tuple(reversed(splits))
