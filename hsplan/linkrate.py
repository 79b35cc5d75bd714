"""
How fast a GPU reads scattered rows of host memory: a function of row bytes, pool and rows a call, not one number.

The shipped curve was measured on one H200 (PCIe 5 x16) by `hsplan validate`; cards with another link are scaled by its
nominal rate. `hsplan.linkcurve` reads one that was measured on the machine to be planned.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from hsplan.hardware import Gpu

DATA = Path(__file__).with_name("data") / "linkrate-pcie5.json"


class Point(msgspec.Struct, frozen=True):
    """One measured gather: rows of `row_bytes` out of a pool of `pool_bytes`, `rows` a call, useful GB/s."""

    row_bytes: int
    pool_bytes: int
    rows: int
    gb_s: float


class Measured(msgspec.Struct, frozen=True):
    """Points of a link of nominal `link_gb_s`, and where they come from."""

    link_gb_s: int
    source: str
    rates: tuple[Point, ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """
    Gathers as measured: `grids` is {row bytes: {pool bytes: {rows a call: GB/s}}}, `source` says where.

    `link_gb_s` is the nominal rate of the link they were measured on; None: they are of the planned machine itself.
    """

    source: str
    link_gb_s: int | None
    grids: dict[int, dict[int, dict[int, float]]]

    def gather_gb_s(self, gpu: Gpu, *, row_bytes: int, pool_bytes: int, rows: int) -> float:
        """GB/s (10^9 useful bytes) of random rows of one layer's pool, between row sizes as between all else."""
        by_row = {size: interpolated(grid, pool_bytes=pool_bytes, rows=rows) for size, grid in self.grids.items()}
        return _between(by_row, row_bytes) * (gpu.link_gb_s / self.link_gb_s if self.link_gb_s else 1)


@cache
def shipped_curve() -> Curve:
    """The curve that holds where none is given."""
    measured = msgspec.json.decode(DATA.read_bytes(), type=Measured)
    return Curve(source=measured.source, link_gb_s=measured.link_gb_s, grids=grids_of(measured.rates))


def grids_of(points: Iterable[Point]) -> dict[int, dict[int, dict[int, float]]]:
    """Points as {row bytes: {pool bytes: {rows a call: GB/s}}}."""
    grids: dict[int, dict[int, dict[int, float]]] = {}
    for point in points:
        grids.setdefault(point.row_bytes, {}).setdefault(point.pool_bytes, {})[point.rows] = point.gb_s
    return grids


def interpolated(grid: Mapping[int, Mapping[int, float]], *, pool_bytes: int, rows: int) -> float:
    """
    GB/s at a point of `grid`, {pool bytes: {rows a call: GB/s}}, which has the same rows for each pool.

    Between measured points the logarithm of the rate goes in a straight line over the logarithm of the rows, then of
    the pool: both span decades, and what slows a gather (rows too few to fill the link, addresses too many for the
    translation caches) sets in by factors, not by steps. Outside the measured range the nearest end holds, since a
    rate never grows past either plateau.
    """
    return _between({size: _between(by_rows, rows) for size, by_rows in grid.items()}, pool_bytes)


def _between(points: Mapping[int, float], x: int) -> float:
    """The value at x: a straight line in log-log between two points, the nearest point's outside them."""
    known = sorted(points)
    if x <= known[0] or x >= known[-1]:
        return points[known[0] if x <= known[0] else known[-1]]
    right = bisect.bisect_right(known, x)
    low, high = known[right - 1], known[right]
    share = math.log(x / low) / math.log(high / low)
    return points[low] * math.pow(points[high] / points[low], share)
