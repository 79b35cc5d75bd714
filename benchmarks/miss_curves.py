"""
Miss curves of every shipped workload profile: misses by hot-buffer size and context, for top-k 2,048.

    python benchmarks/miss_curves.py

Calls that read one step, and 2, 3 and 4 successive steps at once, as engines do with drafts. Writes
hsplan/data/missrate-PROFILE.json, which plans look up; run it again when a profile changes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hsplan.workload.calls import in_calls
from hsplan.workload.layers import by_churn
from hsplan.workload.profile import Profile, load_profile, profile_names
from hsplan.workload.stack import Ids, MissCurve, StackDistances
from hsplan.workload.trace import draw

ROOT = Path(__file__).resolve().parents[1]
TOP_K, STEPS, WARM, SEED = 2048, 400, 200, 1
CALLS = (1, 2, 3, 4)  # steps that one call reads; SGLang's HiSparse takes up to 4 (#32162)
CONTEXTS = [4096 << i for i in range(9)]
SLOTS = [2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768]


def by_call(profile: Profile, context: int) -> list[tuple[float, list[float]]]:
    """For each of CALLS the ids that it reads, and its misses for each of SLOTS: means over the listed layers."""
    listed = profile.layers[-1].end if profile.layers else 1
    groups = [(layers.count / listed, trace(own, context)) for own, layers in by_churn("F" * listed, profile)]
    return [means([(part, *curve(ids, context, steps)) for part, ids in groups]) for steps in CALLS]


def trace(profile: Profile, context: int) -> list[Ids]:
    """What each step of one layer reads; the newest token has a slot of its own."""
    return [ids[:-1] for ids in draw(profile, context=context, top_k=TOP_K, steps=STEPS, seed=SEED)]


def curve(trace: list[Ids], context: int, steps: int) -> tuple[int, MissCurve]:
    """Ids of a step times the calls that were counted, and their misses, of one layer."""
    calls = in_calls(trace, steps)
    stack, found = StackDistances(context, steps * TOP_K), MissCurve(max(SLOTS))
    for now, ids in enumerate(calls):
        distances = stack.step(ids)
        if now >= WARM // steps:
            found.add(distances)
    return (len(calls) - WARM // steps) * trace[0].size, found


def means(layers: list[tuple[float, int, MissCurve]]) -> tuple[float, list[float]]:
    """Ids and misses of a call over the ids of a step, from (share of the layers, ids of that many steps, curve)."""
    ids = sum(part * found.accesses / read for part, read, found in layers)
    return round(ids, 4), [
        round(sum(part * found.misses(size) / read for part, read, found in layers), 5) for size in SLOTS
    ]


def curves(profile: Profile) -> list[dict[str, Any]]:
    """The curves of each of CALLS, contexts in order."""
    by_context = [by_call(profile, context) for context in CONTEXTS]
    return [
        {"steps": steps, "ids": [ids for ids, _ in found], "misses": [misses for _, misses in found]}
        for steps, found in zip(CALLS, zip(*by_context, strict=True), strict=True)
    ]


def main() -> None:
    for profile in profile_names():
        start = time.monotonic()
        found = {
            "profile": profile,
            "command": "python benchmarks/miss_curves.py",
            "steps": STEPS - WARM,
            "top_k": TOP_K,
            "slots": SLOTS,
            "contexts": CONTEXTS,
            "calls": curves(load_profile(profile)),
        }
        path = ROOT / "hsplan" / "data" / f"missrate-{profile}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{profile}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
