"""
How long an estimate takes: the whole command as a process, and plan() on a parsed mapping.

    python benchmarks/estimate.py [-o benchmarks/results/estimate-DATE.json]

Writes medians with the machine, the versions and the heaviest imports. Asserts nothing: limits stand in the README.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import hsplan
from hsplan.spec import load_spec

COMMAND = [sys.executable, "-m", "hsplan", "estimate", "glm-5.2-nvfp4", "--gpu", "gb300", "--tp", "4", "--json"]
LAUNCHES = 20
PLANS = 2000
ROUNDS = 5


def process() -> dict[str, object]:
    """Wall time of the command, median and least, and the peak memory of any of its launches."""
    seconds = []
    for _ in range(LAUNCHES):
        start = time.perf_counter()
        subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "command": "hsplan estimate glm-5.2-nvfp4 --gpu gb300 --tp 4 --json",
        "launches": LAUNCHES,
        "median_ms": round(statistics.median(seconds) * 1000, 1),
        "min_ms": round(min(seconds) * 1000, 1),
        "peak_mb": round(peak_kib * 1024 / 1e6, 1),
    }


def heaviest_imports(count: int = 10) -> list[dict[str, object]]:
    """The modules whose own import takes longest in that command."""
    run = subprocess.run([sys.executable, "-X", "importtime", *COMMAND[1:]], check=True, capture_output=True, text=True)
    found = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \| +(\S+)", run.stderr)
    ranked = sorted(((int(own), name) for own, _, name in found), reverse=True)
    return [{"module": name, "own_ms": round(own / 1000, 2)} for own, name in ranked[:count]]


def plans_per_second(**deployment: object) -> dict[str, object]:
    """plan() on a mapping that is parsed once, on one core: the median of a few rounds."""
    model = load_spec("glm-5.2-nvfp4", {}).spec.model
    spec = {"model": model, "deployment": {"gpu": "gb300", "tp": 4, "draft_layers": 1, **deployment}}
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(PLANS):
            hsplan.plan(spec)
        rates.append(PLANS / (time.perf_counter() - start))
    return {"plans": PLANS, "rounds": ROUNDS, "median": round(statistics.median(rates)), "min": round(min(rates))}


def grid_seconds() -> float:
    """10,000 deployments on both engines, on one core: contexts × tp × GPUs × engines."""
    spec = {"model": load_spec("glm-5.2-nvfp4", {}).spec.model, "deployment": {"gpu": "gb300"}}
    start = time.perf_counter()
    for context in range(256, 250 * 256 + 1, 256):
        for tp in (1, 2, 4, 8):
            for gpu in ("h200", "b200", "gb200", "b300", "gb300"):
                for engine in ("sglang", "vllm"):
                    hsplan.plan(spec, context=context, tp=tp, gpu=gpu, engine=engine)
    return round(time.perf_counter() - start, 2)


def machine() -> dict[str, object]:
    names = ("msgspec", "pyyaml", "rich", "typer")
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {"hsplan": hsplan.__version__, **{name: importlib.metadata.version(name) for name in names}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    output = parser.parse_args().output
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "python benchmarks/estimate.py",
        "machine": machine(),
        "process": process(),
        "heaviest_imports": heaviest_imports(),
        "plans_per_second": plans_per_second(),
        "plans_per_second_with_kv_budget": plans_per_second(kv_budget=140 * 2**30),
        "plans_per_second_vllm": plans_per_second(engine="vllm"),
        "grid_of_10000_seconds": grid_seconds(),
    }
    text = json.dumps(result, indent=2) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
