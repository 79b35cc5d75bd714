"""Figures of a plan as people read them: scenarios with numbers, gains, GiB."""

from __future__ import annotations

import msgspec

from hsplan.capacity import Capacity
from hsplan.engines import Budget, Layout, Pools
from hsplan.result import Plan, ScenarioPlan
from hsplan.units import GIB

NONE = "–"


class Priced(msgspec.Struct, frozen=True):
    """A scenario that has numbers."""

    name: str
    entry: ScenarioPlan
    layout: Layout
    budget: Budget
    pools: Pools
    capacity: Capacity


def priced(plan: Plan, name: str) -> Priced | None:
    """The numbers of a scenario; None when it is not available."""
    entry = plan.scenarios[name]
    layout, budget, pools, capacity = entry.layout, entry.budget, entry.pools, entry.capacity
    if layout is None or budget is None or pools is None or capacity is None:
        return None
    return Priced(name, entry, layout, budget, pools, capacity)


def launched(plan: Plan) -> Priced:
    """The scenario as launched; it always has numbers."""
    found = priced(plan, plan.as_launched)
    assert found is not None  # noqa: S101
    return found


def gain(plan: Plan, name: str) -> float | None:
    """Logical tokens of a scenario over those of the baseline, less 1; None where there is nothing to compare."""
    scenario, baseline = priced(plan, name), priced(plan, "baseline")
    if scenario is None or baseline is None or baseline.pools.logical_tokens == 0:
        return None
    return scenario.pools.logical_tokens / baseline.pools.logical_tokens - 1


def best_runnable(plan: Plan) -> tuple[str, float] | None:
    """The scenario with the most logical tokens among those that the release runs, and its gain over as launched."""
    now = launched(plan).pools.logical_tokens
    runnable = [
        (found.pools.logical_tokens / now - 1, name)
        for name in plan.scenarios
        if (found := priced(plan, name)) is not None and found.entry.engine_applies and found.capacity.fits and now
    ]
    most, name = max(runnable, key=lambda pair: pair[0], default=(0.0, ""))
    return (name, most) if most > 0 else None


def percent(share: float | None) -> str:
    """A gain: `+16.6 %`."""
    return NONE if share is None else f"{100 * share:+.1f} %"


def number(value: int | None) -> str:
    """An int with thousands separators, a dash for none."""
    return NONE if value is None else f"{value:,}"


def counted(value: int, what: str) -> str:
    """`1 request`, `2,048 requests`."""
    return f"{value:,} {what}{'' if value == 1 else 's'}"


def rate(value: float | None) -> str:
    """Bytes a token that may be fractional, two decimals at most."""
    return NONE if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def milliseconds(value: float | None) -> str:
    """Milliseconds with one decimal, a dash for none."""
    return NONE if value is None else f"{value:,.1f}"


def tokens_a_second(value: float | None) -> str:
    """Whole tokens a second, a dash for none."""
    return NONE if value is None else f"{value:,.0f}"


def gib(n_bytes: int) -> str:
    """GiB with two decimals, without the unit."""
    return f"{n_bytes / GIB:,.2f}"
