"""Every formula of a plan with its numbers and its source: a `Plan` in, wrapped text out."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.cli.figures import Priced, launched, priced
from hsplan.cli.output import wrapped
from hsplan.result import Plan

Formula = tuple[str, str, str]


def explanation(plan: Plan) -> str:
    """All formulas of the scenario as launched, then of each other available one those that differ."""
    first = launched(plan)
    known = set(_formulas(first))
    parts = [_section(f"{first.name}, as launched:", _formulas(first))]
    for name in plan.scenarios:
        entry = priced(plan, name)
        if entry is not None and name != first.name:
            different = [formula for formula in _formulas(entry) if formula not in known]
            title = f"{name}, where it differs:" if different else f"{name}: the same as {first.name}"
            parts.append(_section(title, different))
    return "\n\n".join(parts)


def _section(title: str, formulas: list[Formula]) -> str:
    lines = [title]
    for name, formula, source in formulas:
        lines += [wrapped(f"  {name}: ", formula, indent=6), wrapped("      ", source, indent=10)]
    return "\n".join(lines)


def _formulas(entry: Priced) -> list[Formula]:
    return list(_every(entry))


def _every(entry: Priced) -> Iterator[Formula]:
    for part in (entry.layout, entry.budget, entry.pools, entry.capacity):
        for step in part.explain():
            yield step.name, step.formula, f"source: {step.source}"
    for line in (*entry.budget.lines, *entry.pools.lines):
        total = f"{line.formula} = {line.bytes:,} B ({line.place}, per {line.scope})"
        yield line.name, total, f"evidence: {line.evidence}"
