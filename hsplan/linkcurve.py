"""The link curve of a machine: what `hsplan validate --json` measured goes in, a `Curve` to plan with comes out."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem, shown
from hsplan.files import read_file
from hsplan.linkrate import Curve, Point, grids_of

SCHEMA = "hsplan.measurement/1"
MAX_FILE_BYTES = 2**20
REMEDY = "measure one with `hsplan validate SPEC --gpu --json -o FILE`"

Count = Annotated[int, Meta(ge=1, le=2**60)]


class _Rate(msgspec.Struct):
    driver: str
    direction: str
    gb_s: Annotated[float, Meta(ge=1e-3, le=1e6)]
    row_bytes: Count | None = None
    pool_bytes: Count | None = None
    rows: Count | None = None
    order: str | None = None


class _Machine(msgspec.Struct):
    gpu: str


class _Measured(msgspec.Struct):
    machine: _Machine
    link: tuple[_Rate, ...]


def read_curve(path: Path, where: str) -> Curve:
    """
    The gathers of random rows in a measurement, as they are.

    Raises InputError at `where` for a file that cannot be read, is no measurement, or holds no gathers.
    """
    try:
        stamp = path.stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    except InputError as error:
        raise InputError([msgspec.structs.replace(problem, where=where) for problem in error.problems]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem(where=where, what=f"{shown(str(path))} cannot be read: {shown(reason)}")) from None


@lru_cache(maxsize=16)
def _read(path: Path, _mtime_ns: int, _size: int) -> Curve:
    """One reading for the many plans of a search; time and size tell a file that was written anew."""
    name = shown(str(path))
    text = read_file(path, MAX_FILE_BYTES)
    try:
        schema = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
        if schema != SCHEMA:
            found = f"{name} is no {SCHEMA}, but {shown(schema)}" if schema else f"{name} is no measurement"
            raise InputError(Problem(what=found, remedy=REMEDY))
        measured = msgspec.json.decode(text, type=_Measured)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(Problem(what=f"{name} is no measurement: {shown(str(error))}", remedy=REMEDY)) from None
    points = [
        Point(rate.row_bytes, rate.pool_bytes, rate.rows, rate.gb_s)
        for rate in measured.link
        if (rate.driver, rate.direction, rate.order) == ("gpu", "h2d", "random")
        and rate.row_bytes and rate.pool_bytes and rate.rows
    ]  # fmt: skip
    if not points:
        what = f"{name} holds no gathers of random rows: nothing was measured without --gpu"
        raise InputError(Problem(what=what, remedy=REMEDY))
    return Curve(source=f"{shown(measured.machine.gpu)}, {shown(path.name)}", link_gb_s=None, grids=grids_of(points))
