"""Findings as GitHub's workflow commands: lines that a runner shows beside the file of a spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hsplan.errors import printable
from hsplan.report.check import Finding


def annotation_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """One `::error` for each reason."""
    for finding in findings:
        for reason in finding.reasons:
            title = _property(f"hsplan: {finding.name}")
            yield f"::error file={_property(finding.source)},title={title}::{_message(reason)}"


def _message(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
