"""
`hsplan validate --gpu` on GLM-5.2 and DeepSeek-V3.2, packed and bf16 rows, and every known fault on the first.

    python benchmarks/validate.py [-o FILE] [--steps N] [--host-memory SIZE]

One process a case, as a user would run it; the JSON holds each measurement whole.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

CASES = [
    [spec, "--kv-cache-dtype", dtype]
    for spec in ("glm-5.2-fp8", "deepseek-v3.2-fp8")
    for dtype in ("fp8_e4m3", "bfloat16")
]
FAULTS = (
    "missing-wait", "int32-offsets", "elided-layer-written", "eviction-order", "truncated-row", "short-pool",
    "ledger-formula",
)  # fmt: skip
FAULT_MEMORY = "6GiB"  # a small pool shows a fault as well
SUMMARY = ("name", "passed", "scaled", "tokens", "run", "timings")


def run(arguments: list[str]) -> dict:
    """One validation: its command, exit code, seconds and JSON."""
    command = ["validate", *arguments, "--gpu", "--json"]
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "hsplan", *command], capture_output=True, text=True, check=False)
    seconds = round(time.monotonic() - start, 1)
    shown = "hsplan " + " ".join(command)
    print(f"{shown}: exit {done.returncode}, {seconds} s", flush=True)
    if not done.stdout:
        print(done.stderr, flush=True)
        return {"command": shown, "exit": done.returncode, "seconds": seconds, "stderr": done.stderr}
    found = json.loads(done.stdout)
    for key in SUMMARY:
        print(f"  {key}: {json.dumps(found[key])}", flush=True)
    for check in found["checks"]:
        print(f"  {'holds' if check['passed'] else 'FAILS'}  {check['name']}: {check['detail']}", flush=True)
    return {"command": shown, "exit": done.returncode, "seconds": seconds, "measurement": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--steps", default="1000")
    parser.add_argument("--host-memory", default="40GiB")
    parser.add_argument("--faults-only", action="store_true")
    args = parser.parse_args()
    size = ["--steps", args.steps, "--host-memory", args.host_memory]
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "cases": [] if args.faults_only else [run([*case, *size]) for case in CASES],
        "faults": [run([*CASES[0], "--host-memory", FAULT_MEMORY, "--inject", fault]) for fault in FAULTS],
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
