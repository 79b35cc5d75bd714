"""JUnit XML as CI servers read it: one test case a spec; no times and no host names, so that the bytes are the same."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

import msgspec

from hsplan.errors import printable
from hsplan.report.check import Finding
from hsplan.report.value import Entry, Report


class Case(msgspec.Struct, frozen=True):
    """One spec: `failure` or `error` in words, empty when it passes; `properties` are for trends."""

    name: str
    failure: str = ""
    error: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    output: str = ""


def report_junit(report: Report) -> str:
    """A spec fails when it does not fit as launched, and is an error when it is refused."""
    return _suite("hsplan report", [_case(entry) for entry in report.specs])


def check_junit(findings: Iterable[Finding]) -> str:
    """A spec fails for all its reasons together."""
    cases = [Case(f.name, failure="\n".join(f.reasons), output="\n".join(f.notes)) for f in findings]
    return _suite("hsplan check", cases)


def _case(entry: Entry) -> Case:
    if entry.planned is None:
        return Case(entry.name, error="\n".join(entry.refused.lines) if entry.refused else "refused")
    found = entry.planned.launched
    figures = ("tokens", "logical_tokens", "requests", "kv_budget_bytes", "host_bytes_per_node", "headroom_bytes")
    properties = tuple((name, str(getattr(found, name))) for name in figures)
    return Case(entry.name, failure="" if found.fits else found.why_not or "does not fit", properties=properties)


def _suite(name: str, cases: list[Case]) -> str:
    failures, errors = sum(bool(case.failure) for case in cases), sum(bool(case.error) for case in cases)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="0"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {counts}>",
        f'<testsuite name="{name}" {counts}>',
        *(line for case in cases for line in _lines(case, name.replace(" ", "."))),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _lines(case: Case, classname: str) -> Iterable[str]:
    yield f'<testcase classname="{classname}" name={_attribute(case.name)} time="0">'
    if case.properties:
        yield "<properties>"
        yield from (f'<property name="{name}" value={_attribute(value)}/>' for name, value in case.properties)
        yield "</properties>"
    for kind, text in (("failure", case.failure), ("error", case.error)):
        if text:
            first = text.partition("\n")[0]
            yield f'<{kind} type="{kind}" message={_attribute(first)}>{_text(text)}</{kind}>'
    if case.output:
        yield f"<system-out>{_text(case.output)}</system-out>"
    yield "</testcase>"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def _text(text: str) -> str:
    """Lines of text without the characters that XML has no way to write."""
    return escape("\n".join(map(printable, text.split("\n"))))
