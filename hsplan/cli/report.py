"""`hsplan report`: specs in; one JSON of their capacity, and its summaries, out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hsplan.cli.output import check_apart, complain, emit, emit_json, write_file, write_json
from hsplan.errors import CannotRunError, InputError, Problem, shown
from hsplan.files import read_file, reason_of
from hsplan.measurement import SCHEMA, Measurement
from hsplan.report import report as make_report
from hsplan.report.csv import report_csv
from hsplan.report.junit import report_junit
from hsplan.report.markdown import markdown as report_markdown
from hsplan.report.value import Entry
from hsplan.units import MIB

MAX_MEASUREMENT_BYTES = 64 * MIB
EXAMPLE = "Example: hsplan report specs/*.yaml -o capacity.json --markdown summary.md --junit junit.xml"


def file_option(*flags: str, help: str) -> typer.models.OptionInfo:  # noqa: A002
    """An option that names a file to write."""
    found: typer.models.OptionInfo = typer.Option(
        *flags, metavar="FILE", show_default=False, help=help, rich_help_panel="Output"
    )
    return found


def report(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC...", help="Shipped specs, YAML files or model folders.")],
    *,
    output: Annotated[Path | None, file_option("--output", "-o", help="Write the report (hsplan.report/1).")] = None,
    markdown: Annotated[Path | None, file_option("--markdown", help="Write a summary for people.")] = None,
    junit: Annotated[Path | None, file_option("--junit", help="Write JUnit XML for CI servers.")] = None,
    html: Annotated[Path | None, file_option("--html", help="Write one page with charts.")] = None,
    validated: Annotated[
        list[Path] | None, file_option("--validated", help="A result of validate --json, for the page.")
    ] = None,
    csv: Annotated[Path | None, file_option("--csv", help="Write a line for each spec and scenario.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report.", rich_help_panel="Output")] = False,
) -> None:
    """
    Price many specs at once, each as it is launched, for CI and for people.

    The report is what `hsplan check` and `hsplan diff` compare. Without a file to write the summary is printed.
    """
    if validated and html is None:
        raise InputError(Problem(what="--validated is shown on the page", remedy="give --html FILE"))
    if html is not None:
        _need("jinja2", "matplotlib")
    _check_patterns(specs)
    check_apart([path for path in (output, markdown, junit, html, csv) if path is not None])
    found = make_report(specs)
    if output is not None:
        write_json(found, output)
    for target, made in ((markdown, report_markdown), (junit, report_junit), (csv, report_csv)):
        if target is not None:
            write_file(target, made(found))
    if html is not None:
        from hsplan.report.page import page  # noqa: PLC0415 - matplotlib takes longer to import than specs to price

        write_file(html, page(found, specs, [_measurement(path) for path in validated or []]))
    if as_json:
        emit_json(found)
    elif not any((output, markdown, junit, html, csv)):
        emit(report_markdown(found))
    bad = [entry for entry in found.specs if entry.refused or (entry.planned and not entry.planned.launched.fits)]
    complain(f"{e.name}: {_verdict(e)}" for e in bad[:10])
    if len(bad) > 10:
        complain([f"and {len(bad) - 10} more"])
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _check_patterns(specs: list[str]) -> None:
    """Raises InputError for patterns that the shell left as they were."""
    patterns = [spec for spec in specs if set(spec) & set("*?[") and not Path(spec).exists()]
    if patterns:
        remedy = "give specs that are there"
        raise InputError([Problem(what=f"{shown(name)} matched no file", remedy=remedy) for name in patterns])


def _verdict(entry: Entry) -> str:
    if entry.refused is None:
        return "does not fit as launched"
    return f"is refused: {entry.refused.lines[0] if entry.refused.lines else 'no reason given'}"


def _need(*modules: str) -> None:
    """Raise CannotRunError, which names the extra, where a library of the page is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)} cannot be imported, which --html needs"
        raise CannotRunError(Problem(what=what, remedy='pip install "hsplan[report]"'))


def _measurement(path: Path) -> Measurement:
    where = str(path)
    try:
        found = msgspec.json.decode(read_file(path, MAX_MEASUREMENT_BYTES))
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise InputError(Problem(where=where, what=f"is no {SCHEMA}", remedy="write it with validate --json -o"))
        return msgspec.convert({key: found[key] for key in Measurement.__struct_fields__ if key in found}, Measurement)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where=where, what=f"cannot be read: {shown(reason)}")) from None
