"""
Swap-in on a GPU, per call, beside SGLang's kernel and beside a plain gather of the same rows.

    python benchmarks/swap_in.py [--sglang LIBRARY] [-o FILE] [--quick]

K 2048, 656 B rows, CUDA-graph replay of 8 calls with new tokens each; medians in µs per call. `sequential` takes the
next tokens of a request, `random` any; pages of 64 rows are shuffled over the pool. `upstream_us` is a published
figure of SGLang's kernel on another H200 (data/swap_in-sglang-0.5.23.json); with the LIBRARY that upstream/build.sh
makes of SGLang's own source, `sglang_us` is measured here, in the same run and by the same clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
from hsplan_kernels import swap_in
from hsplan_kernels.state import new_plan, new_state

UPSTREAM = Path(__file__).resolve().parent / "data" / "swap_in-sglang-0.5.23.json"
K, ROW_BYTES, PAGE = 2048, 656, 64
CALLS, REPLAYS = 8, 15
SPIN_CYCLES = 200_000  # 0.1 ms in which the next replay is launched, so that the launch is not timed
UNITS = ROW_BYTES // 16
GATHER_PROGRAMS, GATHER_UNITS, GATHER_WARPS = 32, 512, 8


@triton.jit
def _gather(p_src, p_host, p_device, total, UNITS: tl.constexpr, TILE: tl.constexpr):
    """Rows p_src[0 … total) of the host one after the other to the device: what the link gives, nothing resolved."""
    o_word = tl.arange(0, 2)
    for start in range(tl.program_id(0) * TILE, total * UNITS, tl.num_programs(0) * TILE):
        o_unit = start + tl.arange(0, TILE)
        inside = (o_unit < total * UNITS)[:, None]
        src = tl.load(p_src + o_unit // UNITS, mask=o_unit < total * UNITS, other=0)
        o_src = ((src * UNITS + o_unit % UNITS) * 2)[:, None] + o_word[None, :]
        words = tl.load(tl.multiple_of(p_host, 16) + o_src, mask=inside, other=0)
        tl.store(p_device + (o_unit * 2)[:, None] + o_word[None, :], words, mask=inside)


class Case:
    """One cell of the grid: state, pools, inputs of CALLS steps, and how long graphs of them take."""

    def __init__(self, batch: int, context: int, slots: int, misses: int, order: str, host: torch.Tensor) -> None:
        self.batch, self.context, self.misses = batch, context, misses
        device = "cuda"
        pages = torch.randperm(batch * context // PAGE, device=device).view(batch, -1, 1)
        host_rows = (pages * PAGE + torch.arange(PAGE, device=device)).view(batch, context).to(torch.int64)
        self.host = host[: batch * context]
        self.state = new_state(host_rows, slots=slots, page_tokens=PAGE, host_limit=batch * context, device=device)
        self.plan = new_plan(batch, K, device, pool_rows=batch * context)
        self.hot = torch.empty((batch * (slots + PAGE), ROW_BYTES), dtype=torch.uint8, device=device)
        self.rows = torch.arange(batch, dtype=torch.int32, device=device)
        self.lens = torch.full((batch,), context, dtype=torch.int32, device=device)
        self.real = torch.tensor([batch], dtype=torch.int32, device=device)
        self.steps = torch.arange(1, CALLS + 1, dtype=torch.int32, device=device)
        self.top_k = torch.empty((CALLS, batch, K), dtype=torch.int32, device=device)
        self.src = torch.empty((CALLS, batch * misses), dtype=torch.int64, device=device)
        self.out = torch.empty((batch, K), dtype=torch.int32, device=device)
        self.core = K - 1 - misses
        self.sglang = SglangState(self, slots)
        self.at = 0
        # tokens below `slots` start resident
        self.fresh = torch.argsort(torch.rand((batch, context - slots - 1), device=device), 1) + slots
        if order == "sequential":
            self.fresh = torch.arange(slots, context - 1, device=device).repeat(batch, 1)
        self.new_tokens()

    def new_tokens(self) -> None:
        """Inputs of the next CALLS steps: the newest token, a core that always hits, and tokens long gone."""
        wide = self.fresh.shape[1]
        for call in range(CALLS):
            start = (self.at + call * self.misses) % wide
            fresh = torch.roll(self.fresh, -start, 1)[:, : self.misses]
            core = torch.arange(self.core, device="cuda").expand(self.batch, -1)
            newest = torch.full((self.batch, 1), self.context - 1, device="cuda")
            self.top_k[call] = torch.cat([core, fresh, newest], 1).to(torch.int32)
            self.src[call] = torch.gather(self.state.host_rows, 1, fresh).view(-1)
        if self.plan.sorted_src is not None:
            self.src.copy_(torch.sort(self.src, 1).values)
        self.at = (self.at + CALLS * self.misses) % wide

    def resolve(self, call: int) -> None:
        swap_in.resolve(
            self.state, self.plan, self.top_k[call], self.rows, self.lens, self.real,
            self.steps[call : call + 1], self.out,
        )  # fmt: skip

    def whole(self, call: int) -> None:
        self.resolve(call)
        swap_in.copy_planned(self.plan, self.host, self.hot)

    def gather(self, call: int) -> None:
        host, device = self.host.view(torch.int64), self.hot.view(torch.int64)
        _gather[(GATHER_PROGRAMS,)](
            self.src[call], host, device, self.src.shape[1], UNITS=UNITS, TILE=GATHER_UNITS, num_warps=GATHER_WARPS
        )

    def sglang_call(self, library: ctypes.CDLL, call: int) -> None:
        s, slots = self.sglang, self.state.slots
        error = library.sglang_swap_in(
            slots, self.batch, *map(address, (
                self.top_k[call], s.slot_tokens, self.state.host_rows, s.slot_rows, self.host, self.hot, self.out,
                s.request_rows, s.seq_lens, s.lru, self.real,
            )), *map(ctypes.c_int64, (self.context, PAGE, ROW_BYTES)),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        if error:
            raise RuntimeError(f"SGLang's kernel was not launched: CUDA error {error}")

    def check_loaded(self) -> None:
        """The rows that the last call loaded lie where it says."""
        if not self.misses:
            return
        fresh = slice(self.core, self.core + self.misses)
        ids, rows = self.top_k[-1][:, fresh].long(), self.out[:, fresh].long()
        source = torch.gather(self.state.host_rows, 1, ids).view(-1).cpu()
        if not torch.equal(self.hot[rows.view(-1)].cpu(), self.host[source]):
            raise RuntimeError("a loaded row is not the host's")

    def advance(self) -> None:
        self.steps += CALLS
        self.new_tokens()

    def microseconds(self, call_once: Callable[[int], None]) -> float:
        """Median time of one call under graph replay, every replay with new tokens."""
        for _ in range(3):
            # enough steps that every fresh token is long evicted
            self.advance()
            for call in range(CALLS):
                call_once(call)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in range(CALLS):
                call_once(call)
        times = []
        for _ in range(REPLAYS):
            self.advance()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            torch.cuda._sleep(SPIN_CYCLES)  # noqa: SLF001 - no public call keeps the GPU busy without touching memory
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1000 / CALLS)
        return statistics.median(times[3:])

    def whole_us(self) -> float:
        us = self.microseconds(self.whole)
        if int(self.plan.counts.sum()) != self.batch * self.misses:
            raise RuntimeError(f"{self.plan.counts} rows missed where {self.misses} of each request should")
        self.check_loaded()
        return us

    def sglang_us(self, library: ctypes.CDLL) -> float:
        us = self.microseconds(lambda call: self.sglang_call(library, call))
        self.check_loaded()
        return us


class SglangState:
    """The state of SGLang's kernel for the requests of a case: what lies in which slot, and the slots by age."""

    def __init__(self, case: Case, slots: int) -> None:
        n, device = case.batch, "cuda"
        wide = slots + PAGE
        self.slot_tokens = torch.arange(wide, dtype=torch.int32, device=device).repeat(n, 1)
        self.slot_tokens[:, slots:] = -1
        self.slot_rows = torch.arange(n * wide, dtype=torch.int32, device=device).view(n, wide)
        self.lru = torch.arange(slots, dtype=torch.int16, device=device).repeat(n, 1)
        self.request_rows, self.seq_lens = case.rows.long(), case.lens.long()


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def measure(
    batch: int,
    context: int,
    slots: int,
    misses: int,
    order: str,
    host: torch.Tensor,
    upstream_us: float,
    library: ctypes.CDLL | None,
) -> dict[str, object]:
    case = Case(batch, context, slots, misses, order, host)
    us, resolve_us = case.whole_us(), case.microseconds(case.resolve)
    gather_us = case.microseconds(case.gather) if misses else 0.0
    sglang_us = case.sglang_us(library) if library else None
    row = {
        "slots": slots, "batch": batch, "context": context, "misses": misses, "order": order,
        "us": round(us, 2), "resolve_us": round(resolve_us, 2), "gather_us": round(gather_us, 2),
        "upstream_us": upstream_us, "speedup": round(upstream_us / us, 3),
        **({"sglang_us": round(sglang_us, 2), "sglang_ratio": round(sglang_us / us, 3)} if sglang_us else {}),
        "gather_share": round(gather_us / us, 3), "gb_s": round(batch * misses * ROW_BYTES / us / 1000, 1),
        "address_order": case.plan.sorted_src is not None,
    }  # fmt: skip
    print(*(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def filled_pool(rows: int) -> torch.Tensor:
    """Pinned host rows of random bytes, which the GPU draws."""
    host = torch.empty((rows, ROW_BYTES), dtype=torch.uint8, pin_memory=True)
    block = torch.randint(0, 256, (min(rows, 2**21), ROW_BYTES), dtype=torch.uint8, device="cuda")
    for piece in host.split(len(block)):
        piece.copy_(block[: len(piece)])
    return host


def grid(upstream: dict, quick: bool, library: ctypes.CDLL | None) -> list[dict]:
    host = filled_pool(64 * upstream["context"])
    return [
        measure(int(batch), upstream["context"], int(slots), misses, upstream["order"], host, us, library)
        for slots, batches in upstream["us"].items()
        for batch, row in batches.items()
        for misses, us in zip(upstream["misses"], row, strict=True)
        if not quick or (int(batch) in {1, 16} and misses in {0, 8, 128, 512})
    ]


def large_pools(upstream: dict, library: ctypes.CDLL | None) -> list[dict]:
    host = filled_pool(max(pool["batch"] * pool["context"] for pool in upstream["us"]))
    return [
        measure(pool["batch"], pool["context"], upstream["slots"], misses, upstream["order"], host, us, library)
        for pool in upstream["us"]
        for misses, us in zip(upstream["misses"], pool["us"], strict=True)
    ]


def geometric_mean(cells: list[dict], key: str) -> float:
    return round(math.exp(statistics.fmean(math.log(cell[key]) for cell in cells)), 3)


def slower(cells: list[dict], key: str) -> int:
    return sum(cell[key] < 1 / 1.05 for cell in cells)


def machine() -> dict[str, object]:
    p = torch.cuda.get_device_properties(0)
    return {"gpu": p.name, "memory_bytes": p.total_memory, "torch": torch.__version__, "triton": triton.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument(
        "--sglang", type=ctypes.CDLL, metavar="LIBRARY", help="SGLang's kernel, made by upstream/build.sh"
    )
    parser.add_argument("--quick", action="store_true", help="a few cells of the grid, no large pools")
    args = parser.parse_args()
    upstream = json.loads(UPSTREAM.read_text())
    cells = grid(upstream["grid"], args.quick, args.sglang)
    means = {key: geometric_mean(cells, key) for key in ("speedup", "sglang_ratio") if key in cells[0]}
    print(*(f"{key}: geometric mean {mean}, {slower(cells, key)} cells over 5 % slower" for key, mean in means.items()))
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "machine": machine(),
        "upstream": upstream["what"],
        "geometric_means": means,
        "grid": cells,
        "large_pools": [] if args.quick else large_pools(upstream["large_pools"], args.sglang),
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
