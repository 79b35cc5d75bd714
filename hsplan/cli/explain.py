"""Every formula of a plan with its numbers and its source: a `Plan` in, wrapped text out."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.cli.figures import Priced, priced
from hsplan.cli.output import wrapped
from hsplan.plan import Plan


def explanation(plan: Plan) -> str:
    """The formulas of all available scenarios."""
    found = ((name, priced(plan, name)) for name in plan.scenarios)
    return "\n\n".join("\n".join([f"{name}:", *_formulas(entry)]) for name, entry in found if entry is not None)


def _formulas(entry: Priced) -> Iterator[str]:
    for step in (*entry.layout.steps, *entry.budget.steps, *entry.pools.steps):
        yield wrapped(f"  {step.name}: ", step.formula, indent=6)
        yield wrapped("      source: ", step.source, indent=10)
    for line in (*entry.budget.lines, *entry.pools.lines):
        yield wrapped(
            f"  {line.name}: ", f"{line.formula} = {line.bytes:,} B ({line.place}, per {line.scope})", indent=6
        )
        yield wrapped("      evidence: ", line.evidence, indent=10)
