"""Requests against context length: one plan in, its requests at every length out."""

from __future__ import annotations

import msgspec

from hsplan.planner import replan
from hsplan.result import Plan

SHORTEST = 4096


class Curves(msgspec.Struct, frozen=True):
    """
    Requests of one data-parallel rank at each of `contexts`: the most with and without offload.

    Of the scenarios that the release runs; None where it runs none. `crossover` is the shortest context of these at
    which offload holds more requests, None where it never does.
    """

    contexts: tuple[int, ...]
    without: tuple[int | None, ...]
    offload: tuple[int | None, ...]

    @property
    def crossover(self) -> int | None:
        """The context from which on offload pays."""
        for context, without, offload in zip(self.contexts, self.without, self.offload, strict=True):
            if offload is not None and offload > (without or 0):
                return context
        return None


def curves_of(plan: Plan) -> Curves:
    """Contexts are powers of two up to the longest request of the engine."""
    contexts = [SHORTEST]
    while 2 * contexts[-1] <= plan.launch.context_len:
        contexts.append(2 * contexts[-1])
    if contexts[0] > plan.launch.context_len:
        contexts = [plan.launch.context_len]
    plans = [replan(plan, context=context) for context in contexts]
    return Curves(
        tuple(contexts),
        tuple(_most(plan, offload=False) for plan in plans),
        tuple(_most(plan, offload=True) for plan in plans),
    )


def _most(plan: Plan, *, offload: bool) -> int | None:
    found = [
        entry.capacity.requests
        for entry in plan.scenarios.values()
        if entry.capacity is not None and entry.engine_applies and entry.scenario.offload == offload
    ]
    return max(found, default=None)
