"""Time of the swap-in of whole decode steps: eager, under graph replay, and beside a backup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from hsplan.gpu.decode import Decode
from hsplan.gpu.group import Alone, Report
from hsplan.gpu.link import Start, ceiling
from hsplan.measurement import LinkRate, Percentiles, Timing
from hsplan_kernels import backup

Mode = Literal["eager", "graph", "graph, backup"]
MODES: tuple[Mode, ...] = ("eager", "graph", "graph, backup")
STEPS = 200
ALONE_STEPS = 50
BACKUP_GB_S = 50  # enough prompt pages are under way to keep the link's other direction busy for a whole step


def time_steps(
    decode: Decode,
    alone: tuple[LinkRate, ...],
    together: tuple[LinkRate, ...],
    report: Report,
    group: Alone,
) -> tuple[tuple[Timing, ...], tuple[Timing, ...]]:
    """
    Time more steps of the trace; lengths stay as they are.

    First 50 by graph replay while the other ranks of `group` on this machine wait, against the link rates `alone`;
    none without other ranks. Then 200 in each mode, each with a common start of all ranks, against those `together`.
    """
    decode.advance_ids()
    decode.swap_in()  # compiled and warm before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode.swap_in()
    first: tuple[Timing, ...] = ()
    if group.size > 1:
        timing = group.in_turn(
            lambda: _timed(decode, alone, "graph", graph.replay, 0, ALONE_STEPS, lambda: None), "timing"
        )
        first = (timing,)
    pages = 0
    found = []
    for at, mode in enumerate(MODES):
        swap_in = decode.swap_in if mode == "eager" else graph.replay
        timing = _timed(decode, together, mode, swap_in, pages, STEPS, group.meet)
        pages = _backup_pages(decode, timing.step_us.p50)
        found.append(timing)
        report("timing", at + 1, len(MODES))
    return first, tuple(found)


def _timed(
    decode: Decode,
    rates: tuple[LinkRate, ...],
    mode: Mode,
    swap_in: Callable[[], None],
    pages: int,
    steps: int,
    together: Start,
) -> Timing:
    """Time `steps` steps, ahead of each of which `together` is called."""
    sizes, side = decode.sizes, torch.cuda.Stream()
    times, rows = [], []
    for _ in range(steps):
        decode.advance_ids()
        torch.cuda.synchronize()
        together()
        if mode == "graph, backup":
            _start_backup(decode, side, pages)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        swap_in()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
        counts = torch.stack([plan.counts for plan in decode.plans]).sum(1).tolist()
        rows.append(sum(counts[group] for group in sizes.owner_of))
    layers, total = len(decode.kv), sum(rows)
    layer_bytes = sizes.requests * sizes.request_pages * sizes.page_tokens * sizes.row_bytes
    return Timing(
        mode=mode,
        steps=steps,
        step_us=_percentiles(times),
        call_us=_percentiles([us / layers for us in times]),
        gb_s=total * sizes.row_bytes / sum(times) / 1000,
        ceiling_gb_s=ceiling(rates, pool_bytes=layer_bytes, rows=max(total // (steps * layers), 1)),
    )


def _backup_pages(decode: Decode, step_us: float) -> int:
    """Pages of a prompt that take the other direction of the link as long as a step takes."""
    sizes = decode.sizes
    page_bytes = sizes.page_tokens * sizes.row_bytes * len(decode.kv)
    most = min(layer.shape[0] for layer in (*decode.kv, *decode.host)) // sizes.page_tokens
    return max(1, min(int(step_us * BACKUP_GB_S * 1000 / page_bytes), most))


def _start_backup(decode: Decode, side: torch.cuda.Stream, pages: int) -> None:
    """Stage a prompt of `pages` pages with the copy engine; it overwrites rows that are not checked any more."""
    numbers = list(range(pages))
    backup.stage_pages(
        decode.kv, decode.host, numbers, numbers,
        page_tokens=decode.sizes.page_tokens, row_bytes=decode.sizes.row_bytes, stream=side,
    )  # fmt: skip


def _percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(*(ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.95, 0.99)))
