"""
How long a report of many specs takes, the whole command.

    python benchmarks/report.py -o benchmarks/results/report-DATE.json
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import hsplan

SPEC = "name: spec-{}\nmodel: glm-5.2-fp8\ndeployment: {{gpu: h200, tp: 8, max_running_requests: {}}}\n"
COMMAND = [sys.executable, "-m", "hsplan", "report"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--specs", type=int, default=500)
    parser.add_argument("-o", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{i}.yaml") for i in range(args.specs)]
        for i, path in enumerate(paths):
            path.write_text(SPEC.format(i, 1 + i), encoding="utf-8")
        files = [flag for kind in ("markdown", "junit", "csv") for flag in (f"--{kind}", str(Path(folder, kind)))]
        found = []
        for _ in range(5):
            begin = time.perf_counter()
            subprocess.run([*COMMAND, *map(str, paths), "-o", str(Path(folder, "json")), *files], check=True)
            found.append(time.perf_counter() - begin)
    result = {
        "command": f"python benchmarks/report.py --specs {args.specs}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, python {platform.python_version()}, shared cores",
        "hsplan": hsplan.__version__,
        "seconds": [round(seconds, 2) for seconds in sorted(found)],
    }
    text = json.dumps(result, indent=2) + "\n"
    if args.o:
        args.o.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
