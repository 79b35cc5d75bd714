"""Every row that SGLang 0.5.23's own sizing code produced for DeepSeek-V4 and MiniMax-M3: every figure, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan

HERE = Path(__file__).parent
ROWS = [
    json.loads(line)
    for line in (HERE / "data" / "families-sglang-0.5.23.jsonl").read_text(encoding="utf-8").splitlines()
]
V4, M3 = ([row for row in ROWS if row["family"] == family] for family in ("deepseek_v4", "minimax_m3"))
RATES = ("bytes_per_full_token", "bytes_per_swa_token")
SPECS = {
    "deepseek-v4-flash": "deepseek-v4-flash",
    "deepseek-v4-pro": "deepseek-v4-pro",
    "minimax-m3": "minimax-m3-bf16",
}


def model_of(row: dict[str, Any]) -> dict[str, Any]:
    path = HERE.parents[1] / "model_specs" / f"{SPECS[row['model']]}.yaml"
    model: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    return model


def launched(model: dict[str, Any], row: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    """The scenario as launched; every row names its dtype, page, budget and offload alike."""
    same = {
        "engine": row["engine"],
        "release": row["version"],
        "kv_cache_dtype": row["kv_cache_dtype"],
        "page_size": row["page_size"],
        "kv_budget": row["budget_bytes"],
    }
    plan = hsplan.plan({"model": model, "deployment": {**same, **deployment}, "offload": row["hisparse"]}).to_dict()
    found: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return found


def test_all_sixty_four_rows_are_there():
    assert (len(V4), len(M3)) == (40, 24)


@pytest.mark.parametrize("row", V4, ids=lambda row: row["id"])
def test_rates_fixed_bytes_and_slots_of_deepseek_v4_are_those_of_the_engine(row: dict[str, Any]):
    model = {**model_of(row), "compress_ratios": row["compress_ratios"], "sliding_window": row["sliding_window"]}
    scenario = launched(
        model,
        row,
        # trtllm needs SM100
        gpu="b300" if row["attention_backend"] == "trtllm" else "h200",
        tp=8,
        attention_backend=row["attention_backend"],
        max_running_requests="auto" if row["max_running_requests"] is None else row["max_running_requests"],
        dp_attention=row["dp_attention"],
        chunked_prefill_size=row["chunked_prefill_size"],
        radix_cache=row["radix_cache"],
        max_model_len=row["max_model_len"],
        swa_full_tokens_ratio=row["swa_full_tokens_ratio"],
    )
    found = {**scenario["compressed"], "max_total_num_tokens": scenario["max_total_num_tokens"]}
    for name, expected in row["expected"].items():
        if name in RATES:
            assert found[name] == pytest.approx(expected, rel=1e-12, abs=0), name
        else:
            assert found[name] == expected, name
            assert found[name] is None or isinstance(found[name], int)
    assert scenario["max_total_num_tokens_range"] == [row["expected"]["max_total_num_tokens"]] * 2


@pytest.mark.parametrize("row", M3, ids=lambda row: row["id"])
def test_cell_and_tokens_of_minimax_m3_are_those_of_the_engine(row: dict[str, Any]):
    # fa4 on Blackwell keeps the index key in bf16, as all rows have it
    assert row["index_dtype"] == "bfloat16"
    scenario = launched(
        model_of(row), row, gpu="b300", tp=row["attn_tp"], attention_backend="fa4", layer_range=row["pp_layers"]
    )
    assert scenario["bytes_per_token"]["charged"] == row["expected"]["cell_bytes"]
    assert scenario["max_total_num_tokens"] == row["expected"]["max_total_num_tokens"]
    assert scenario["max_total_num_tokens_range"] == [row["expected"]["max_total_num_tokens"]] * 2
