"""All that takes memory in the scenario as launched: a `Plan` in, a table and its sums out."""

from __future__ import annotations

from hsplan.cli.scenarios import priced
from hsplan.cli.tables import number, table
from hsplan.plan import Plan
from hsplan.units import GIB


def ledger(plan: Plan) -> str:
    """The ledger as text; its GPU lines and the headroom add up to the memory that the driver reports."""
    launched = priced(plan, plan.as_launched)
    assert launched is not None  # noqa: S101 - the scenario as launched always has numbers
    lines = (*launched.budget.lines, *launched.pools.lines)
    rows = [
        [line.name, number(line.bytes), _gib(line.bytes), f"{line.place}, {line.scope}", line.evidence, line.formula]
        for line in lines
    ]
    text = table(["ledger, as launched", "bytes", "GiB", "where, per", "evidence", "formula"], rows, left=(0, 3, 4, 5))
    taken = sum(line.bytes for line in lines if line.place == "gpu")
    headroom = launched.capacity.headroom_bytes
    sums = [f"GPU: {taken:,} B in the ledger + {headroom:,} B headroom = {taken + headroom:,} B reported by the {plan.launch.gpu.name}"]
    host = sum(line.bytes for line in lines if line.place == "host")
    if host:
        node = host * plan.launch.ranks_per_node
        sums.append(f"host: {host:,} B a rank × {plan.launch.ranks_per_node} ranks = {node:,} B ({_gib(node)} GiB) a node")
    return "\n".join([text, "", *sums])


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:,.2f}"
