"""Whether a report may stand: against an older one and against limits. Two reports in, findings out."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import msgspec

from hsplan.report.value import Entry, Report
from hsplan.units import size


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_drop`: share of the tokens of the older report that may be lost; the others hold for every spec."""

    max_drop: Fraction = Fraction(0)
    min_tokens: int | None = None
    max_host_bytes: int | None = None


class Finding(msgspec.Struct, frozen=True):
    """One spec: reasons why it fails, none when it passes, and what is worth knowing all the same."""

    name: str
    source: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the spec."""
        return not self.reasons


def check(now: Report, then: Report | None, limits: Limits) -> tuple[Finding, ...]:
    """Every spec of `now`, and every one of `then` that is gone."""
    old = {} if then is None else then.named()
    renamed = _renamed(now, old)
    findings, kept = [], set()
    for entry in now.specs:
        name = renamed.get(entry.name, entry.name)
        kept.add(name)
        notes = [f"renamed from {name}"] if name != entry.name else []
        if then is not None and name not in old:
            notes.append("new: the older report does not have it")
        findings.append(Finding(entry.name, entry.source, _reasons(entry, old.get(name), limits), tuple(notes)))
    gone = (entry for entry in old.values() if entry.name not in kept)
    return (*findings, *(Finding(e.name, e.source, ("it is missing: the older report has it",), ()) for e in gone))


def _renamed(now: Report, old: dict[str, Entry]) -> dict[str, str]:
    """New name -> old name of specs that changed in nothing else."""
    names = {entry.name for entry in now.specs}
    gone = {entry.sha256: name for name, entry in old.items() if name not in names and entry.sha256}
    return {e.name: gone[e.sha256] for e in now.specs if e.name not in old and e.sha256 in gone}


def _reasons(entry: Entry, old: Entry | None, limits: Limits) -> tuple[str, ...]:
    return (*_against_old(entry, old), *_against_limits(entry, limits), *_lost(entry, old, limits))


def _against_old(entry: Entry, old: Entry | None) -> Iterator[str]:
    """What got worse in kind: refused or not fitting, and not so before."""
    if entry.refused is not None:
        if old is None or old.refused is None:
            yield f"it is refused: {entry.refused.lines[0] if entry.refused.lines else 'no reason given'}"
        return
    assert entry.planned is not None  # noqa: S101
    figures = entry.planned.launched
    if not figures.fits and (old is None or old.planned is None or old.planned.launched.fits):
        yield f"it does not fit as launched ({entry.planned.as_launched}): {figures.why_not or 'no reason given'}"


def _against_limits(entry: Entry, limits: Limits) -> Iterator[str]:
    if entry.planned is None:
        return
    figures = entry.planned.launched
    if limits.min_tokens is not None and figures.tokens < limits.min_tokens:
        yield f"{figures.tokens:,} tokens are fewer than {limits.min_tokens:,}"
    if limits.max_host_bytes is not None and figures.host_bytes_per_node > limits.max_host_bytes:
        yield f"{size(figures.host_bytes_per_node)} of host memory a node are more than {size(limits.max_host_bytes)}"


def _lost(entry: Entry, old: Entry | None, limits: Limits) -> Iterator[str]:
    if entry.planned is None or old is None or old.planned is None:
        return
    now, then = entry.planned.launched.tokens, old.planned.launched.tokens
    if now < then * (1 - limits.max_drop):
        lost = Fraction(100 * (then - now), then)
        allowed = f"{float(100 * limits.max_drop):g} %"
        yield f"{then:,} tokens became {now:,}: {float(lost):.2f} % lost, {allowed} may be"
