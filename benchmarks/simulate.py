"""
Speed and memory of the stack-distance simulation, by context: top-k entries a second on one core, and peak MiB.

    python benchmarks/simulate.py [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hsplan.workload.profile import load_profile
from hsplan.workload.stack import Ids, MissCurve, StackDistances
from hsplan.workload.trace import draw

TOP_K, STEPS, ROUNDS = 2048, 300, 5
CONTEXTS = (32_768, 131_072, 1_048_576)


def drawn(context: int) -> list[Ids]:
    profile = load_profile("glm-5.1-longbench")
    return [ids[:-1] for ids in draw(profile, context=context, top_k=TOP_K, steps=STEPS, seed=1)]


def entries_per_s(context: int) -> float:
    trace, rounds = drawn(context), []
    for _ in range(ROUNDS):
        stack = StackDistances(context, TOP_K)
        start = time.perf_counter()
        for ids in trace:
            stack.step(ids)
        rounds.append(sum(map(len, trace)) / (time.perf_counter() - start))
    return statistics.median(rounds)


def peak_mib(context: int) -> float:
    """Of the simulation alone, without the trace, which takes 8 KB a step."""
    trace = drawn(context)
    tracemalloc.start()
    stack, curve = StackDistances(context, TOP_K), MissCurve(16 * TOP_K)
    for ids in trace:
        curve.add(stack.step(ids))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "numpy": np.__version__},
        "million_entries_per_s": {context: round(entries_per_s(context) / 1e6, 1) for context in CONTEXTS},
        "peak_mib": {context: round(peak_mib(context), 1) for context in CONTEXTS},
    }
    print(json.dumps(result, indent=1))
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
