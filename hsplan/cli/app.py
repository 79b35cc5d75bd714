"""The commands of `hsplan`: each is one line here and one module beside this one."""

from __future__ import annotations

from typing import Annotated

import typer

from hsplan.cli import advise, calibrate, check, diff, estimate, report, simulate, specs, validate
from hsplan.cli.options import SpecCommand
from hsplan.cli.output import emit
from hsplan.version import __version__

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("estimate", cls=SpecCommand, epilog=estimate.EXAMPLE)(estimate.estimate)
app.command("validate", cls=SpecCommand, epilog=validate.EXAMPLE)(validate.validate)
app.command("advise", cls=SpecCommand, epilog=advise.EXAMPLE)(advise.advise)
app.command("simulate", epilog=simulate.EXAMPLE)(simulate.simulate)
app.command("calibrate", cls=SpecCommand, epilog=calibrate.EXAMPLE)(calibrate.calibrate)
app.command("report", epilog=report.EXAMPLE)(report.report)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("diff", epilog=diff.EXAMPLE)(diff.diff)
app.add_typer(specs.app, name="specs", epilog=specs.EXAMPLE)


def _print_version(value: bool) -> None:
    if value:
        emit(f"hsplan {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: hsplan estimate glm-5.2-nvfp4 --gpu gb300 --tp 4")
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of hsplan.")
    ] = False,
) -> None:
    """How many tokens and requests a sparse-attention model holds on given GPUs, before anything is launched."""
    del version
