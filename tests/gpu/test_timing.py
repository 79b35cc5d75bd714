"""Percentiles of step times, and how many pages a backup beside a step takes."""

from types import SimpleNamespace

import pytest
import torch

from hsplan.gpu.timing import _backup_pages, _percentiles
from hsplan.measurement import Percentiles


def test_percentiles_of_200_steps_are_their_101st_191st_and_199th_time():
    assert _percentiles([float(value) for value in range(200, 0, -1)]) == Percentiles(101.0, 191.0, 199.0)


def test_percentiles_of_one_step_are_its_time():
    assert _percentiles([5.0]) == Percentiles(5.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("step_us", "pages"),
    [
        (1000, 595),  # 50 GB/s for 1 ms are 50,000,000 B, a page of two layers 83,968 B
        (100_000, 1000),  # no more than the pools have
        (0.1, 1),
    ],
)
def test_a_backup_is_as_long_as_a_step(step_us, pages):
    layers = [torch.empty((64_000, 0)), torch.empty((64_063, 0))]
    decode = SimpleNamespace(sizes=SimpleNamespace(page_tokens=64, row_bytes=656), kv=layers, host=layers)
    assert _backup_pages(decode, step_us) == pages
