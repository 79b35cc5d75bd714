"""
`hsplan validate --gpu --ranks N` on the cards of one machine, and what is left after a rank of it was killed.

    python benchmarks/ranks.py [-o FILE] [--ranks N] [--steps N] [--host-memory SIZE]

Three cases of GLM-5.2, each as a user would run it: plain TP, where all ranks hold the same rows; attention DP, where
each runs requests of its own; plain TP again, with the last rank killed in the middle of its decode steps. The JSON
holds each measurement whole: link and swap-in steps of each rank alone and of all at once are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

BASE = ["validate", "glm-5.2-fp8", "--kv-cache-dtype", "fp8_e4m3", "--gpu"]
CASES = ([], ["--dp-attention", "8"])
KILLED_MEMORY = "12GiB"  # a small pool is soon there to be killed with
KILLED_STEPS = "2000"
STAGE = "decode steps"
SMI = shutil.which("nvidia-smi") or "nvidia-smi"
SETTLE_S = 5.0  # what a driver may take to free the memory of a process
SUMMARY = ("passed", "slowest", "nodes", "tokens")


def run(arguments: list[str]) -> dict:
    """One validation: its command, exit code, seconds, and its JSON or what it said."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ranks.json"
        command = [*BASE, *arguments, "--json"]
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hsplan", *command, "-o", str(target)], capture_output=True, text=True, check=False
        )  # fmt: skip
        seconds = round(time.monotonic() - start, 1)
        found = json.loads(target.read_bytes()) if target.exists() else None
    shown = "hsplan " + " ".join(command)
    print(f"{shown}: exit {done.returncode}, {seconds} s", flush=True)
    result = {"command": shown, "exit": done.returncode, "seconds": seconds}
    if found is None or done.returncode:
        print(done.stderr, flush=True)
        result["stderr"] = done.stderr
    if found is not None:
        summarise(found)
        result["measurement"] = found
    return result


def summarise(found: dict) -> None:
    for key in SUMMARY:
        print(f"  {key}: {json.dumps(found[key])}", flush=True)
    for rate in found["link"]:
        print(f"  link: {json.dumps(rate)}", flush=True)
    for rank in found["ranks"]:
        steps = {"alone": rank["alone_timings"], "together": rank["measurement"]["timings"]}
        print(f"  rank {rank['rank']}: {json.dumps(steps)}", flush=True)
        for check in rank["measurement"]["checks"]:
            print(f"    {'holds' if check['passed'] else 'FAILS'}  {check['name']}: {check['detail']}", flush=True)


def kill_one(arguments: list[str]) -> dict:
    """Kill the last rank in its decode steps: exit code, seconds until all is over, and what was left."""
    before = machine_state()
    command = [*BASE, *arguments]
    with subprocess.Popen([sys.executable, "-m", "hsplan", *command], stderr=subprocess.PIPE, text=True) as running:
        lines = []
        for line in running.stderr:
            lines.append(line.rstrip("\n"))
            if STAGE in line:
                break
        ranks = ranks_of(running.pid)
        time.sleep(1)  # into the steps
        inside = machine_state()
        if ranks and running.poll() is None:
            os.kill(ranks[max(ranks)], signal.SIGKILL)
        start = time.monotonic()
        _, rest = running.communicate()
        seconds = round(time.monotonic() - start, 2)
    left = [rank for rank, pid in ranks.items() if Path(f"/proc/{pid}").exists()]
    time.sleep(SETTLE_S)
    result = {
        "command": "hsplan " + " ".join(command),
        "killed": f"rank {max(ranks)} of {len(ranks)}" if ranks else "none was found",
        "exit": running.returncode,
        "seconds_until_exit": seconds,
        "stderr": [*lines, *rest.splitlines()],
        "ranks_left": left,
        "state": {"before": before, "inside": inside, "after": machine_state()},
    }
    print(json.dumps(result), flush=True)
    return result


def ranks_of(parent: int) -> dict[int, int]:
    """Process numbers of the ranks that a process has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pairs = [entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0") if "=" in entry]
        except OSError:
            continue
        environment = dict(pairs)
        if environment.get("HSPLAN_STARTED_BY") == str(parent):
            found[int(environment["RANK"])] = int(folder.name)
    return found


def machine_state() -> dict[str, object]:
    """What processes hold: memory of each card, processes on the cards, pages that are pinned, free host memory."""
    vmstat = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    pinned = int(vmstat.get("nr_foll_pin_acquired", 0)) - int(vmstat.get("nr_foll_pin_released", 0))
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "gpu_mib_used": smi("--query-gpu=memory.used"),
        "gpu_processes": len(smi("--query-compute-apps=pid")),
        "pinned_pages": pinned,
        "host_bytes_used": sum(
            sign * int(meminfo[name].split()[0]) * 1024 for name, sign in (("MemTotal", 1), ("MemAvailable", -1))
        ),
    }


def smi(question: str) -> list[str]:
    done = subprocess.run(
        [SMI, question, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--steps", default="200")
    parser.add_argument("--host-memory", default="80GiB")
    args = parser.parse_args()
    ranks = ["--ranks", args.ranks]
    sizes = [*ranks, "--steps", args.steps, "--host-memory", args.host_memory]
    topology = subprocess.run([SMI, "topo", "-m"], capture_output=True, text=True, check=False).stdout
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "topology": topology.splitlines(),
        "killed": kill_one([*ranks, "--steps", KILLED_STEPS, "--host-memory", KILLED_MEMORY]),
        "cases": [run([*case, *sizes]) for case in CASES],
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
