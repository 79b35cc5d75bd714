"""
What plain TP would gain if each of N ranks read 1/N of the missed rows and the ranks exchanged them over NVLink.

    python benchmarks/exchange.py [-o FILE] [--ranks N] [--pools GIB ...] [--peer] [--tiny]

Under plain TP every rank reads the same rows over its own link. For R rows a call, scattered over a pinned pool of each
rank: `alone` one rank reads all R while the others wait, `together` all ranks read all R, `exchange` each reads R/N and
NCCL's all-gather brings the rest; with `--peer` also `push`, where the kernel that reads a row from host memory writes
it to every rank. The result is R rows in one buffer of every rank, compared byte for byte; to put them into slots of a
hot buffer is one more pass over GPU memory. CUDA-graph replay with new rows each time, medians in µs a call.

`--tiny` runs the same on Triton's interpreter and gloo, and measures nothing worth knowing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

# A multicast group that is left behind can block the NVLink of a whole host.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from hsplan.errors import HsplanError
from hsplan.gpu.group import Group
from hsplan.gpu.join import join
from hsplan.gpu.launch import launch
from hsplan.gpu.seat import Seat, end_with, seat_of
from hsplan_kernels.gather import gather_rows
from hsplan_kernels.host_pool import HostPool

GIB, MIB = 2**30, 2**20
ROW_BYTES = (576, 656, 1152)
ROWS = (16, 64, 256, 1024, 4096, 16384, 65536)
POOLS_GIB = (4, 16)
GRAPH_BYTES, MIN_CALLS, MAX_CALLS = 16 * MIB, 8, 64
WARM_UP, REPEATS = 3, 11
SPIN_CYCLES = 200_000  # 0.1 ms in which the replay is launched, so that the launch is not timed
SILENCE_S = 120.0
TINY_ROW_BYTES, TINY_ROWS, TINY_POOL_BYTES = (576,), (4, 10), 64 * 576
PUSH_TILE, PUSH_PROGRAMS, PUSH_WARPS = 512, 32, 8


ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13


@triton.jit(do_not_specialize=["n", "first", "host_rows"])
def _push(p_host, p_buffers, p_rows, n, first, host_rows, RANKS: tl.constexpr, UNITS: tl.constexpr, TILE: tl.constexpr):
    """Rows p_rows[0 … n) of the host to rows first … of the buffers of all ranks, whose addresses are p_buffers."""
    total = n.to(tl.int64) * UNITS
    o_word = tl.arange(0, 2)
    for start in range(tl.program_id(0).to(tl.int64) * TILE, total, tl.num_programs(0) * TILE):
        o_unit = start + tl.arange(0, TILE)
        row = tl.load(p_rows + o_unit // UNITS, mask=o_unit < total, other=-1)
        valid = ((o_unit < total) & (row >= 0) & (row < host_rows))[:, None]
        o_host = ((row * UNITS + o_unit % UNITS) * 2)[:, None] + o_word[None, :]
        words = tl.load(p_host + o_host, mask=valid, other=0)
        o_buffer = ((first.to(tl.int64) * UNITS + o_unit) * 2)[:, None] + o_word[None, :]
        for rank in tl.static_range(RANKS):
            p_buffer = tl.multiple_of(tl.load(p_buffers + rank).to(tl.pointer_type(tl.int64)), 16)
            tl.store(p_buffer + o_buffer, words, mask=valid)


class Peers:
    """Two buffers of each rank that all ranks write to: one is filled while the other may still be read."""

    def __init__(self, n_bytes: int) -> None:
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415 - not in every build of torch

        self.half = n_bytes
        here = torch.device("cuda", torch.cuda.current_device())
        self.buffer = symmetric.empty(2 * n_bytes, dtype=torch.uint8, device=here)
        self.handle = symmetric.rendezvous(self.buffer, dist.group.WORLD)
        self.tables = [
            torch.tensor([address + at * n_bytes for address in self.handle.buffer_ptrs], device="cuda")
            for at in range(2)
        ]


class Case:
    """R rows of one size out of one pool: the ways to bring them to every rank."""

    def __init__(self, group: Group, host: torch.Tensor, rows: int, device: str) -> None:
        self.group, self.host, self.rows, self.device = group, host, rows, device
        row_bytes = host.shape[1]
        self.part = -(-rows // group.size)  # rows that each rank reads; the last may read fewer
        self.calls = max(MIN_CALLS, min(MAX_CALLS, -(-GRAPH_BYTES // (rows * row_bytes)))) if device == "cuda" else 2
        self.ids = torch.full((self.calls, self.part * group.size), -1, dtype=torch.int64, device=device)
        self.dice = torch.Generator(device).manual_seed(rows)  # under TP all ranks miss the same rows
        self.out = torch.zeros((self.part * group.size, row_bytes), dtype=torch.uint8, device=device)
        self.mine = torch.zeros((self.part, row_bytes), dtype=torch.uint8, device=device)
        self.draw()

    def draw(self) -> None:
        """New rows for every call, the same on all ranks."""
        shape = (self.calls, self.rows)
        self.ids[:, : self.rows] = torch.randint(
            0, self.host.shape[0], shape, generator=self.dice, device=self.device
        )  # fmt: skip

    def read_all(self, call: int) -> None:
        gather_rows(self.host, self.out, self.ids[call])

    def exchange(self, call: int) -> None:
        start = self.group.rank * self.part
        gather_rows(self.host, self.mine, self.ids[call, start : start + self.part])
        ALL_GATHER(self.out, self.mine)

    def push(self, call: int, peers: Peers) -> None:
        start, units = self.group.rank * self.part, self.host.shape[1] // 16
        tiles = triton.cdiv(self.part * units, PUSH_TILE)
        _push[(min(tiles, PUSH_PROGRAMS),)](
            self.host.view(torch.int64), peers.tables[call % 2], self.ids[call, start : start + self.part],
            self.part, start, self.host.shape[0],
            RANKS=self.group.size, UNITS=units, TILE=PUSH_TILE, num_warps=PUSH_WARPS,
        )  # fmt: skip
        peers.handle.barrier(channel=0)

    def pushed(self, peers: Peers) -> torch.Tensor:
        """What the last call left in this rank's buffer."""
        at = (self.calls - 1) % 2 * peers.half
        return peers.buffer[at : at + self.out.numel()].view_as(self.out)

    def wrong_rows(self, found: torch.Tensor) -> int:
        """Rows of the last call that are not the host's."""
        wanted = self.host[self.ids[-1, : self.rows].cpu()].to(self.device)
        return int((found[: self.rows] != wanted).any(1).sum())

    def microseconds(self, call_once: Callable[[int], None], start: Callable[[], None]) -> float:
        """Median time of one call; `start` is called ahead of each repeat, when its rows are drawn."""

        def run() -> None:
            for call in range(self.calls):
                call_once(call)

        run()  # compiles the kernel and opens the connections, which a capture does not allow
        settle(self.device)
        replay = run
        if self.device == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog is another thread
                run()
            replay = graph.replay
        warm_up, repeats = (WARM_UP, REPEATS) if self.device == "cuda" else (0, 1)
        times = [self._once(replay, start) for _ in range(warm_up + repeats)]
        return statistics.median(times[warm_up:]) / self.calls

    def _once(self, replay: Callable[[], None], start: Callable[[], None]) -> float:
        self.draw()
        settle(self.device)
        start()
        if self.device == "cpu":
            before = time.perf_counter()
            replay()
            return (time.perf_counter() - before) * 1e6
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(SPIN_CYCLES)  # noqa: SLF001 - no public call keeps the GPU busy without touching memory
        began.record()
        replay()
        ended.record()
        torch.cuda.synchronize()
        return began.elapsed_time(ended) * 1000


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(group: Group, host: torch.Tensor, rows: int, device: str, peers: Peers | None) -> dict[str, object]:
    """One cell: µs of each rank in every way, and rows that were wrong."""
    case = Case(group, host, rows, device)
    row_bytes = host.shape[1]
    times = {
        "alone": group.in_turn(lambda: case.microseconds(case.read_all, lambda: None), "one rank reads"),
        "together": case.microseconds(case.read_all, group.meet),
    }
    wrong = case.wrong_rows(case.out)
    case.out.zero_()
    times["exchange"] = case.microseconds(case.exchange, group.meet)
    wrong += case.wrong_rows(case.out)
    if peers is not None:
        times["push"] = case.microseconds(lambda call: case.push(call, peers), group.meet)
        wrong += case.wrong_rows(case.pushed(peers))
    told = [json.loads(text) for text in group.gather(json.dumps({"us": times, "wrong": wrong}))]
    us = {way: [round(each["us"][way], 2) for each in told] for way in times}
    cell = {"row_bytes": row_bytes, "pool_bytes": host.numel(), "rows": rows, "us": us}
    cell["gb_s"] = {way: [round(rows * row_bytes / each / 1000, 1) for each in us[way]] for way in us}
    slowest = {way: max(us[way]) for way in us if way != "alone"}
    cell["gain"] = {way: round(slowest["together"] / slowest[way], 3) for way in slowest if way != "together"}
    cell["wrong_rows"] = sum(each["wrong"] for each in told)
    if group.rank == 0:
        print(json.dumps(cell), flush=True)
    return cell


def break_even(cells: list[dict], way: str) -> list[dict[str, object]]:
    """For each row size and pool the fewest rows from which on `way` is faster than that every rank reads all."""
    found = []
    for row_bytes, pool_bytes in dict.fromkeys((cell["row_bytes"], cell["pool_bytes"]) for cell in cells):
        mine = [cell for cell in cells if (cell["row_bytes"], cell["pool_bytes"]) == (row_bytes, pool_bytes)]
        slower = [cell["rows"] for cell in mine if cell["gain"][way] <= 1]
        faster = [cell["rows"] for cell in mine if cell["rows"] > max(slower, default=0)]
        found.append({"row_bytes": row_bytes, "pool_bytes": pool_bytes, "rows": min(faster, default=None)})
    return found


def opened_peers(group: Group, n_bytes: int) -> tuple[Peers | None, str]:
    """Buffers that all ranks write to, or why this machine has none."""
    found, reason = None, ""
    try:
        found = Peers(n_bytes)
    except (RuntimeError, ImportError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    reasons = [text for text in group.gather(reason) if text]
    return (None, reasons[0]) if reasons else (found, "")


def filled(host: torch.Tensor, device: str) -> None:
    """Random bytes, the same on all ranks: drawn on the GPU and copied out."""
    dice = torch.Generator(device).manual_seed(1)
    for piece in host.view(-1).split(GIB):
        piece.copy_(torch.randint(0, 256, piece.shape, dtype=torch.uint8, device=device, generator=dice))


def grid(group: Group, device: str, pools: list[int], peer: bool) -> dict[str, object]:
    """All cells, out of one pool that is seen as rows of each size."""
    row_sizes, rows_of = (ROW_BYTES, ROWS) if device == "cuda" else (TINY_ROW_BYTES, TINY_ROWS)
    with group.collectives(), HostPool(1, max(pools) // 16, 16) as pool:
        filled(pool.layers[0], device)
        flat = pool.layers[0].view(-1)
        peers, why_not = opened_peers(group, max(rows_of) * max(ROW_BYTES) + MIB) if peer else (None, "not asked for")
        cells = [
            measure(group, flat[: size // row_bytes * row_bytes].view(-1, row_bytes), rows, device, peers)
            for row_bytes in row_sizes
            for size in pools
            for rows in rows_of
        ]
        group.meet()
    result = {"cells": cells, "break_even_rows": {way: break_even(cells, way) for way in cells[0]["gain"]}}
    return result if peers is not None else {**result, "without_push": why_not}


def machine(group: Group, device: str) -> dict[str, object]:
    """The cards of all ranks and the versions."""
    name = torch.cuda.get_device_name() if device == "cuda" else "interpreter"
    cards = group.gather(name)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device == "cuda" else None
    return {"gpus": cards, "torch": str(torch.__version__), "triton": triton.__version__, "nccl": nccl}


def run_as_rank(seat: Seat, args: argparse.Namespace) -> None:
    end_with(seat.started_by)
    device = "cpu" if args.tiny else "cuda"
    pools = [TINY_POOL_BYTES] if args.tiny else [size * GIB for size in args.pools]
    with join(seat, gpu=not args.tiny, silence_s=SILENCE_S) as group:
        result = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "command": " ".join(["python", *sys.argv]),
            "machine": machine(group, device),
            "ranks": group.size,
            **grid(group, device, pools, args.peer),
        }
    if seat.rank == 0 and args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pools", type=int, nargs="+", default=list(POOLS_GIB), metavar="GIB")
    parser.add_argument("--peer", action="store_true", help="also write rows to the other GPUs from the reading kernel")
    parser.add_argument("--tiny", action="store_true", help="a few rows on Triton's interpreter, for tests")
    args = parser.parse_args()
    seat = seat_of(os.environ, None)
    try:
        if seat is not None:
            run_as_rank(seat, args)
            return 0
        return launch([sys.executable, *sys.argv], args.ranks, silence_s=SILENCE_S)
    except HsplanError as error:
        print(*error.lines(), sep="\n", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
