"""The link curve of a machine: what `hsplan validate --json` measured goes in, a `Curve` to plan with comes out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem, shown
from hsplan.files import read_file, reason_of
from hsplan.linkrate import Curve, Point, grids_of

SCHEMAS = ("hsplan.measurement/1", "hsplan.ranks/1")
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


class _SharedRate(_Rate, kw_only=True):
    """`together_gb_s`: of each rank, with all of them at once."""

    together_gb_s: Annotated[tuple[Annotated[float, Meta(gt=0, le=1e6)], ...], Meta(min_length=1)]
    gb_s: float = 0


class _Rank(msgspec.Struct):
    measurement: _Measured


class _Ranks(msgspec.Struct):
    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1)]
    link: tuple[_SharedRate, ...]


def read_curve(path: Path, where: str) -> Curve:
    """
    The gathers of random rows in a measurement, as they are; of several ranks those of the slowest, all at once.

    Raises InputError at `where` for a file that cannot be read, is no measurement, or holds no gathers.
    """
    try:
        stamp = path.stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    except InputError as error:
        raise InputError([msgspec.structs.replace(problem, where=where) for problem in error.problems]) from None
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where=where, what=f"{shown(str(path))} cannot be read: {shown(reason)}")) from None


@lru_cache(maxsize=16)
def _read(path: Path, _mtime_ns: int, _size: int) -> Curve:
    """One reading for the many plans of a search; time and size tell a file that was written anew."""
    name = shown(str(path))
    text = read_file(path, MAX_FILE_BYTES)
    try:
        gpu, ranks, rates = _measured(text, name)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(Problem(what=f"{name} is no measurement: {shown(str(error))}", remedy=REMEDY)) from None
    of_ranks = f" (the slowest of {ranks} ranks at once)" if ranks > 1 else ""
    points = [
        Point(rate.row_bytes, rate.pool_bytes, rate.rows, rate.gb_s)
        for rate in rates
        if (rate.driver, rate.direction, rate.order) == ("gpu", "h2d", "random")
        and rate.row_bytes and rate.pool_bytes and rate.rows
    ]  # fmt: skip
    if not points:
        what = f"{name} holds no gathers of random rows: nothing was measured without --gpu"
        raise InputError(Problem(what=what, remedy=REMEDY))
    return Curve(source=f"{gpu}, {shown(path.name)}{of_ranks}", gpu=gpu, link_gb_s=None, grids=grids_of(points))


def _measured(text: bytes, name: str) -> tuple[str, int, tuple[_Rate, ...]]:
    """GPU, ranks, and rates of a measurement: of several ranks those of the slowest, with all of them at once."""
    data = msgspec.json.decode(text, type=dict[str, Any])
    match data.get("schema"):
        case "hsplan.measurement/1":
            measured = msgspec.json.decode(text, type=_Measured)
            return shown(measured.machine.gpu), 1, measured.link
        case "hsplan.ranks/1":
            ranks = msgspec.json.decode(text, type=_Ranks)
            rates = [msgspec.structs.replace(rate, gb_s=min(rate.together_gb_s)) for rate in ranks.link]
            return shown(ranks.ranks[0].measurement.machine.gpu), len(ranks.ranks), tuple(rates)
        case None:
            place = next(_places(data), None)
            if place is None:
                raise InputError(Problem(what=f"{name} is no measurement", remedy=REMEDY))
            remedy = f"its first measurement lies at {shown(place)}: save that in a file of its own"
            raise InputError(Problem(what=f"{name} is no measurement, but holds some", remedy=remedy))
        case other:
            raise InputError(Problem(what=f"{name} is no {SCHEMAS[0]}, but {shown(other)}", remedy=REMEDY))


def _places(data: Any, place: str = "", depth: int = 4) -> Iterator[str]:
    """Where in a file of results measurements lie: `cases[0].measurement`."""
    entries: list[tuple[str, Any]] = []
    if isinstance(data, dict):
        if data.get("schema") in SCHEMAS:
            yield place
            return
        entries = [(f"{place}.{key}".lstrip("."), value) for key, value in data.items()]
    elif isinstance(data, list):
        entries = [(f"{place}[{i}]", value) for i, value in enumerate(data)]
    if depth:
        for inner, value in entries:
            yield from _places(value, inner, depth - 1)
