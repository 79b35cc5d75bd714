"""
How fast calibrate reads a log: start-up lines of eight ranks, then lines of requests until the file has its size.

    python benchmarks/calibrate.py --megabytes 512 -o benchmarks/results/calibrate-DATE.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import hsplan
from hsplan.calibrate import calibrate

START = """\
[2026-06-12 10:00:00 TP{rank}] Load weight begin. avail mem=138.01 GB
[2026-06-12 10:00:00 TP{rank}] Load weight end. elapsed=9.00 s, type=Glm, avail mem=48.72 GB, mem usage=89.24 GB.
[2026-06-12 10:00:00 TP{rank}] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 142208, KV size: 8.14 GB
"""
TOKENS = (
    "[2026-06-12 10:00:00 TP0] max_total_num_tokens=142208, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=2048, context_len=202752, available_gpu_mem=36.00 GB\n"
)
REQUESTS = (
    "[2026-06-12 11:00:00 TP0] Decode batch, #running-req: 64, #token: 131072, token usage: 0.92, cuda graph: True, "
    "gen throughput (token/s): 2412.20, #queue-req: 3\n"
    '[2026-06-12 11:00:00] INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
SPEC = {
    "kv_cache_dtype": "fp8_e4m3", "release": "main-2026-06-12", "max_running_requests": 2048, "mem_fraction": 0.7,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("-o", type=Path)
    args = parser.parse_args()
    size = args.megabytes * 10**6
    with tempfile.TemporaryFile() as file:
        file.write("".join(START.format(rank=rank) for rank in range(8)).encode() + TOKENS.encode())
        while file.tell() < size:
            file.write(REQUESTS.encode() * 10_000)
        found = []
        for _ in range(5):
            file.seek(0)
            begin = time.perf_counter()
            budget = calibrate("glm-5.1-fp8", [("log", file)], **SPEC).runs[0].budget_bytes
            found.append(file.tell() / (time.perf_counter() - begin) / 10**6)
    result = {
        "command": f"python benchmarks/calibrate.py --megabytes {args.megabytes}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, python {platform.python_version()}, shared cores",
        "hsplan": hsplan.__version__,
        "budget_bytes": [budget.low, budget.high],
        "mb_per_s": [round(speed) for speed in sorted(found)],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
    }
    text = json.dumps(result, indent=2) + "\n"
    if args.o:
        args.o.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
