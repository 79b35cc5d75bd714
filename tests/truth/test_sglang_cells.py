"""Every row that SGLang's own sizing code produced: cell, tokens and skip layers, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hsplan

DATA = Path(__file__).parent / "data"
ROWS = [
    json.loads(line)
    for file in sorted(DATA.glob("sglang-0.5.*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


def spec_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a spec, by the README of the tables: a Blackwell card for trtllm, a Hopper one otherwise."""
    mode = row["disaggregation_mode"]
    return {
        "model": row["config"],
        "deployment": {
            "engine": "sglang",
            "release": row["version"],
            "gpu": "b300" if row["dsa_backend"] == "trtllm" else "h200",
            "tp": 8,
            "kv_cache_dtype": row["kv_cache_dtype"],
            "attention_backend": row["dsa_backend"],
            "page_size": row["page_size"],
            "draft_layers": row["draft_layers"],
            "hierarchical_cache": row["hicache"],
            "disaggregation": None if mode == "null" else mode,
            "layer_range": row["pp_layers"],
            "kv_budget": row["budget_bytes"],
        },
        "offload": row["hisparse"],
    }


def test_all_three_hundred_rows_are_there():
    assert len(ROWS) == 300


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_cell_tokens_and_skip_layers_are_those_of_the_engine(row: dict[str, Any]):
    plan = hsplan.plan(spec_of(row)).to_dict()
    launched = plan["scenarios"][plan["as_launched"]]
    assert launched["bytes_per_token"]["charged"] == row["cell_bytes"]
    assert launched["max_total_num_tokens"] == row["max_total_num_tokens"]
    assert launched["max_total_num_tokens_range"] == [row["max_total_num_tokens"]] * 2
    assert plan["model"]["skip_topk_layers"] == row["skip_layers"]
