"""
Miss curves of every shipped workload profile: misses by hot-buffer size and context, for top-k 2,048.

    python benchmarks/miss_curves.py

Writes hsplan/data/missrate-PROFILE.json, which plans look up; run it again when a profile changes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hsplan.workload.profile import load_profile, profile_names
from hsplan.workload.stack import MissCurve, StackDistances
from hsplan.workload.trace import draw

ROOT = Path(__file__).resolve().parents[1]
TOP_K, STEPS, WARM, SEED = 2048, 400, 200, 1
CONTEXTS = [4096 << i for i in range(9)]
SLOTS = [2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768]


def shares(profile: str, context: int) -> list[float]:
    """Misses over ids read, for each of SLOTS."""
    stack, curve = StackDistances(context, TOP_K), MissCurve(max(SLOTS))
    for now, ids in enumerate(draw(load_profile(profile), context=context, top_k=TOP_K, steps=STEPS, seed=SEED)):
        distances = stack.step(ids[:-1])
        if now >= WARM:
            curve.add(distances)
    return [round(curve.misses(slots) / curve.accesses, 5) for slots in SLOTS]


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
            "misses": [shares(profile, context) for context in CONTEXTS],
        }
        path = ROOT / "hsplan" / "data" / f"missrate-{profile}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{profile}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
