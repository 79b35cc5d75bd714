"""
Whether the launch flags of `hsplan advise` are taken by the argument parser of the published SGLang wheel.

    python benchmarks/launch_flags.py -o FILE

In a scratch environment with hsplan and sglang (its wheel and what its server_args.py imports); parsed, not launched.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from sglang.srt.server_args import ServerArgs

STEP = ["--step-ms", "{fixed: 12, per_request: 0.3}"]
DEPLOYMENTS = (
    ["glm-5.2-fp8", "--kv-cache-dtype", "fp8_e4m3", "--context", "131072", "--tpot-ms", "50"],
    ["glm-5.1-fp8", "--kv-cache-dtype", "bfloat16", "--context", "32768", "--tpot-ms", "40"],
    ["deepseek-v3.2-fp8", "--kv-cache-dtype", "fp8_e4m3", "--context", "65536", "--tpot-ms", "60"],
    ["glm-5.2-nvfp4", "--gpu", "b200", "--tp", "4", "--context", "65536"],
    ["glm-5.3-fp8", "--gpu", "h20-3e", "--kv-cache-dtype", "fp8_e4m3", "--context", "262144", "--tpot-ms", "80"],
)


def flags_of(deployment: list[str]) -> str:
    command = [sys.executable, "-m", "hsplan", "advise", *deployment, *STEP, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return " ".join(flag["text"] for flag in json.loads(done.stdout)["flags"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    arguments.add_argument("-o", "--output", type=Path)
    args = arguments.parse_args()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found = []
    for deployment in DEPLOYMENTS:
        flags = flags_of(deployment)
        taken = parser.parse_args(["--model-path", "none", *shlex.split(flags)])
        found.append(
            {
                "deployment": " ".join(deployment),
                "flags": flags,
                "enable_hisparse": taken.enable_hisparse,
                "hisparse_config": json.loads(taken.hisparse_config),
                "max_running_requests": taken.max_running_requests,
            }
        )
        print(found[-1])
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "sglang": version("sglang"),
        "parsed": found,
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
