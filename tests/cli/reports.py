"""Reports written out by hand, as JSON: what a test changes is seen in the test."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

FIGURES = {
    "engine_applies": True, "tokens": 100_000, "tokens_range": [99_968, 100_032], "logical_tokens": 100_000,
    "requests": 3, "binding": "gpu", "kv_budget_bytes": 5_394_000_000, "bytes_per_token": 53_940.0, "row_bytes": 656,
    "host_bytes_per_node": 0, "headroom_bytes": 10**10, "fits": True, "why_not": None,
}  # fmt: skip
LEDGER = [
    {"name": "weights", "bytes": 90 * 10**9, "place": "gpu", "scope": "rank", "part": "budget"},
    {"name": "KV rows", "bytes": 5 * 10**9, "place": "gpu", "scope": "rank", "part": "pool"},
]


def spec(name: str, *, digest: str = "", **figures: Any) -> dict[str, Any]:
    """One spec that was priced; `figures` are those as launched."""
    return {
        "name": name,
        "source": f"specs/{name}.yaml",
        "sha256": digest or hashlib.sha256(name.encode()).hexdigest(),
        "planned": {
            "settings": {"gpu": "h200", "tp": 8},
            "engine": "sglang", "release": "0.5.23", "gpu": "h200", "gpus": 8, "context": 32_768,
            "as_launched": "elided",
            "scenarios": {"baseline": None, "elided": {**FIGURES, **figures}, "offload": None, "elided+offload": None},
            "ledger": copy.deepcopy(LEDGER), "left_out_bytes": 15 * 10**9,
        },
        "refused": None,
    }  # fmt: skip


def refused(name: str, code: int = 3) -> dict[str, Any]:
    """One spec that was not."""
    return {**spec(name), "planned": None, "refused": {"exit_code": code, "lines": ["unknown model"]}}


def report(*specs: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "hsplan.report/1", "hsplan_version": "0.1.0", "specs": list(specs)}


def written(path: Any, content: Any) -> str:
    """`content`, a report or any text, in a file; its name."""
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)
