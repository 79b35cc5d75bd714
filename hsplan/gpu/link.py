"""What the host link of this machine gives: sizes go in, measured ceilings come out, and one between them on demand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from hsplan.gpu.group import Alone
from hsplan.linkrate import interpolated
from hsplan.measurement import LinkRate
from hsplan.units import GIB, MIB, ceil_div
from hsplan_kernels.gather import gather_rows, scatter_rows
from hsplan_kernels.host_pool import HostPool

COPY_BYTES = GIB
GRAPH_BYTES = 16 * MIB  # a graph moves at least so much: 0.3 ms, beside which its launch does not count
MIN_CALLS, MAX_CALLS = 8, 64
WARM_UP, REPEATS = 3, 15

Order = Literal["random", "sorted"]
Progress = Callable[[int, int], None]
Start = Callable[[], None]


def measure_link(
    *, row_bytes: int, pool_bytes: tuple[int, ...], rows_per_call: tuple[int, ...], progress: Progress, group: Alone
) -> tuple[tuple[LinkRate, ...], tuple[LinkRate, ...]]:
    """
    Rates of the current GPU's host link, each the median of 15 repeats after 3, in GB (10^9 useful bytes) a second.

    The copy engine both ways over 1 GiB; a gather of `rows_per_call` rows of `row_bytes`, a multiple of 16, for each
    of `pool_bytes` and in either order; a scatter of the most rows into the largest pool. Takes as much host memory
    as the largest pool, at least 1 GiB. `progress(done, total)` is called after each rate.

    All rates twice: while the other ranks of `group` on this machine wait, then on all ranks at once, each rate with
    a common start. The same figures both times without other ranks.

    Raises HostMemoryError where the machine does not give the memory; all of it is given back on every way out.
    """
    pools, counts = tuple(sorted(set(pool_bytes))), tuple(sorted(set(rows_per_call)))
    with HostPool(1, ceil_div(max(pools[-1], COPY_BYTES), row_bytes), row_bytes) as pool:
        host = pool.layers[0]
        alone = group.in_turn(lambda: _rates(host, pools, counts, progress, lambda: None), "link")
        together = _rates(host, pools, counts, progress, group.meet) if group.size > 1 else alone
        group.meet()  # nobody gives memory back while another one measures
    torch.cuda.empty_cache()
    return alone, together


def _rates(
    host: torch.Tensor, pools: tuple[int, ...], counts: tuple[int, ...], progress: Progress, start: Start
) -> tuple[LinkRate, ...]:
    """The rates of `measure_link` out of `host` uint8 [pool rows, row_bytes]; `start` is called ahead of each."""
    row_bytes = host.shape[1]
    rates: list[LinkRate] = []

    def add(rate: LinkRate) -> None:
        rates.append(rate)
        progress(len(rates), 2 + 2 * len(pools) * len(counts) + 1)

    buffer = host.view(-1)[:COPY_BYTES]
    add(LinkRate(driver="copy_engine", direction="h2d", gb_s=_copy_gb_s(buffer, start, to_host=False)))
    add(LinkRate(driver="copy_engine", direction="d2h", gb_s=_copy_gb_s(buffer, start, to_host=True)))
    orders: tuple[Order, ...] = ("random", "sorted")
    for size in pools:
        part = host[: size // row_bytes]
        for rows in counts:
            for order in orders:
                add(_rows_rate(part, size, rows, order, start, to_host=False))
    add(_rows_rate(host[: pools[-1] // row_bytes], pools[-1], counts[-1], "random", start, to_host=True))
    return tuple(rates)


def ceiling(rates: Sequence[LinkRate], *, pool_bytes: int, rows: int) -> float:
    """
    GB/s of a plain gather of `rows` random rows a call out of a pool of `pool_bytes`.

    By `hsplan.linkrate.interpolated`; the pools must have been measured with the same rows per call.

    Raises ValueError without gathers in random order.
    """
    grid: dict[int, dict[int, float]] = {}
    for rate in rates:
        if (rate.driver, rate.direction, rate.order) == ("gpu", "h2d", "random") and rate.pool_bytes and rate.rows:
            grid.setdefault(rate.pool_bytes, {})[rate.rows] = rate.gb_s
    if not grid:
        raise ValueError("no gather of random rows was measured")
    return interpolated(grid, pool_bytes=pool_bytes, rows=rows)


def _calls(rows: int, row_bytes: int) -> int:
    """Calls in one graph: as many as move 16 MiB, between 8 and 64."""
    return min(max(ceil_div(GRAPH_BYTES, rows * row_bytes), MIN_CALLS), MAX_CALLS)


def _copy_gb_s(host: torch.Tensor, start: Start, *, to_host: bool) -> float:
    device = torch.empty_like(host, device="cuda")
    target, source = (host, device) if to_host else (device, host)
    return host.numel() / _median_ms(lambda: target.copy_(source, non_blocking=True), start) / 10**6


def _rows_rate(
    host: torch.Tensor, pool_bytes: int, rows: int, order: Order, start: Start, *, to_host: bool
) -> LinkRate:
    """One rate between `host` uint8 [pool rows, row_bytes] and as many rows of the device as one call takes."""
    pool_rows, row_bytes = host.shape
    calls = _calls(rows, row_bytes)
    device = torch.zeros((rows, row_bytes), dtype=torch.uint8, device="cuda")
    ids = torch.zeros((calls, rows), dtype=torch.int64, device="cuda")

    def draw() -> None:
        ids.random_(0, pool_rows)
        if order == "sorted":
            ids.copy_(ids.sort(dim=1).values)

    def move_all() -> None:
        for call in range(calls):
            if to_host:
                scatter_rows(device, host, ids[call])
            else:
                gather_rows(host, device, ids[call])

    draw()
    move_all()  # compiles the kernel, which a capture does not allow
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        move_all()
    return LinkRate(
        driver="gpu",
        direction="d2h" if to_host else "h2d",
        gb_s=calls * rows * row_bytes / _median_ms(graph.replay, start, before=draw) / 10**6,
        row_bytes=row_bytes,
        pool_bytes=pool_bytes,
        rows=rows,
        order=order,
    )


def _median_ms(action: Callable[[], object], start: Start, before: Callable[[], object] = lambda: None) -> float:
    """
    Median milliseconds of `action` on the GPU; `before` runs ahead of each and is not timed, `start` once.

    All is queued at once: the GPU is busy with one repeat while the next is launched, so launches do not count.
    """
    events = []
    torch.cuda.synchronize()
    start()
    for _ in range(WARM_UP + REPEATS):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before()
        began.record()
        action()
        ended.record()
        events.append((began, ended))
    torch.cuda.synchronize()
    return float(statistics.median(began.elapsed_time(ended) for began, ended in events[WARM_UP:]))
