"""What changed between two reports, and which lines of the ledger caused it."""

from __future__ import annotations

from typing import Any

import msgspec

from hsplan.report.value import Entry, Planned, Report
from hsplan.version import __version__

SCHEMA = "hsplan.diff/1"
RESOLVED = ("engine", "release", "gpu", "gpus", "context", "as_launched")
LEFT_OUT = "left out of the KV budget"
FIGURES = (
    "tokens", "logical_tokens", "requests", "binding", "kv_budget_bytes", "bytes_per_token", "row_bytes",
    "host_bytes_per_node", "headroom_bytes", "fits",
)  # fmt: skip


class Change(msgspec.Struct, frozen=True):
    """A setting, figure or ledger line before and after; None where there was, or is, none."""

    name: str
    before: Any
    after: Any


class SpecDiff(msgspec.Struct, frozen=True, kw_only=True):
    """
    One spec: `status` is changed, same, added, removed, refused or readmitted.

    `settings` are all keys of the spec that differ, and what they resolve to. `budget_lines` are the lines of the
    ledger as launched that differ and size the KV budget, and what the memory fraction leaves out of it: with the bytes
    of a token they are what changed the tokens. `pool_lines` are what the changed pool takes. The largest difference
    stands first.
    """

    name: str
    status: str
    settings: tuple[Change, ...] = ()
    figures: tuple[Change, ...] = ()
    budget_lines: tuple[Change, ...] = ()
    pool_lines: tuple[Change, ...] = ()


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """All specs of either report: those of the later one in its order, then those that are gone."""

    schema: str
    hsplan_version: str
    specs: tuple[SpecDiff, ...]


def diff(before: Report, after: Report) -> Diff:
    """Compare by name."""
    old, new = before.named(), after.named()
    names = [*new, *(name for name in old if name not in new)]
    specs = tuple(_spec(name, old.get(name), new.get(name)) for name in names)
    return Diff(schema=SCHEMA, hsplan_version=__version__, specs=specs)


def _spec(name: str, old: Entry | None, new: Entry | None) -> SpecDiff:
    if old is None:
        return SpecDiff(name=name, status="added")
    if new is None:
        return SpecDiff(name=name, status="removed")
    if old.planned is None or new.planned is None:
        if old.planned is new.planned:
            return SpecDiff(name=name, status="same" if old.refused == new.refused else "changed")
        return SpecDiff(name=name, status="refused" if new.planned is None else "readmitted")
    return _planned(name, old.planned, new.planned)


def _planned(name: str, old: Planned, new: Planned) -> SpecDiff:
    settings = _settings(old, new)
    figures = _changes(FIGURES, old.launched, new.launched)
    budget, pool = _ledger(old, new, "budget"), _ledger(old, new, "pool")
    status = "changed" if settings or figures or budget or pool else "same"
    return SpecDiff(name=name, status=status, settings=settings, figures=figures, budget_lines=budget, pool_lines=pool)


def _settings(old: Planned, new: Planned) -> tuple[Change, ...]:
    """Keys of the spec, None where one is at its default; a resolved value stands instead where it differs too."""
    resolved = {change.name: change for change in _changes(RESOLVED, old, new)}
    names = dict.fromkeys([*new.settings, *old.settings])
    given = (Change(name, old.settings.get(name), new.settings.get(name)) for name in names)
    return (*resolved.values(), *(one for one in given if one.before != one.after and one.name not in resolved))


def _changes(names: tuple[str, ...], old: Any, new: Any) -> tuple[Change, ...]:
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in names)
    return tuple(Change(*pair) for pair in pairs if pair[1] != pair[2])


def _ledger(old: Planned, new: Planned, part: str) -> tuple[Change, ...]:
    before, after = ({line.name: line.bytes for line in planned.ledger if line.part == part} for planned in (old, new))
    if part == "budget":
        before[LEFT_OUT], after[LEFT_OUT] = old.left_out_bytes, new.left_out_bytes
    changes = [Change(name, before.get(name), after.get(name)) for name in dict.fromkeys([*after, *before])]
    changed = (change for change in changes if change.before != change.after)
    return tuple(sorted(changed, key=lambda change: -abs((change.after or 0) - (change.before or 0))))
