"""`hsplan check`: a report against an older one and against limits; the reasons and an exit code out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from hsplan.cli.output import check_apart, complain, emit, emit_json, wrapped, write_file
from hsplan.cli.report import file_option
from hsplan.errors import InputError, Problem, printable, shown
from hsplan.report import read_report
from hsplan.report.annotations import annotation_lines
from hsplan.report.check import Finding, Limits
from hsplan.report.check import check as compare
from hsplan.report.junit import check_junit
from hsplan.units import parse_bytes

EXAMPLE = "Example: hsplan check capacity.json --baseline main.json --max-drop 1%"
SCHEMA = "hsplan.check/1"


def check(
    now: Annotated[Path, typer.Argument(metavar="NOW", help="A report of `hsplan report`.")],
    *,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="THEN", help="The report to compare with.", show_default=False)
    ] = None,
    max_drop: Annotated[
        str | None, typer.Option("--max-drop", metavar="N%", help="Tokens that a spec may lose; 0% if not given.",
                                 show_default=False)
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option("--min-tokens", metavar="N", min=0, help="Tokens that every spec must hold.",
                                 show_default=False)
    ] = None,
    max_host: Annotated[
        str | None, typer.Option("--max-host", metavar="SIZE", help="Host memory that a node may need: 1TiB.",
                                 show_default=False)
    ] = None,
    junit: Annotated[Path | None, file_option("--junit", help="Write JUnit XML for CI servers.")] = None,
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print GitHub's ::error lines too.", rich_help_panel="Output")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (hsplan.check/1).", rich_help_panel="Output")
    ] = False,
    output: Annotated[
        Path | None, file_option("--output", "-o", help="Write to FILE, whole or not at all.")
    ] = None,
) -> None:  # fmt: skip
    """
    Stop a change that costs capacity: exit code 1 and the reasons when a spec loses tokens, does not fit or is gone.

    Compared are the tokens that the engine logs, as launched. A spec that was renamed and changed in nothing else is
    compared with what it was.
    """
    if baseline is None and max_drop is not None:
        raise InputError(Problem(what="--max-drop compares with --baseline", remedy="give --baseline THEN"))
    limits = Limits(max_drop=_share(max_drop), min_tokens=min_tokens, max_host_bytes=_size(max_host))
    for read in (now, baseline):
        check_apart(path for path in (read, junit, output) if path is not None)
    found = compare(read_report(now), None if baseline is None else read_report(baseline), limits)
    failed = [finding for finding in found if not finding.passed]
    if junit is not None:
        write_file(junit, check_junit(found))
    if as_json:
        emit_json({"schema": SCHEMA, "passed": not failed, "specs": found}, output)
    else:
        emit("\n".join(_text(found, failed)), output)
    if annotations and failed:
        emit("\n".join(annotation_lines(failed)))
    if failed:
        complain([f"{len(failed)} of {len(found)} specs fail"])
        raise typer.Exit(1)


def _text(found: Sequence[Finding], failed: Sequence[Finding]) -> Iterator[str]:
    for finding in failed:
        yield from (wrapped(f"{printable(finding.name)}: ", reason) for reason in finding.reasons)
    yield from (wrapped(f"{printable(finding.name)}: ", note) for finding in found for note in finding.notes)
    yield f"{len(found) - len(failed)} of {len(found)} specs pass"


def _share(text: str | None) -> Fraction:
    """The share of `1%` or `0.5%`, exact; nothing given is none."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%", "0%" if text is None else text)
    if match is None or (share := Fraction(match[1]) / 100) > 1:
        number = re.fullmatch(r"[0-9]{1,2}(?:\.[0-9]{1,6})?", text or "")
        remedy = f"write {number[0]}%" if number else "write a percentage from 0% to 100%"
        raise InputError(Problem(where="--max-drop", what=f"{shown(text)} is no share", remedy=remedy))
    return share


def _size(text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise InputError(Problem(where="--max-host", what=f"{shown(text)} is no size", remedy=str(error))) from None
