"""A report as CSV: one line a spec and available scenario, for spreadsheets."""

from __future__ import annotations

import csv
import io

import msgspec

from hsplan.report.value import Figures, Report

HEAD = ("spec", "engine", "release", "gpu", "gpus", "context", "data_parallel", "scenario", "as_launched")
FIGURES = tuple(name for name in Figures.__struct_fields__ if name != "tokens_range")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def report_csv(report: Report) -> str:
    """Specs that are refused have no line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*HEAD, *FIGURES])
    for entry in report.specs:
        if entry.planned is None:
            continue
        plan = entry.planned
        for name, found in plan.scenarios.items():
            if found is not None:
                head = [
                    entry.name, plan.engine, plan.release, plan.gpu, plan.gpus, plan.context, plan.data_parallel, name
                ]  # fmt: skip
                figures = msgspec.to_builtins(found)
                writer.writerow(
                    [*map(_safe, head), name == plan.as_launched, *(_safe(figures[key]) for key in FIGURES)]
                )
    return text.getvalue()


def _safe(cell: object) -> object:
    """A text that a spreadsheet would run as a formula gets a quote in front."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
