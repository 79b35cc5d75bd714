"""Rows beyond 2^31 bytes of a pool: loaded and backed up by 64-bit offsets, and nowhere else."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

import torch

from hsplan.gpu.faults import Fault
from hsplan.gpu.place import Place
from hsplan_kernels import backup, pattern, swap_in
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import pointer_table
from hsplan_kernels.state import new_plan

BOUNDARY_BYTES = 2**31


def wrong_far_rows(row_bytes: int, place: Place, fault: Fault | None = None) -> int:
    """
    Of five rows around 2^31 bytes and at both ends of a pool, those that a load or a backup gets wrong (10 at most).

    Both pools reach beyond 2^31 bytes. On the CPU they are mapped and touched at those rows only.
    """
    boundary = BOUNDARY_BYTES // row_bytes
    rows = boundary + 64
    far = torch.tensor([0, boundary - 1, boundary, boundary + 1, rows - 1], device=place.device)
    tokens, request = torch.arange(5, dtype=torch.int32, device=place.device), torch.zeros(1, dtype=torch.int32)
    request, wrong = request.to(place.device), torch.zeros(1, dtype=torch.int32, device=place.device)
    with _far_pool(rows, row_bytes, place) as host:
        device = _far_rows(rows, row_bytes) if not place.is_gpu else torch.empty_like(host, device=place.device)
        pattern.fill_rows(host, far[None], tokens[None], request, 0)
        swap_plan = new_plan(1, 8, place.device)
        swap_plan.src[0, :5] = _wrapped(far, row_bytes) if fault == "int32-offsets" else far
        swap_plan.dst[0, :5] = far.to(torch.int32)
        swap_plan.counts.fill_(5)
        swap_in.copy_planned(swap_plan, host, device)
        pattern.count_wrong_rows(device, far[None], tokens[None], request, 0, wrong)
        pattern.fill_rows(device, far[None], tokens[None] + 5, request, 0)
        backup.backup_rows(
            pointer_table([device]), pointer_table([host], place.device), far, far, swap_plan.counts,
            row_bytes=row_bytes, num_layers=1, device_rows=rows, host_rows=rows,
        )  # fmt: skip
        pattern.count_wrong_rows(host, far[None], tokens[None] + 5, request, 0, wrong)
        place.settle()
        return int(wrong)


def _wrapped(rows: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """The rows that 32-bit byte offsets would reach, kept inside the pool."""
    offsets = (rows * row_bytes + BOUNDARY_BYTES) % 2**32 - BOUNDARY_BYTES
    return (offsets // row_bytes).clamp(min=0)


@contextlib.contextmanager
def _far_pool(rows: int, row_bytes: int, place: Place) -> Iterator[torch.Tensor]:
    if not place.is_gpu:
        yield _far_rows(rows, row_bytes)
        return
    with HostPool(1, rows, row_bytes) as pool:
        yield pool.layers[0]


def _far_rows(rows: int, row_bytes: int) -> torch.Tensor:
    """Rows that take no memory until they are touched."""
    return torch.frombuffer(mmap.mmap(-1, rows * row_bytes), dtype=torch.uint8).view(rows, row_bytes)
