"""A server as the plan sees it: the launch of a spec as logged, and its pools at any budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hsplan.calibration import Window
from hsplan.engines import Budget, Engine, Launch, Layout, Pools, Scenario, engine_of
from hsplan.engines.base import exactly
from hsplan.families import Model
from hsplan.spec import Loaded, changed

MOST_BYTES = 2**44  # more than any GPU has


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: `budget` and `pools` are the plan's, before any log is read."""

    engine: Engine
    launch: Launch
    scenario: Scenario
    layout: Layout
    budget: Budget
    pools: Pools

    def pools_at(self, kv_bytes: int) -> Pools:
        """The pools of a budget of exactly `kv_bytes`."""
        budget = msgspec.structs.replace(self.budget, kv_bytes=exactly(kv_bytes))
        return self.engine.pools(self.launch, self.scenario, self.layout, budget)

    def line_bytes(self, *names: str) -> int:
        """Bytes of ledger lines before the pool."""
        return sum(line.bytes for line in self.budget.lines if line.name in names)


def server_of(loaded: Loaded, model: Model, values: Mapping[str, Any]) -> Server:
    """The server that a spec starts with other `values` of its leaf keys; raises what planning it raises."""
    engine = engine_of(loaded)
    launch = engine.resolve(changed(loaded, values), model)
    scenario = engine.as_launched(launch)
    layout = engine.layout(launch, scenario)
    assert isinstance(layout, Layout)  # noqa: S101 - a refusal of what is launched is raised
    budget = engine.budget(launch, scenario)
    pools = engine.pools(launch, scenario, layout, budget)
    return Server(engine=engine, launch=launch, scenario=scenario, layout=layout, budget=budget, pools=pools)


def budgets_that_give(count: Callable[[int], int], logged: int) -> Window | None:
    """
    The budgets for which `count`, which never falls, is exactly `logged`; None when there are none.

    Where no budget gives more, the window ends at `MOST_BYTES`.
    """
    low = _least(lambda kv_bytes: count(kv_bytes) >= logged)
    if low is None or count(low) != logged:
        return None
    beyond = _least(lambda kv_bytes: count(kv_bytes) > logged)
    return Window(low, MOST_BYTES if beyond is None else beyond - 1)


def _least(holds: Callable[[int], bool]) -> int | None:
    """The least budget for which `holds`, by bisection."""
    low, high = 0, MOST_BYTES
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
