"""The sentences under the table: a `Plan` in; reasons, notes, what is not modelled, and the verdict out."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.cli.figures import best_runnable, counted, launched, percent
from hsplan.cli.output import wrapped
from hsplan.result import Plan, ScenarioPlan


def remarks(plan: Plan) -> str:
    """What lifts the limits, why a scenario is as it is, notes, and what is not modelled."""
    lines: list[str] = []
    for name, entry in plan.scenarios.items():
        lines += (wrapped(f"{name}: ", text) for text in _reasons(plan, entry))
    lines += (wrapped("note: ", note) for note in plan.notes)
    lines += (wrapped("not modelled: ", what) for what in plan.not_modelled)
    return "\n".join(lines)


def verdict(plan: Plan) -> str:
    """The last line: whether it fits as launched, what it then holds, and the best that the release can run instead."""
    found = launched(plan)
    if not found.capacity.fits:
        return f"does not fit as launched ({found.name})"
    dp = plan.launch.data_parallel
    of_all = f" on each of {dp} ranks" if dp > 1 else ""
    held = f"{found.pools.logical_tokens:,} tokens, {counted(found.capacity.requests, 'request')}{of_all}"
    best = best_runnable(plan)
    more = f"; {best[0]} would hold {percent(best[1])}" if best else ""
    return wrapped("", f"fits as launched ({found.name}): {held}, {found.capacity.binding} binds{more}")


def _reasons(plan: Plan, entry: ScenarioPlan) -> Iterator[str]:
    capacity = entry.capacity
    if capacity is None:
        yield f"unavailable: {entry.reason}"
        return
    if entry.reason:
        yield entry.reason
    if not entry.engine_applies:
        release = f"{plan.engine} {plan.launch.release.name}"
        yield f"{release} does not run it; it shows what a change of the engine would bring"
    if capacity.why_not:
        yield f"does not fit: {capacity.why_not}; cured by {capacity.cure}"
    else:
        yield f"{capacity.binding} binds; lifted by {capacity.lift}"
