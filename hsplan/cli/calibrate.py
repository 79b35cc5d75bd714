"""`hsplan calibrate`: a spec and logs of its server in; what they pin, line by line, and a calibration file out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from hsplan.calibrate import calibrate as make_calibration
from hsplan.calibration import Calibration, Compared, Window
from hsplan.cli.figures import NONE
from hsplan.cli.grid import grid_of
from hsplan.cli.options import spec_argument, spec_options
from hsplan.cli.output import emit, emit_json, wrapped, write_json
from hsplan.cli.tables import table
from hsplan.errors import InputError, Problem, printable, shown
from hsplan.files import reason_of
from hsplan.units import GIB

EXAMPLE = "Example: hsplan calibrate glm-5.2-fp8 --log server.log -o server.json"
STDIN = "-"


@spec_options
def calibrate(
    spec: Annotated[str, spec_argument()],
    *,
    log: Annotated[
        list[str], typer.Option("--log", metavar="FILE", help="A log from the start of the server on; - for stdin. "
                                "Again for other starts of it.", rich_help_panel="Logs")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (hsplan.calibration/1).", rich_help_panel="Output")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False, rich_help_panel="Output",
                                  help="Write the calibration to FILE, for estimate --calibration.")
    ] = None,
    **options: Any,
) -> None:  # fmt: skip
    """
    Agree with a server: read the start-up lines of its log, and say what they pin.

    Give the spec as the server was launched; its memory fraction is read from the log where that names it. The file
    written with -o makes `estimate --calibration FILE` predict the same server with something changed.
    """
    combinations, varying = grid_of(options)
    if varying:
        raise InputError(Problem(what="calibrate reads the log of one server", remedy="give each option once"))
    with contextlib.ExitStack() as files:
        logs = [(shown(name), files.enter_context(_opened(name))) for name in log]
        found = make_calibration(spec, logs, **combinations[0])
    if output is not None:
        write_json(found, output)
    if as_json:
        emit_json(found)
    else:
        emit(_text(found))


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """The bytes of a file or of stdin; raises InputError for what cannot be read."""
    try:
        if name == STDIN:
            yield sys.stdin.buffer
        else:
            with Path(name).expanduser().open("rb") as file:
                yield file
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where=name, what=f"cannot be read: {shown(reason)}")) from None


def _text(found: Calibration) -> str:
    heads = ["line", "unit", "predicted", "at least", "at most", "logged", "off by"]
    rows = [_row(compared) for compared in found.compared]
    causes = [wrapped(f"{row.line}: ", row.cause) for row in found.compared if row.cause]
    pinned = [_pinned(found, run.fraction) for run in found.runs]
    return "\n".join([
        printable(found.name), "", table(heads, rows, left=(0, 1)), "", *causes, *pinned,
        *_window("memory that the fraction multiplies", found.fraction_of_bytes),
        *_window("weights of a rank", found.weights_bytes),
        *_window("outside of the fraction", found.outside_bytes),
    ])  # fmt: skip


def _row(row: Compared) -> list[str]:
    digits = 0 if row.unit not in ("GiB", "GB") else 2
    low, best, high = row.predicted
    bounds = [NONE, NONE] if low == high else [f"{edge:,.{digits}f}" for edge in (low, high)]
    off = 0 if round(row.residual, digits) == 0 else row.residual
    return [row.line, row.unit, f"{best:,.{digits}f}", *bounds, f"{row.logged:,.{digits}f}", f"{off:+,.{digits}f}"]


def _pinned(found: Calibration, fraction: float) -> str:
    budget = found.budget(fraction)
    exact = f"{budget.low:,} to {budget.high:,} B"
    return f"KV budget at memory fraction {fraction:g}: {exact} ({_gib(budget.low, budget.high)})"


def _window(name: str, window: Window | None) -> list[str]:
    return [] if window is None else [f"{name}: {_gib(window.low, window.high)}"]


def _gib(low: int, high: int) -> str:
    return f"{low / GIB:,.3f} to {high / GIB:,.3f} GiB"
