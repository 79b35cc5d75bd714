"""
Backup: rows of new tokens from the device pools of all layers to the host pools.

A kernel scatters single rows, the copy engine stages whole pages, `BackupStream` orders both between two forwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from hsplan_kernels.arrays import INTEGERS, check_array, check_numbers, check_row_bytes

UNITS_PER_TILE = 512  # of 16 bytes: 8 KiB in flight a program
PROGRAMS = 32  # gathers fill an H200's link from 16 on (measured); the rest of the GPU is for the forward pass
WARPS = 8
MAX_COPIES = 2**31 - 1  # a row copy has an int32 number in the kernel


def backup_rows(
    device_table: torch.Tensor,
    host_table: torch.Tensor,
    src_rows: torch.Tensor,
    dst_rows: torch.Tensor,
    count: torch.Tensor,
    *,
    row_bytes: int,
    num_layers: int,
    device_rows: int,
    host_rows: int,
) -> None:
    """
    Copy row `src_rows[i]` of every device layer to row `dst_rows[i]` of the same host layer, for i < `count`.

    `device_table`, `host_table`: int64 [num_layers], addresses of layers of `device_rows` and `host_rows` rows.
    `src_rows`, `dst_rows`: int32 or int64 [n]; `count`: int32 [1]; entries from `count` on are padding. All tensors
    lie on the device. An entry with either row negative or past its pool is skipped. Rows of `dst_rows` that occur
    twice get the bytes of either entry, mixed. No host sync and no allocation: may be captured in a CUDA graph.

    Raises ValueError for rows that are no multiple of 16 bytes, for tensors of other shapes or types or with gaps, and
    for more than 2^31 − 1 row copies.
    """
    n = src_rows.numel()
    check_row_bytes(row_bytes)
    if n * num_layers > MAX_COPIES:
        raise ValueError(f"{n} rows of {num_layers} layers: give at most {MAX_COPIES} row copies a call")
    check_array("device_table", device_table, (num_layers,), torch.int64)
    check_array("host_table", host_table, (num_layers,), torch.int64)
    check_array("src_rows", src_rows, (n,), *INTEGERS)
    check_array("dst_rows", dst_rows, (n,), *INTEGERS)
    check_array("count", count, (1,), torch.int32)
    tiles = triton.cdiv(n * num_layers * (row_bytes // 16), UNITS_PER_TILE)
    if tiles:
        _backup[(min(tiles, PROGRAMS),)](
            device_table,
            host_table,
            src_rows,
            dst_rows,
            count,
            n,
            device_rows,
            host_rows,
            LAYERS=num_layers,
            UNITS=row_bytes // 16,
            TILE=UNITS_PER_TILE,
            num_warps=WARPS,
        )


@triton.jit(do_not_specialize=["n", "device_rows", "host_rows"])
def _backup(
    p_device: tl.tensor,
    p_host: tl.tensor,
    p_src: tl.tensor,
    p_dst: tl.tensor,
    p_count: tl.tensor,
    n: tl.tensor,
    device_rows: tl.tensor,
    host_rows: tl.tensor,
    LAYERS: tl.constexpr,
    UNITS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    count = tl.minimum(tl.load(p_count), n)
    total = tl.maximum(count, 0).to(tl.int64) * (LAYERS * UNITS)
    o_word = tl.arange(0, 2)
    first = tl.program_id(0).to(tl.int64) * TILE
    for start in range(first, total, tl.num_programs(0) * TILE):
        o_unit = start + tl.arange(0, TILE)
        inside = o_unit < total
        pair = (o_unit // UNITS).to(tl.int32)  # layers outermost: neighbouring rows of a layer follow each other
        layer = pair // count
        entry = pair - layer * count
        src = tl.load(p_src + entry, mask=inside, other=-1).to(tl.int64)
        dst = tl.load(p_dst + entry, mask=inside, other=-1).to(tl.int64)
        valid = inside & (src >= 0) & (src < device_rows) & (dst >= 0) & (dst < host_rows)
        device = tl.load(p_device + layer, mask=inside, other=0).to(tl.pointer_type(tl.int64))
        host = tl.load(p_host + layer, mask=inside, other=0).to(tl.pointer_type(tl.int64))
        device = tl.multiple_of(device, 16)
        host = tl.multiple_of(host, 16)
        unit = o_unit % UNITS
        o_src = ((src * UNITS + unit) * 2)[:, None] + o_word[None, :]  # [TILE, 2] words of 8 bytes
        o_dst = ((dst * UNITS + unit) * 2)[:, None] + o_word[None, :]
        words = tl.load(device[:, None] + o_src, mask=valid[:, None], other=0)
        tl.store(host[:, None] + o_dst, words, mask=valid[:, None])


def stage_pages(
    device_layers: Sequence[torch.Tensor],
    host_layers: Sequence[torch.Tensor],
    device_page_ids: Sequence[int],
    host_page_ids: Sequence[int],
    *,
    page_tokens: int,
    row_bytes: int,
    stream: torch.cuda.Stream | None,
    piece_rows: int | None = None,
) -> torch.cuda.Event | None:
    """
    Copy whole pages of all layers to the host with the copy engine; runs of consecutive pages are one copy.

    Layers: uint8 [rows, row_bytes], the host's pinned; page p is rows p·page_tokens up to (p+1)·page_tokens. Page
    ids are numbers on the host; a host page that occurs twice keeps the later one. `piece_rows`: `HostPool`'s, no
    copy crosses a multiple of it. The caller orders `stream` after the producer, as `BackupStream` does. Returns the
    event that ends the copies, None without a stream (CPU: they are done).

    Raises ValueError, before anything is copied, for lists of unequal length, for a page that is not whole inside its
    pool, for layers that do not fit the rows, and for pages or pieces without rows.
    """
    check_numbers(page_tokens=page_tokens)
    if piece_rows is not None:
        check_numbers(piece_rows=piece_rows)
    if len(device_page_ids) != len(host_page_ids) or len(device_layers) != len(host_layers):
        raise ValueError("unequal numbers of pages or layers: give one of the host for each of the device")
    for side, layers, pages in (("device", device_layers, device_page_ids), ("host", host_layers, host_page_ids)):
        if any(layer.shape[1:] != (row_bytes,) or layer.dtype != torch.uint8 for layer in layers):
            raise ValueError(f"{side} layers are not uint8 [rows, {row_bytes}]")
        whole = min((layer.shape[0] // page_tokens for layer in layers), default=0)
        if outside := [page for page in pages if not 0 <= page < whole]:
            raise ValueError(f"{side} page {outside[0]} of {whole}: give whole pages of the pool")
    runs = list(_runs(device_page_ids, host_page_ids, page_tokens, piece_rows))
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        for device, host in zip(device_layers, host_layers, strict=True):
            for src, dst, rows in runs:
                host[dst : dst + rows].copy_(device[src : src + rows], non_blocking=True)
    return None if stream is None else stream.record_event()


class BackupStream:
    """
    A side stream for backups: after the producer of the rows, before the next forward pass that may overwrite them.

        with backups.after(producer, src_rows, dst_rows, count, *device_layers):
            backup_rows(...)
        backups.hold(consumer)

    `stream` and `event` (the end of the last backup) are None on the CPU, where all is in order. Under CUDA-graph
    capture both calls belong into one graph: an event recorded inside cannot be waited for outside.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.stream = torch.cuda.Stream(device) if torch.device(device).type == "cuda" else None
        self.event: torch.cuda.Event | None = None

    @contextlib.contextmanager
    def after(self, producer: torch.cuda.Stream | None, *tensors: torch.Tensor) -> Iterator[None]:
        """
        Run the block on the side stream, once `producer` (None: the current stream) has done what it was given so far.

        `tensors`: all that the block uses on the device; their memory is not reused before the side stream is done.
        The event is recorded on the way out, after an exception too: copies may be under way.
        """
        if self.stream is None:
            yield
            return
        self.stream.wait_event((producer or torch.cuda.current_stream()).record_event())
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            try:
                yield
            finally:
                self.event = self.stream.record_event()

    def hold(self, consumer: torch.cuda.Stream | None = None) -> None:
        """Make `consumer` (None: the current stream) wait for the last backup; before the first, nothing."""
        if self.event is not None:
            (consumer or torch.cuda.current_stream()).wait_event(self.event)


def _runs(
    device_pages: Sequence[int], host_pages: Sequence[int], page_tokens: int, piece_rows: int | None
) -> Iterator[tuple[int, int, int]]:
    pages = list(zip(device_pages, host_pages, strict=True))
    start = 0
    for end in range(1, len(pages) + 1):
        if end < len(pages) and pages[end] == (pages[end - 1][0] + 1, pages[end - 1][1] + 1):
            continue
        src, dst, rows = pages[start][0] * page_tokens, pages[start][1] * page_tokens, (end - start) * page_tokens
        while rows:
            taken = min(rows, piece_rows - dst % piece_rows) if piece_rows else rows
            yield src, dst, taken
            src, dst, rows = src + taken, dst + taken, rows - taken
        start = end
