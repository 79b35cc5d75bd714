"""A report file read back: whole and of this version, or one line that says what is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from hsplan.errors import InputError, Problem, shown
from hsplan.files import check_regular, reason_of
from hsplan.report.value import SCHEMA, Report

MAX_FILE_BYTES = 256 * 2**20


class _Head(msgspec.Struct):
    schema: str = ""


def read_report(path: Path) -> Report:
    """The report in a file; raises InputError, of one line, for anything else."""
    where = str(path)
    try:
        check_regular(path)
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise InputError(Problem(where=where, what="is larger than 256 MiB; no report is"))
        found = msgspec.json.decode(text, type=_Head).schema
        if found != SCHEMA:
            what = f"is of schema {shown(found)}, not {SCHEMA}" if found else "is no report of hsplan"
            raise InputError(Problem(where=where, what=f"{what}: write it again with this version"))
        report = msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(Problem(where=where, what=f"is no report of hsplan: {shown(str(error))}")) from None
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where=where, what=f"cannot be read: {shown(reason)}")) from None
    wrong = _wrong(report)
    if wrong:
        raise InputError(Problem(where=where, what=f"is no report of hsplan: {wrong}"))
    return report


def _wrong(report: Report) -> str:
    """What types cannot say: names are unique, an entry has one of its halves, and what is launched has figures."""
    for name, count in Counter(entry.name for entry in report.specs).items():
        if count > 1:
            return f"{shown(name)} stands twice"
    for entry in report.specs:
        if (entry.planned is None) == (entry.refused is None):
            return f"{shown(entry.name)} is not either planned or refused"
        if entry.planned is not None and entry.planned.scenarios.get(entry.planned.as_launched) is None:
            return f"{shown(entry.name)} has no figures as launched"
    return ""
