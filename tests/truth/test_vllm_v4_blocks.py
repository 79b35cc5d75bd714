"""
DeepSeek-V4's blocks by vLLM's own code: every figure of every row, exactly.

The rows of data/vllm-deepseek-v4.jsonl come from the functions of the published wheels 0.25.0, 0.28.0 and 0.33.0 that
group layers, size a block, check a request and count concurrency. They ran on a CPU with layer specs built from
compress_ratios (Flash, Pro, and drawn ones), entries of `row_bytes` and index keys of `index_row_bytes`; `starts` is
the verdict of the start-up check, `tokens` int(max_concurrency × max_model_len).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan

HERE = Path(__file__).parent
ROWS = [
    json.loads(line) for line in (HERE / "data" / "vllm-deepseek-v4.jsonl").read_text(encoding="utf-8").splitlines()
]
FLASH = yaml.safe_load((HERE.parents[1] / "model_specs" / "deepseek-v4-flash.yaml").read_text(encoding="utf-8"))[
    "model"
]
# Bytes of an entry: how a spec asks for it on Blackwell.
ENTRIES = {
    584: {},
    512: {"attention_backend": "flashinfer_mla_sparse", "kv_cache_dtype": "fp8_e4m3"},
    1024: {"attention_backend": "flashinfer_mla_sparse"},
}


def test_all_sixty_rows_are_there():
    assert [row["version"] for row in ROWS] == ["0.25.0"] * 20 + ["0.28.0"] * 20 + ["0.33.0"] * 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_answer_is_that_of_the_engine(row: dict[str, Any]):
    ratios = row["compress_ratios"]
    spec = {
        "model": {**FLASH, "num_hidden_layers": len(ratios), "compress_ratios": ratios},
        "deployment": {
            "engine": "vllm",
            "release": row["version"],
            "gpu": "b200",
            "tp": 8,
            **ENTRIES[row["row_bytes"]],
            "indexer_kv_dtype": {68: "mxfp4", 132: "fp8"}[row["index_row_bytes"]],
            "draft_layers": row["draft_layers"],
            "max_model_len": row["max_model_len"],
            "max_num_batched_tokens": row["max_num_batched_tokens"],
            "kv_budget": row["available_kv_bytes"],
        },
        "workload": {"context": 4_096},
    }
    plan = hsplan.plan(spec).to_dict()
    found, expected = plan["scenarios"][plan["as_launched"]], dict(row["expected"])
    assert found["max_total_num_tokens"] == expected.pop("tokens")
    assert expected.pop("starts") == ("vLLM does not start" not in (found["why_not"] or ""))
    for key, value in expected.items():
        assert found["blocks"][key] == value, key
