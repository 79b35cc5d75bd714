"""`hsplan estimate`: a spec and options in; a table, a ledger, formulas or JSON out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hsplan.calibration import read_calibration
from hsplan.cli.compare import Outcome, exit_code, grid_json, grid_table, outcomes, refusals
from hsplan.cli.explain import explanation
from hsplan.cli.figures import launched
from hsplan.cli.grid import grid_of
from hsplan.cli.ledger import ledger
from hsplan.cli.options import spec_argument, spec_options
from hsplan.cli.output import complain, emit, emit_json
from hsplan.cli.remarks import remarks, verdict
from hsplan.cli.scenarios import scenario_table, title
from hsplan.errors import InputError, Problem
from hsplan.planner import plan as make_plan
from hsplan.result import Plan

EXAMPLE = "Example: hsplan estimate glm-5.2-nvfp4 --gpu gb300 --tp 4 --offload"
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.", show_default=False,
                 rich_help_panel="Output"),
]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (hsplan.plan/1).", rich_help_panel="Output")]


@spec_options
def estimate(
    spec: Annotated[str, spec_argument()],
    *,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", show_default=False, rich_help_panel="Calibration",
                                  help="What calibrate wrote of a server's log: plan that server, changed.")
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
    show_ledger: Annotated[
        bool, typer.Option("--ledger", help="Add all that takes memory, as launched.", rich_help_panel="Output")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add every formula with its source.", rich_help_panel="Output")
    ] = False,
    **options: Any,
) -> None:  # fmt: skip
    """
    Price a deployment in four scenarios: with and without index-K elision and CPU offload.

    Options override the spec; an option given more than once makes a grid of all combinations.
    """
    combinations, varying = grid_of(options)
    if explain and as_json:
        raise InputError(Problem(what="--explain is text", remedy="leave out --json or --explain"))
    known = None if calibration is None else read_calibration(calibration)
    if len(combinations) == 1:
        plan = make_plan(spec, calibration=known, **combinations[0])
        _one(plan, output, as_json=as_json, show_ledger=show_ledger, explain=explain)
    elif show_ledger or explain:
        raise InputError(Problem(what="--ledger and --explain are for one plan", remedy="give each option once"))
    else:
        _many(outcomes(spec, combinations, varying, known, as_json=as_json), varying, output, as_json=as_json)


def _one(plan: Plan, output: Path | None, *, as_json: bool, show_ledger: bool, explain: bool) -> None:
    if as_json:
        emit_json(plan.to_dict(), output)
    else:
        parts = [title(plan), scenario_table(plan)]
        if show_ledger:
            parts.append(ledger(plan))
        if explain:
            parts.append(explanation(plan))
        emit("\n\n".join(filter(None, [*parts, remarks(plan), verdict(plan)])), output)
    if not plan.fits:
        complain([f"{plan.as_launched} does not fit: {launched(plan).capacity.why_not}"])
        raise typer.Exit(1)


def _many(found: list[Outcome], varying: list[str], output: Path | None, *, as_json: bool) -> None:
    if as_json:
        emit_json(grid_json(found), output)
    else:
        emit(grid_table(found, varying), output)
    complain(refusals(found))
    code = exit_code(found)
    if code:
        raise typer.Exit(code)
