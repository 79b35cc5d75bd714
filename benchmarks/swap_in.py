"""
Swap-in on a GPU, per call: the grid of batch, misses and slots that upstream's kernel was measured on.

    python benchmarks/swap_in.py [-o FILE] [--quick]

K 2048, 656 B rows, 65,536-token requests, CUDA-graph replay of 8 calls with new tokens each; medians in µs per
call. `sequential` takes the next tokens of a request, `random` any; pages of 64 rows are shuffled over the pool.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))
from hsplan_kernels import swap_in
from hsplan_kernels.state import new_plan, new_state

K, ROW_BYTES, PAGE = 2048, 656, 64
CALLS, REPLAYS = 8, 15


class Case:
    """One cell of the grid: state, pools, inputs and a captured graph of CALLS steps."""

    def __init__(self, batch: int, context: int, slots: int, misses: int, order: str, host: torch.Tensor) -> None:
        self.batch, self.context, self.misses, self.order = batch, context, misses, order
        device = "cuda"
        pages = torch.randperm(batch * context // PAGE, device=device).view(batch, -1, 1)
        host_rows = (pages * PAGE + torch.arange(PAGE, device=device)).view(batch, context).to(torch.int64)
        self.host = host
        self.state = new_state(host_rows, slots=slots, page_tokens=PAGE, host_limit=host.shape[0], device=device)
        self.plan = new_plan(batch, K, device)
        self.hot = torch.empty((batch * (slots + PAGE), ROW_BYTES), dtype=torch.uint8, device=device)
        self.rows = torch.arange(batch, dtype=torch.int32, device=device)
        self.lens = torch.full((batch,), context, dtype=torch.int32, device=device)
        self.real = torch.tensor([batch], dtype=torch.int32, device=device)
        self.steps = torch.arange(1, CALLS + 1, dtype=torch.int32, device=device)
        self.top_k = torch.empty((CALLS, batch, K), dtype=torch.int32, device=device)
        self.out = torch.empty((batch, K), dtype=torch.int32, device=device)
        self.core = K - 1 - misses
        self.at = 0
        # tokens below `slots` start resident
        self.fresh = torch.argsort(torch.rand((batch, context - slots - 1), device=device), 1) + slots
        if order == "sequential":
            self.fresh = torch.arange(slots, context - 1, device=device).repeat(batch, 1)
        self.graph: torch.cuda.CUDAGraph | None = None

    def new_tokens(self) -> None:
        """Inputs of the next CALLS steps: the newest token, a core that always hits, and tokens long gone."""
        wide = self.fresh.shape[1]
        for call in range(CALLS):
            start = (self.at + call * self.misses) % wide
            fresh = torch.roll(self.fresh, -start, 1)[:, : self.misses]
            core = torch.arange(self.core, device="cuda").expand(self.batch, -1)
            newest = torch.full((self.batch, 1), self.context - 1, device="cuda")
            self.top_k[call] = torch.cat([core, fresh, newest], 1).to(torch.int32)
        self.at = (self.at + CALLS * self.misses) % wide

    def steps_on(self, copy: bool = True) -> None:
        for call in range(CALLS):
            swap_in.resolve(
                self.state, self.plan, self.top_k[call], self.rows, self.lens, self.real,
                self.steps[call : call + 1], self.out,
            )  # fmt: skip
            if copy:
                swap_in.copy_planned(self.plan, self.host, self.hot)

    def advance(self) -> None:
        self.steps += CALLS
        self.new_tokens()

    def microseconds(self, copy: bool = True) -> float:
        """Median time of one call under graph replay."""
        self.new_tokens()
        for _ in range(3):
            self.steps_on(copy)
            self.advance()
        # enough warm-up that every fresh token is long evicted
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.steps_on(copy)
        times = []
        for _ in range(REPLAYS):
            self.advance()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1000 / CALLS)
        if int(self.plan.counts.sum()) != self.batch * self.misses:
            raise RuntimeError(f"{self.plan.counts} rows missed where {self.misses} of each request should")
        return statistics.median(times[3:])


def machine() -> dict[str, object]:
    p = torch.cuda.get_device_properties(0)
    return {"gpu": p.name, "memory_bytes": p.total_memory, "torch": torch.__version__, "triton": triton.__version__}


def grid(
    batches: list[int], slot_counts: list[int], misses: list[int], order: str, context: int = 65_536
) -> list[dict]:
    host = torch.empty((max(batches) * context, ROW_BYTES), dtype=torch.uint8, pin_memory=True)
    host.random_(0, 256)
    rows = []
    for slots in slot_counts:
        for batch in batches:
            for m in misses:
                us = Case(batch, context, slots, m, order, host).microseconds()
                resolve_us = Case(batch, context, slots, m, order, host).microseconds(copy=False)
                gb_s = batch * m * ROW_BYTES / us / 1000
                key = {"slots": slots, "batch": batch, "context": context, "misses": m, "order": order}
                timed = {"us": round(us, 2), "resolve_us": round(resolve_us, 2), "gb_s": round(gb_s, 1)}
                rows.append(key | timed)
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        rows = grid([1, 16], [4096], [0, 8, 128, 512], "sequential")
    else:
        rows = grid([1, 4, 8, 16, 32, 64], [4096, 8192], [0, 8, 32, 128, 512, 1024, 2047], "sequential")
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "machine": machine(),
        "rows": rows,
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
