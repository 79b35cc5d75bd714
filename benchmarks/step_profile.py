"""
The step time of GLM-5.1 on 8 × H200 from the published throughputs without offload.

    python benchmarks/step_profile.py

Writes hsplan/data/steptime-glm-5.1-8xh200.json and prints what the profile gives for the published throughputs with
offload, which it does not use. A rank runs as many requests as hsplan plans for the launch command in
data/glm-5.1-8xh200.yaml; three points give the three parts of the step exactly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import hsplan

ROOT = Path(__file__).resolve().parents[1]
SPEC = Path(__file__).resolve().parent / "data" / "glm-5.1-8xh200.yaml"
NAME, MODEL, RANKS = "glm-5.1-8xh200", "glm-5.1-fp8", 8
ANY_STEP = {"fixed": 1}  # replaces the name of the profile, which may not be there yet
# context: (tokens a second without offload, with offload, why this context)
PUBLISHED = {
    4096: (2288, 2280, "4K: 256 requests; prompt and output together are taken to be 4,096 tokens"),
    40_960: (624, 1919, "32K: prompts of 32,768 tokens and outputs of 8,192, as in the blog"),
    160_000: (232, 680, "160K: prompt and output together are taken to be 160,000 tokens"),
}
SOURCE = (
    "arXiv 2608.07009: GLM-5.1-FP8 on 8 × H200, output tokens a second without and with offload 2288 and 2280 at 4K, "
    "624 and 1919 at 32K, 232 and 680 at 160K, quoted through a secondary note; launch command, 32K in and 8K out, and "
    "256 requests: LMSYS blog of 2026-04-10"
)
SUMMARY = (
    "fitted to three throughputs of a paper, quoted second hand, without offload: GLM-5.1-FP8 on 8 × H200, SGLang, DP "
    "attention 8; prefill between the steps is in it"
)
ASSUMPTIONS = (
    "the paper's runs were launched as in the blog: 8 ranks of DP attention, mem_fraction 0.85, bf16 rows of 1152 B",
    "a rank runs as many requests of the whole context as hsplan plans for that launch, at most 256 / 8 = 32",
    "163,840 tokens are 1 % more than the 162,240 that hsplan plans for a rank: 160K is taken to be 160,000",
    "published are all output tokens over the whole run: prefill between decode steps is in them, and so in the step",
    "three points and three parts: the fit is exact and says nothing about its own error",
    "the blog's chart has about 780 and 2,640 tokens/s at 32K, the paper 624 and 1919: the profile follows the paper",
)


def planned(context: int, **values: object) -> hsplan.Plan:
    return hsplan.plan(SPEC, context=context, step_ms=ANY_STEP, **values)


def main() -> None:
    rows, times, points = [], [], []
    for context, (tokens_s, _, why) in PUBLISHED.items():
        requests = planned(context, offload=None).launched.capacity.requests
        rows.append([1, requests, requests * context])
        times.append(1000 * RANKS * requests / tokens_s)
        points.append({"tokens_s": tokens_s, "context": context, "requests": requests, "why": why})
    fixed, per_request, per_token = np.linalg.solve(np.array(rows, float), np.array(times))
    fixed, per_request, per_token = (float(part) for part in (fixed, per_request, per_token))
    step = {"fixed": round(fixed, 3), "per_request": round(per_request, 4), "per_context_token": round(per_token, 9)}
    deployment = planned(4096).launch.loaded.spec.deployment
    found = {
        "profile": NAME,
        "summary": SUMMARY,
        "source": SOURCE,
        "command": "python benchmarks/step_profile.py",
        "model": MODEL,
        "engine": deployment.engine,
        "gpu": deployment.gpu,
        "ranks": RANKS,
        "points": points,
        "assumptions": ASSUMPTIONS,
        "step_ms": step,
    }
    path = ROOT / "hsplan" / "data" / f"steptime-{NAME}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{NAME}: {step}")
    for context, (_, published, _) in PUBLISHED.items():
        capacity = planned(context).launched.capacity
        requests, swap_in_ms = capacity.requests, capacity.swap_in_ms
        step_ms = fixed + requests * (per_request + per_token * context) + swap_in_ms
        tokens_s = 1000 * RANKS * requests / step_ms
        print(
            f"{context:,} tokens, offload: {requests} requests a rank, swap-in {swap_in_ms:.1f} of {step_ms:.1f} ms, "
            f"{tokens_s:,.0f} tokens/s, published {published:,} ({tokens_s / published - 1:+.0%})"
        )


if __name__ == "__main__":
    main()
