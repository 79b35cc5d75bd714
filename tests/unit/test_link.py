"""Rates between measured ones, by hand; the measurement itself needs a GPU (tests/gpu/test_measure_link.py)."""

import pytest

from hsplan.measurement import LinkRate

pytest.importorskip("torch")
pytest.importorskip("triton")

from hsplan.gpu import link
from hsplan.gpu.link import ceiling

GIB = 2**30


def gather(pool_gib, rows, gb_s, *, order="random", direction="h2d"):
    return LinkRate(
        driver="gpu",
        direction=direction,
        gb_s=gb_s,
        row_bytes=656,
        pool_bytes=pool_gib * GIB,
        rows=rows,
        order=order,
    )


RATES = (
    LinkRate(driver="copy_engine", direction="h2d", gb_s=55.0),
    gather(1, 100, 32.0),
    gather(1, 10_000, 50.0),
    gather(4, 100, 18.0),
    gather(4, 10_000, 32.0),
    gather(1, 100, 99.0, order="sorted"),
    gather(1, 100, 99.0, direction="d2h"),
)


@pytest.mark.parametrize(
    ("pool_gib", "rows", "gb_s"),
    [
        (1, 100, 32.0),
        (4, 10_000, 32.0),
        (1, 1_000, 40.0),  # halfway in decades: √(32 · 50)
        (4, 1_000, 24.0),  # √(18 · 32)
        (2, 100, 24.0),  # √(32 · 18)
        (2, 10_000, 40.0),  # √(50 · 32)
        (2, 1_000, 960**0.5),  # √(40 · 24)
    ],
)
def test_a_rate_between_measured_ones_lies_on_a_line_of_logarithms(pool_gib, rows, gb_s):
    assert ceiling(RATES, pool_bytes=pool_gib * GIB, rows=rows) == pytest.approx(gb_s, rel=1e-12)


def test_the_line_is_straight_off_the_middle_too():
    rates = (gather(1, 16, 4.0), gather(1, 256, 64.0))  # four doublings, and four of the rate
    assert ceiling(rates, pool_bytes=GIB, rows=32) == pytest.approx(8.0)
    assert ceiling(rates, pool_bytes=GIB, rows=128) == pytest.approx(32.0)


def test_the_nearest_of_three_points_on_either_side_count():
    rates = (gather(1, 10, 1.0), gather(1, 40, 4.0), gather(1, 160, 64.0))
    assert ceiling(rates, pool_bytes=GIB, rows=20) == pytest.approx(2.0)
    assert ceiling(rates, pool_bytes=GIB, rows=40) == pytest.approx(4.0)
    assert ceiling(rates, pool_bytes=GIB, rows=80) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("pool_bytes", "rows", "gb_s"),
    [(1, 1, 32.0), (GIB, 2**31, 50.0), (2**50, 1, 18.0), (2**50, 2**31, 32.0), (2**50, 1_000, 24.0)],
)
def test_outside_the_measured_range_its_end_holds(pool_bytes, rows, gb_s):
    assert ceiling(RATES, pool_bytes=pool_bytes, rows=rows) == pytest.approx(gb_s)


def test_one_gather_is_the_ceiling_of_all():
    assert ceiling([gather(4, 100, 18.0)], pool_bytes=GIB, rows=7) == 18.0


def test_without_a_gather_there_is_no_ceiling():
    with pytest.raises(ValueError, match="no gather of random rows was measured"):
        ceiling([RATES[0], RATES[-1], RATES[-2]], pool_bytes=GIB, rows=100)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "calls"),
    [
        (17_536, 656, 8),  # 11,503,616 bytes: two calls would do
        (4_384, 656, 8),  # 2,875,904 bytes: six would do
        (2_048, 656, 13),  # 1,343,488 · 12 < 16,777,216 < 1,343,488 · 13
        (256, 656, 64),  # 167,936 bytes: a hundred would do
        (1_024, 1_024, 16),
    ],
)
def test_a_graph_holds_several_calls_and_enough_bytes_to_time(rows, row_bytes, calls):
    assert link._calls(rows, row_bytes) == calls
