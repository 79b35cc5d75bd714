"""
Memory and race checks of swap-in, index-K and backup on a GPU: compute-sanitizer over small tests.

    python benchmarks/sanitize.py [-o FILE]

Exits with 1 if a tool finds anything or a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
TESTS = (
    "test_swap_in.py::test_the_least_recently_used_make_room",
    "test_swap_in.py::test_misses_from_a_large_pool_are_read_in_address_order",
    "test_swap_in.py::test_calls_can_be_captured_and_replayed",
    "test_swap_in.py::test_many_steps_equal_the_reference",
    "test_victims.py::test_steps_that_lie_far_apart_keep_their_order",
    "test_index_k.py::test_a_page_holds_64_keys_and_then_64_scales",
    "test_index_k.py::test_a_move_with_either_end_outside_a_layer_is_skipped_there",
    "test_backup.py::test_rows_outside_either_pool_are_skipped",
    "test_backup.py::test_one_layer_and_one_row_pools_work",
)


def check(tool: str) -> dict[str, object]:
    tests = [f"tests/gpu/{test}" for test in TESTS]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        [SANITIZER, "--tool", tool, "--error-exitcode", "9", *pytest],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "kernels"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    summary = re.findall(r"=+ (.*SUMMARY.*)", done.stdout)
    passed = re.findall(r"(\d+) passed", done.stdout)
    return {
        "tool": tool,
        "exit_code": done.returncode,
        "summary": summary[-1] if summary else "",
        "tests_passed": int(passed[-1]) if passed else 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    checks = [check(tool) for tool in TOOLS]
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "tests": TESTS,
        "checks": checks,
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(done["exit_code"] for done in checks))


if __name__ == "__main__":
    main()
