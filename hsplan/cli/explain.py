"""Every formula of a plan with its numbers and its source: a `Plan` in, wrapped text out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from hsplan.cli.output import width
from hsplan.cli.scenarios import Priced, priced
from hsplan.plan import Plan


def explanation(plan: Plan) -> str:
    """The formulas of all available scenarios."""
    found = ((name, priced(plan, name)) for name in plan.scenarios)
    return "\n\n".join("\n".join([f"{name}:", *_formulas(entry)]) for name, entry in found if entry is not None)


def _formulas(entry: Priced) -> Iterator[str]:
    for step in (*entry.layout.steps, *entry.budget.steps, *entry.pools.steps):
        yield _wrapped(f"{step.name}: {step.formula}")
        yield _wrapped(f"source: {step.source}", "      ")
    for line in (*entry.budget.lines, *entry.pools.lines):
        yield _wrapped(f"{line.name}: {line.formula} = {line.bytes:,} B ({line.place}, per {line.scope})")
        yield _wrapped(f"evidence: {line.evidence}", "      ")


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(
        text,
        width(),
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
