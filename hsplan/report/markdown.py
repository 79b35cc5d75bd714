"""A report as Markdown: one row a spec, short enough for a step summary (1 MiB) and a pull-request comment (65,536)."""

from __future__ import annotations

import re

from hsplan.errors import printable
from hsplan.report.value import Entry, Report
from hsplan.units import GIB

MAX_CHARACTERS = 60_000
MARKS = re.compile(r"([\\`*_\[\]#!|~<>&$@])")
HEAD = """\
| spec | engine | GPUs | as launched | tokens | logical tokens | requests | DP ranks | in all | host GiB, node | \
headroom, GiB | fits |
|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|
"""


def markdown(report: Report) -> str:
    """The table, then why specs do not fit or are refused; what is too long is counted."""
    rows = [_row(entry) for entry in report.specs]
    bad = [_reason(entry) for entry in report.specs if _reason(entry)]
    fit = len(report.specs) - len(bad)
    title = f"### Capacity: {fit} of {len(report.specs)} specs fit\n\n"
    return (
        title + _shortened(bad, "reasons", MAX_CHARACTERS // 3) + HEAD + _shortened(rows, "specs", MAX_CHARACTERS // 2)
    )


def _shortened(lines: list[str], what: str, most: int) -> str:
    """Whole lines of at most `most` characters, and how many more there are."""
    kept, length = 0, 0
    for line in lines:
        length += len(line)
        if length > most:
            break
        kept += 1
    more = len(lines) - kept
    tail = f"\n{more:,} more {what} stand in the JSON\n\n" if more else ""
    gap = "\n" if kept and what == "reasons" and not more else ""
    return "".join(lines[:kept]) + gap + tail


def _row(entry: Entry) -> str:
    if entry.planned is None:
        cells = [escaped(entry.name), *["–"] * 10, "refused"]
    else:
        plan, found = entry.planned, entry.planned.launched
        cells = [
            escaped(entry.name),
            escaped(f"{plan.engine} {plan.release}"),
            escaped(f"{plan.gpus} × {plan.gpu}"),
            escaped(plan.as_launched),
            f"{found.tokens:,}",
            f"{found.logical_tokens:,}",
            f"{found.requests:,}",
            f"{plan.data_parallel:,}",
            f"{found.requests * plan.data_parallel:,}",
            f"{found.host_bytes_per_node / GIB:,.2f}" if found.host_bytes_per_node else "–",
            f"{found.headroom_bytes / GIB:,.2f}",
            "yes" if found.fits else "**no**",
        ]
    return f"| {' | '.join(cells)} |\n"


def _reason(entry: Entry) -> str:
    if entry.refused is not None:
        return f"- **{escaped(entry.name)}** is refused: {escaped(' '.join(entry.refused.lines[:1]))}\n"
    if entry.planned is not None and not entry.planned.launched.fits:
        return f"- **{escaped(entry.name)}** does not fit: {escaped(entry.planned.launched.why_not or '')}\n"
    return ""


def escaped(text: str) -> str:
    """`text` as plain words in a cell, whatever characters it has."""
    return MARKS.sub(r"\\\1", printable(text))
