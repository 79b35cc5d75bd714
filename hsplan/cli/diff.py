"""`hsplan diff`: two reports in; what changed, and which lines of the ledger caused it, out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hsplan.cli.figures import NONE
from hsplan.cli.output import emit, emit_json, wrapped
from hsplan.cli.report import file_option
from hsplan.errors import printable, shown
from hsplan.report import read_report
from hsplan.report.diff import Change, SpecDiff
from hsplan.report.diff import diff as compare
from hsplan.units import size

EXAMPLE = "Example: hsplan diff main.json capacity.json"


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A report of `hsplan report`.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A later one.")],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (hsplan.diff/1).", rich_help_panel="Output")
    ] = False,
    output: Annotated[
        Path | None, file_option("--output", "-o", help="Write to FILE, whole or not at all.")
    ] = None,
) -> None:  # fmt: skip
    """
    Say what changed in capacity from one report to another, and which ledger lines caused it.

    Keys of the spec that differ stand first, with – where one is not given. A line of the budget that grew leaves less
    for the cache; the bytes of a token divide what is left.
    """
    found = compare(read_report(before), read_report(after))
    if as_json:
        emit_json(found, output)
        return
    changed = [spec for spec in found.specs if spec.status != "same"]
    same = f"{len(found.specs) - len(changed)} of {len(found.specs)} specs are the same as launched"
    emit("\n".join([*(line for spec in changed for line in _text(spec)), same]), output)


def _text(spec: SpecDiff) -> Iterator[str]:
    yield f"{printable(spec.name)}: {spec.status}"
    for change in spec.settings:
        yield wrapped(f"  {printable(change.name)}: ", f"{_shown(change.before)} → {_shown(change.after)}", indent=6)
    for change in spec.figures:
        yield wrapped(f"  {change.name}: ", _words(change), indent=6)
    for title, lines in (("budget", spec.budget_lines), ("pool and beside it", spec.pool_lines)):
        for change in lines:
            before, after = change.before or 0, change.after or 0
            words = f"{size(before)} → {size(after)} ({'+' if after > before else '−'}{size(abs(after - before))})"
            yield wrapped(f"  {title}: {printable(change.name)}: ", words, indent=6)


def _words(change: Change) -> str:
    before, after = change.before, change.after
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))
    if not numbers:
        return f"{_shown(before)} → {_shown(after)}"
    if change.name == "row_bytes":
        return f"{before:,} B → {after:,} B"
    if change.name.endswith("_bytes") or change.name == "host_bytes_per_node":
        return f"{size(before)} → {size(after)}"
    gain = f" ({100 * (after / before - 1):+.2f} %)".replace("-", "−") if before else ""
    return f"{_number(before)} → {_number(after)}{gain}"


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _number(value) if isinstance(value, int | float) else shown(value)


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,}"
