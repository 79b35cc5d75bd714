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
    """Points of the link of a `gpu`, nominally `link_gb_s`, and where they come from."""

    gpu: str
    link_gb_s: int
    source: str
    rates: tuple[Point, ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """
    Gathers as measured: `grids` is {row bytes: {pool bytes: {rows a call: GB/s}}}, `source` says where.

    `gpu` is the card they were measured on, by the name of `hsplan.hardware` in the shipped curve, as its driver says
    in others. `link_gb_s` is the nominal rate of its link; None: they are of the planned machine itself.
    """

    source: str
    gpu: str
    link_gb_s: int | None
    grids: dict[int, dict[int, dict[int, float]]]

    def gather_gb_s(self, gpu: Gpu, *, row_bytes: int, pool_bytes: int, rows: int) -> float:
        """
        GB/s (10^9 useful bytes) of random rows of one layer's pool, between row sizes as between all else.

        Beyond the row sizes of a machine's own curve that of the nearest is converted: by the ratio that the shipped
        curve has between the two, at the same pool and rows. GB/s of larger rows are higher.
        """
        gb_s = self.measured_at(row_bytes, pool_bytes, rows)
        if self.link_gb_s is not None:
            return gb_s * gpu.link_gb_s / self.link_gb_s
        nearest, shipped = self.nearest(row_bytes), shipped_curve()
        if nearest == row_bytes:
            return gb_s
        return gb_s * shipped.measured_at(row_bytes, pool_bytes, rows) / shipped.measured_at(nearest, pool_bytes, rows)

    def nearest(self, row_bytes: int) -> int:
        """The row size itself between those that were measured, else the nearest of them."""
        return min(max(row_bytes, min(self.grids)), max(self.grids))

    def measured_at(self, row_bytes: int, pool_bytes: int, rows: int) -> float:
        """GB/s on the card of the measurement, the nearest row size's beyond those that were measured."""
        by_row = {size: interpolated(grid, pool_bytes=pool_bytes, rows=rows) for size, grid in self.grids.items()}
        return _between(by_row, row_bytes)


@cache
def shipped_curve() -> Curve:
    """The curve that holds where none is given."""
    measured = msgspec.json.decode(DATA.read_bytes(), type=Measured)
    return Curve(source=measured.source, gpu=measured.gpu, link_gb_s=measured.link_gb_s, grids=grids_of(measured.rates))


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
