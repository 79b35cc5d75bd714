"""Misses of a workload by hot-buffer size: exact for the kernel's order at every size, and for other policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hsplan.workload.policies import POLICIES
from hsplan.workload.stack import MissCurve, StackDistances

Ids = npt.NDArray[np.int32]
WARM_SHARE = 2  # the first half of the steps fills the buffer


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """
    Misses a step, as shares of the ids read; `slots` and each list of a policy have one entry a size.

    `highest_token` is the largest id, `most_ids` the most of a step. `lru` is the kernel's order: step of last use,
    then token id. `steps` were counted, after as many to warm up.
    """

    highest_token: int
    most_ids: int
    steps: int
    slots: tuple[int, ...]
    lru: tuple[float, ...]
    policies: dict[str, tuple[float, ...]]


def simulate(
    traces: Sequence[Sequence[Ids]],
    slots: Sequence[int],
    *,
    policies: Sequence[str],
    report: Callable[[int, int], None],
) -> Simulated:
    """
    The mean over `traces` (one a layer; each step's ids sorted and distinct); `slots` at least as many as ids a step.

    `report(done, total)` is called after each trace and policy.
    """
    context = 1 + max(int(step[-1]) for trace in traces for step in trace if step.size)
    top_k = max(step.size for trace in traces for step in trace)
    total, done = len(traces) * (1 + len(policies) * len(slots)), 0
    curve = MissCurve(max(slots))
    missed = {name: [0] * len(slots) for name in policies}
    for trace in traces:
        warm = len(trace) // WARM_SHARE
        _count(trace, warm, context, top_k, curve)
        done += 1
        report(done, total)
        for name in policies:
            for i, size in enumerate(slots):
                missed[name][i] += sum(POLICIES[name](trace, size, context)[warm:])
                done += 1
                report(done, total)
    read = curve.accesses
    return Simulated(
        highest_token=context - 1,
        most_ids=top_k,
        steps=len(traces[0]) - len(traces[0]) // WARM_SHARE,
        slots=tuple(slots),
        lru=tuple(curve.misses(size) / read for size in slots),
        policies={name: tuple(count / read for count in counts) for name, counts in missed.items()},
    )


def _count(trace: Sequence[Ids], warm: int, context: int, top_k: int, curve: MissCurve) -> None:
    distances = StackDistances(context, top_k)
    for now, ids in enumerate(trace):
        found = distances.step(ids)
        if now >= warm:
            curve.add(found)
