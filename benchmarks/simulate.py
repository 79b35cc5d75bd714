"""
Speed of the stack-distance simulation: top-k entries a second on one core, by context.

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
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hsplan.workload.profile import load_profile
from hsplan.workload.stack import StackDistances
from hsplan.workload.trace import draw

TOP_K, STEPS, ROUNDS = 2048, 300, 5
CONTEXTS = (32_768, 131_072, 1_048_576)


def entries_per_s(context: int) -> float:
    trace = [
        ids[:-1] for ids in draw(load_profile("glm-5.1-longbench"), context=context, top_k=TOP_K, steps=STEPS, seed=1)
    ]
    rounds = []
    for _ in range(ROUNDS):
        stack = StackDistances(context, TOP_K)
        start = time.perf_counter()
        for ids in trace:
            stack.step(ids)
        rounds.append(sum(map(len, trace)) / (time.perf_counter() - start))
    return statistics.median(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "numpy": np.__version__},
        "million_entries_per_s": {context: round(entries_per_s(context) / 1e6, 1) for context in CONTEXTS},
    }
    print(json.dumps(result, indent=1))
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
