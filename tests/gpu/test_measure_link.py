"""The link as a card gives it: one rate for each figure asked for, none above what PCIe or NVLink can carry."""

import pytest
import torch

from hsplan.gpu.group import ALONE
from hsplan.gpu.link import ceiling, measure_link

MIB = 2**20

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no link without a GPU")


def test_every_figure_is_measured_and_told_of():
    seen = []
    alone, rates = measure_link(
        row_bytes=656,
        pool_bytes=(64 * MIB, 16 * MIB),
        rows_per_call=(1000, 100),
        progress=lambda done, total: seen.append((done, total)),
        group=ALONE,
    )
    assert alone == rates
    assert seen == [(done, 11) for done in range(1, 12)]
    assert [(rate.driver, rate.direction) for rate in rates] == [
        ("copy_engine", "h2d"),
        ("copy_engine", "d2h"),
        *[("gpu", "h2d")] * 8,
        ("gpu", "d2h"),
    ]
    assert [(rate.pool_bytes, rate.rows, rate.order) for rate in rates[2:6]] == [
        (16 * MIB, 100, "random"),
        (16 * MIB, 100, "sorted"),
        (16 * MIB, 1000, "random"),
        (16 * MIB, 1000, "sorted"),
    ]
    assert (rates[-1].pool_bytes, rates[-1].rows, rates[-1].order) == (64 * MIB, 1000, "random")
    assert all(0.1 < rate.gb_s < 500 for rate in rates)
    assert ceiling(rates, pool_bytes=16 * MIB, rows=100) == rates[2].gb_s
