"""
DeepSeek-V4.1's blocks by vLLM's own code: every figure of every row, exactly.

The rows of data/vllm-deepseek-v41.jsonl come from the functions of the published wheels 0.30.0 to 0.33.0 that group
layers, size a block, check a request and count concurrency. They ran on a CPU with layer specs built from
compress_ratios and kv_source_layer_ids (Flash, and drawn ones) and the bytes of `record`; `starts` is the verdict of
the start-up check, `tokens` int(max_concurrency × max_model_len).
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
    json.loads(line) for line in (HERE / "data" / "vllm-deepseek-v41.jsonl").read_text(encoding="utf-8").splitlines()
]
FLASH = yaml.safe_load((HERE.parents[1] / "model_specs" / "deepseek-v4.1-flash.yaml").read_text(encoding="utf-8"))[
    "model"
]
# How a spec asks for a record.
RECORDS = {
    "v4_packed": {},
    "v41": {"attention_backend": "flashmla_sparse"},
    "v41_fp4": {},
    "fp8_raw": {"attention_backend": "flashinfer_mla_sparse", "kv_cache_dtype": "fp8_e4m3"},
    "bf16": {"attention_backend": "flashinfer_mla_sparse"},
}


def test_six_rows_of_each_release_are_there():
    assert [row["version"] for row in ROWS] == [v for v in ("0.30.0", "0.31.0", "0.32.0", "0.33.0") for _ in range(6)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_answer_is_that_of_the_engine(row: dict[str, Any]):
    ratios, sources = row["compress_ratios"], row["kv_source_layer_ids"]
    spec = {
        "model": {
            **FLASH,
            "num_hidden_layers": len(ratios),
            "compress_ratios": ratios,
            "kv_source_layer_ids": sources,
            "index_source_layer_ids": sources,
        },
        "deployment": {
            "engine": "vllm",
            "release": row["version"],
            "gpu": row["gpu"],
            "tp": 8,
            **RECORDS[row["record"]],
            "indexer_kv_dtype": {68: "mxfp4", 132: "fp8"}[row["index_row_bytes"]],
            "draft_layers": row["draft_layers"],
            "num_speculative_tokens": row["num_speculative_tokens"],
            "max_model_len": row["max_model_len"],
            "max_num_batched_tokens": row["max_num_batched_tokens"],
            "kv_budget": row["available_kv_bytes"],
        },
        "workload": {"context": 4_096},
    }
    plan = hsplan.plan(spec).to_dict()
    found, expected = plan["scenarios"][plan["as_launched"]], dict(row["expected"])
    assert found["row"]["format"] == row["record"]
    assert found["max_total_num_tokens"] == expected.pop("tokens")
    assert expected.pop("starts") == ("vLLM does not start" not in (found["why_not"] or ""))
    for key, value in expected.items():
        assert found["blocks"][key] == value, key
