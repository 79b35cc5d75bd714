"""Rows beyond 2^31 bytes: right with 64-bit offsets, found wrong with 32-bit ones, and cheap to check on the CPU."""

from pathlib import Path

import pytest
import torch

from hsplan.gpu import offsets
from hsplan.gpu.offsets import wrong_far_rows
from hsplan.gpu.place import Place

MIB = 2**20


@pytest.mark.parametrize("row_bytes", [656, 1152, 512])
def test_rows_on_either_side_of_2_gib_are_loaded_and_backed_up(device, row_bytes):
    assert wrong_far_rows(row_bytes, Place(device)) == 0


@pytest.mark.parametrize(
    ("row_bytes", "wrong"),
    [
        (656, 2),  # row 3,273,603 begins 80 bytes before 2^31: the two behind it are out of reach
        (512, 3),  # row 4,194,304 begins at 2^31
    ],
)
def test_offsets_of_32_bits_miss_the_rows_that_begin_beyond(device, row_bytes, wrong):
    assert wrong_far_rows(row_bytes, Place(device), "int32-offsets") == wrong


def test_other_faults_leave_the_far_rows_alone(device):
    assert wrong_far_rows(656, Place(device), "truncated-row") == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="pinned memory is taken whole")
def test_on_the_cpu_only_the_rows_that_are_touched_take_memory(monkeypatch):
    held = []
    make = offsets._far_rows
    monkeypatch.setattr(offsets, "_far_rows", lambda *args: held.append(make(*args)) or held[-1])
    before = resident_bytes()
    wrong_far_rows(656, Place("cpu"))
    assert [rows.numel() > 2**31 for rows in held] == [True, True]
    assert resident_bytes() - before < 64 * MIB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
