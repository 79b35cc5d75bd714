"""All that takes memory in the scenario as launched: a `Plan` in, a table and its sums out."""

from __future__ import annotations

from hsplan.capacity import host_pools
from hsplan.cli.figures import gib, launched, number
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.result import Plan


def ledger(plan: Plan) -> str:
    """The ledger as text; its GPU lines and the headroom add up to the memory that the driver reports."""
    found = launched(plan)
    lines = (*found.budget.lines, *found.pools.lines)
    rows = [[line.name, number(line.bytes), gib(line.bytes), line.place, line.scope, line.evidence] for line in lines]
    heads = ["ledger, as launched", "bytes", "GiB", "where", "per", "evidence"]
    *head, body = table(heads, rows, left=(0, 3, 4, 5)).split("\n", 2)
    formulas = (wrapped("    ", line.formula, indent=4) for line in lines)
    text = [*head, *(f"{row}\n{formula}" for row, formula in zip(body.split("\n"), formulas, strict=True))]
    taken = sum(line.bytes for line in lines if line.place == "gpu")
    headroom = found.capacity.headroom_bytes
    total = f"{taken + headroom:,} B reported by the {plan.launch.gpu.name}"
    sums = [wrapped("GPU: ", f"{taken:,} B in the ledger + {headroom:,} B headroom = {total}")]
    host = sum(line.bytes for line in lines if line.place == "host")
    if host:
        pools = host_pools(plan.launch, found.pools)
        each = "rank" if found.pools.host_sharers == 1 else "replica"
        total = f"{host * pools:,} B ({gib(host * pools)} GiB) a node"
        several = "s" if pools > 1 else ""
        sums.append(f"host: {host:,} B a {each} × {pools} {each}{several} = {total}")
    return "\n".join([*text, "", *sums])
