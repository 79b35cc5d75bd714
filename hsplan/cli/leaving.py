"""How a validation ends, on one card or on several: what failed goes in, the exit code out."""

from __future__ import annotations

import typer

from hsplan.cli.output import complain

NOT_CAUGHT = 5


def leave(failed: list[str], *, injected: str | None, caught: bool | None) -> None:
    """Exit with 1 when a claim does not hold, `failed` names it, and with 5 when a known fault was not caught."""
    if injected is not None and not caught:
        complain([f"a bug of hsplan: the fault {injected} was not caught"])
        raise typer.Exit(NOT_CAUGHT)
    if failed:
        complain([f"validation failed: {', '.join(failed)}"])
        raise typer.Exit(1)
