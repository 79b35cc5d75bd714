"""Plain moves of single rows over the host link, by pointer: what swap-in and backup are measured against."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hsplan_kernels.arrays import INTEGERS, check_array, check_pool

UNITS_PER_TILE = 512  # of 16 bytes: 8 KiB in flight a program
PROGRAMS = 32  # fastest over large pools on an H200, where 64 to 528 are slower; 16 fill the link over small ones
WARPS = 8


def gather_rows(host: torch.Tensor, device: torch.Tensor, rows: torch.Tensor) -> None:
    """
    Copy row `rows[i]` of `host` to row i of `device`.

    `host`: uint8 [H, row_bytes], pinned; `device`: uint8 [n or more, row_bytes]; both start at multiples of 16 bytes.
    `rows`: int32 or int64 [n] on the device. Rows of `device` whose id is negative or past the host's stay as they
    are. No host sync and no allocation: may be captured in a CUDA graph.

    Raises ValueError for rows that are no multiple of 16 bytes, for arrays of other types, with gaps or with another
    start, and for shapes that do not fit together.
    """
    _launch(host, device, rows, to_host=False)


def scatter_rows(device: torch.Tensor, host: torch.Tensor, rows: torch.Tensor) -> None:
    """
    Copy row i of `device` to row `rows[i]` of `host`; arrays, skipped ids and errors as in `gather_rows`.

    A row that occurs twice gets the bytes of either entry, mixed.
    """
    _launch(host, device, rows, to_host=True)


def _launch(host: torch.Tensor, device: torch.Tensor, rows: torch.Tensor, *, to_host: bool) -> None:
    check_pool("host", host)
    check_pool("device", device)
    n, row_bytes = rows.numel(), host.shape[1]
    check_array("rows", rows, (n,), *INTEGERS)
    if device.shape[0] < n or device.shape[1] != row_bytes:
        raise ValueError(f"{n} rows of {row_bytes} bytes do not fit a device array of {list(device.shape)}")
    tiles = triton.cdiv(n * (row_bytes // 16), UNITS_PER_TILE)
    if tiles:
        _move[(min(tiles, PROGRAMS),)](
            host.view(torch.int64),
            device.view(torch.int64),
            rows,
            n,
            host.shape[0],
            TO_HOST=to_host,
            UNITS=row_bytes // 16,
            TILE=UNITS_PER_TILE,
            num_warps=WARPS,
        )


@triton.jit(do_not_specialize=["n", "host_rows"])
def _move(
    p_host: tl.tensor,
    p_device: tl.tensor,
    p_rows: tl.tensor,
    n: tl.tensor,
    host_rows: tl.tensor,
    TO_HOST: tl.constexpr,
    UNITS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    total = n.to(tl.int64) * UNITS
    o_word = tl.arange(0, 2)
    first = tl.program_id(0).to(tl.int64) * TILE
    for start in range(first, total, tl.num_programs(0) * TILE):
        o_unit = start + tl.arange(0, TILE)
        inside = o_unit < total
        row = tl.load(p_rows + o_unit // UNITS, mask=inside, other=-1).to(tl.int64)
        valid = (inside & (row >= 0) & (row < host_rows))[:, None]
        o_host = ((row * UNITS + o_unit % UNITS) * 2)[:, None] + o_word[None, :]  # [TILE, 2] words of 8 bytes
        o_device = (o_unit * 2)[:, None] + o_word[None, :]
        if TO_HOST:
            words = tl.load(p_device + o_device, mask=valid, other=0)
            tl.store(p_host + o_host, words, mask=valid)
        else:
            words = tl.load(p_host + o_host, mask=valid, other=0)
            tl.store(p_device + o_device, words, mask=valid)
