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
from hsplan.workload.layers import by_churn
from hsplan.workload.profile import Profile, load_profile, profile_names
from hsplan.workload.stack import MissCurve, StackDistances
from hsplan.workload.trace import draw

ROOT = Path(__file__).resolve().parents[1]
TOP_K, STEPS, WARM, SEED = 2048, 400, 200, 1
CONTEXTS = [4096 << i for i in range(9)]
SLOTS = [2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768]


def shares(profile: Profile, context: int) -> list[float]:
    """Misses over ids read, for each of SLOTS: the mean over the layers that the profile lists."""
    listed = profile.layers[-1].end if profile.layers else 1
    groups = [(layers.count / listed, curve(own, context)) for own, layers in by_churn("F" * listed, profile)]
    return [round(sum(part * found.misses(slots) / found.accesses for part, found in groups), 5) for slots in SLOTS]


def curve(profile: Profile, context: int) -> MissCurve:
    """Misses of one layer."""
    stack, found = StackDistances(context, TOP_K), MissCurve(max(SLOTS))
    for now, ids in enumerate(draw(profile, context=context, top_k=TOP_K, steps=STEPS, seed=SEED)):
        distances = stack.step(ids[:-1])
        if now >= WARM:
            found.add(distances)
    return found


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
            "misses": [shares(load_profile(profile), context) for context in CONTEXTS],
        }
        path = ROOT / "hsplan" / "data" / f"missrate-{profile}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{profile}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
