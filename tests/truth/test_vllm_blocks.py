"""Every row that vLLM's own planning code produced: blocks, concurrency and tokens, with HiSparse and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hsplan

GIB = 2**30
ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "vllm-0.33.0.jsonl").read_text(encoding="utf-8").splitlines()
]
# Bytes of a row: how a spec asks for it.
LAUNCH = {
    1152: {"gpu": "h200", "kv_cache_dtype": "bfloat16"},
    656: {"gpu": "h200", "kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashmla_sparse"},
    576: {"gpu": "b200", "kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashinfer_mla_sparse"},
}


def spec_of(row: dict[str, Any]) -> dict[str, Any]:
    offload = None
    if row["hisparse"] is not None:
        offload = {**row["hisparse"], "host_pool": row["host_pool_gib"] * GIB}
    return {
        "model": row["config"],
        "deployment": {
            "engine": "vllm",
            "release": row["version"],
            **LAUNCH[row["row_bytes"]],
            "tp": row["tp"],
            "draft_layers": row["draft_layers"],
            "num_speculative_tokens": row["num_speculative_tokens"],
            "max_model_len": row["max_model_len"],
            "max_num_batched_tokens": row["max_num_batched_tokens"],
            "kv_budget": row["available_kv_bytes"],
        },
        "offload": offload,
    }


def test_all_sixty_rows_are_there():
    assert len(ROWS) == 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_answer_is_that_of_the_engine(row: dict[str, Any]):
    plan = hsplan.plan(spec_of(row)).to_dict()
    found = plan["scenarios"][plan["as_launched"]]
    assert found["row"]["bytes"] == row["row_bytes"]
    assert found["row"]["page_tokens"] == row["block_size"]
    expected = dict(row["expected"])
    assert found["max_total_num_tokens"] == expected.pop("tokens")
    assert set(found["blocks"]) == set(expected)
    for key, value in expected.items():
        assert found["blocks"][key] == pytest.approx(value, rel=1e-12, abs=0), key
        assert type(found["blocks"][key]) is type(value), key
