"""
What real SGLang runs printed: the pool size at the logged tokens, and the logged tokens for a budget that gives them.

`RUNS` says how a record is launched; `LEFT_OUT` why another is not. Together they are all SGLang records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan

GIB = 2**30
RECORDS = {
    record["id"]: record
    for record in yaml.safe_load((Path(__file__).parent / "data" / "engine-logs.yaml").read_text(encoding="utf-8"))
    if str(record["engine"]).startswith("sglang")
}
GB300_RUN = {"spec": "glm-5.2-nvfp4", "gpu": "gb300", "tp": 4, "draft_layers": 1, "num_speculative_tokens": 5}
H200_RUN = {"spec": "glm-5.1-fp8", "gpu": "h200", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "release": "main-2026-06-12"}
V32_RUN = {"spec": "deepseek-v3.2-fp8", "gpu": "b200", "tp": 8, "dp_attention": 8, "kv_cache_dtype": "fp8_e4m3"}

RUNS: dict[str, dict[str, Any]] = {
    "glm52-nvfp4-gb300-tp4-main": {**GB300_RUN, "release": "main-2026-08-14"},
    "glm52-nvfp4-tp4-pr30310-base": {**GB300_RUN, "release": "main-2026-07-07"},
    "glm51-fp8-h200-tp8-mfs70": {**H200_RUN, "mem_fraction": 0.7},
    "glm51-fp8-h200-tp8-mfs80": {**H200_RUN, "mem_fraction": 0.8},
    "glm51-fp8-h200-tp8-mfs90": {**H200_RUN, "mem_fraction": 0.9},
    "glm51-fp8-h200-tp8-mfs95": {**H200_RUN, "mem_fraction": 0.95},
    # v0.5.8.post1 in an image of 2026-02-18: priced as the build of that day
    "glm5-fp8-mi355x-tp8": {
        "spec": "glm-5-fp8", "gpu": "mi355x", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "page_size": 1,
        "release": "main-2026-02-18",
    },
    "kimi-k25-mi355x-tp8": {"spec": "kimi-k2.5-int4", "gpu": "mi355x", "tp": 8, "release": "main-2026-02-26"},
    # v0.5.14, older than 0.5.17: a build of the days before it; bf16 rows are charged alike in all builds
    "glm51-fp8-mi35x-tp4-bf16": {
        "spec": "glm-5.1-fp8", "gpu": "mi355x", "tp": 4, "kv_cache_dtype": "bfloat16", "release": "main-2026-07-01",
    },
    "glm52-mi355x-tp8-rows": {
        "spec": "glm-5.2-bf16", "gpu": "mi355x", "tp": 8, "kv_cache_dtype": "bfloat16", "release": "main-2026-08-01",
    },
    # the branch of #11309 is what main is from 2025-10-08 on
    "dsv32-b200-dp8-after11309": {**V32_RUN, "release": "main-2025-10-08"},
    "sglang-dsv32-b200-dp8": {**V32_RUN, "release": "main-2025-10-08"},
}  # fmt: skip
LEFT_OUT = {
    "glm52-nvfp4-gb300-tp4-pr30531": "branch of a pull request with a draft term that was never released",
    "glm52-nvfp4-tp4-pr30310-elided": "reverted the same day",
    "dsv32-b200-dp8-before11309": "main before the first build that hsplan knows: no index term at all",
    "glm51-fp8-h200-tp8-noidxcell-mfs70": "experimental branch without the index term",
    "glm51-fp8-h200-tp8-noidxcell-mfs75": "experimental branch without the index term",
    "glm51-fp8-h200-tp8-noidxcell-mfs85": "experimental branch without the index term",
    "glm51-fp8-h200-tp8-noidxcell-mfs95": "experimental branch without the index term",
    "glm52-fp4-mi355x-hicache-r1": "host pools of HiCache only; the bytes per token are tested below",
    "glm52-nvfp4-b300-hicache270": "host pools of HiCache only; the bytes per token are tested below",
    "sglang-glm52-mi355x-hicache": "host pools of HiCache only; the bytes per token are tested below",
    "glm52-fp4-mi355x-hicache-r1p5": "marked unreconciled",
    "dsv4-flash-base-h20-mfs60": "prints a budget, no pool: its rate, budget and tokens are tested below",
    "dsv4-flash-0731-ascend-1": "an NPU, with pages of 128: its rate is tested below",
    "dsv4-flash-0731-ascend-2": "an NPU, with pages of 128: its rate is tested below",
    "dsv4-flash-l20-tp8": "inputs not published; the ordering of its tokens is tested in test_cases.py",
    "dsv4-flash-tp4-eagle": "neither budget nor pool printed",
    "dsv4-dspark-3node": "neither model nor budget published",
    "r1-0528-b200-tp8": "v0.4.10 of mid-2025, older than any build that hsplan knows",
    "dsv3-class-295k": "no version, flags unknown",
    "r1-fp8-h200-tp8-aisimulate": "no version, tokens approximate",
    "glm52-w4afp8-h20-hisparse": "no budget and no pool size printed; its request cap is tested below",
    "glm52-fp8-pd-prefill": "a draft-weight datum only, no tokens",
    "glm52-nvfp4-rtxpro-loadbegin": "a free-memory datum only, no tokens",
    "glm53-flash-sm120": "a hybrid model; no tokens printed",
    "glm52-fp8-tpu-sglang-jax": "another engine (sglang-jax)",
    "glm52-nvfp4-agentic-ingest-a": "model and configuration not published",
    "sm120-glm-hisparse-concurrency": "a concurrency datum only",
}


def plan_of(record_id: str, **more: Any) -> dict[str, Any]:
    run = {**RUNS[record_id], **more}
    plan = hsplan.plan(run.pop("spec"), **run).to_dict()
    launched: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return launched


def line_gib(scenario: dict[str, Any], *names: str) -> float:
    return sum(line["bytes"] for line in scenario["ledger"] if line["name"] in names) / GIB


def test_every_sglang_record_is_run_or_left_out_with_a_reason():
    assert set(RUNS) | set(LEFT_OUT) == set(RECORDS)
    assert not set(RUNS) & set(LEFT_OUT)


def _budget_bytes(record_id: str) -> int:
    """A budget inside the record's interval; where none is published, a generous one under a token limit."""
    interval = RECORDS[record_id].get("budget_interval")
    if interval is None:
        return 250 * GIB
    return int((interval["gib_low"] + interval["gib_high"]) / 2 * GIB)


@pytest.mark.parametrize("record_id", [r for r in RUNS if RECORDS[r].get("budget_interval")])
def test_a_budget_inside_the_interval_gives_the_logged_tokens(record_id: str):
    record = RECORDS[record_id]
    scenario = plan_of(record_id, kv_budget=_budget_bytes(record_id))
    assert scenario["bytes_per_token"]["charged"] == record["budget_interval"]["cell_size"]
    tokens = scenario["max_total_num_tokens"]
    if scenario["row"]["page_tokens"] > 1:
        assert tokens == record["tokens"]
    else:  # without pages the printed interval, rounded to 0.0001 GiB, is wider than a token
        cell, low, high = (record["budget_interval"][key] for key in ("cell_size", "gib_low", "gib_high"))
        assert (low - 0.0001) * GIB / cell - 1 <= tokens <= (high + 0.0001) * GIB / cell
        exact = plan_of(record_id, kv_budget=record["tokens"] * cell)
        assert exact["max_total_num_tokens"] == record["tokens"]


PRINTED = [
    (record_id, pool, names)
    for record_id in RUNS
    for pool, names in (("kv_size_gb", ("KV rows", "index-K")), ("draft_kv_size_gb", ("draft KV pool",)))
    if RECORDS[record_id].get(pool)
]


@pytest.mark.parametrize(("record_id", "pool", "names"), PRINTED, ids=str)
def test_the_pool_has_the_printed_size_at_the_logged_tokens(record_id: str, pool: str, names: tuple[str, ...]):
    record = RECORDS[record_id]
    scenario = plan_of(record_id, kv_budget=250 * GIB, max_total_tokens=record["tokens"])
    assert scenario["max_total_num_tokens"] == record["tokens"]
    assert line_gib(scenario, *names) == pytest.approx(record[pool], abs=0.005)


def test_the_reference_record_has_its_pool_of_43_67_gib_at_975424_tokens():
    scenario = plan_of("sglang-dsv32-b200-dp8", kv_budget=250 * GIB, max_total_tokens=975_424)
    assert line_gib(scenario, "KV rows", "index-K") == pytest.approx(43.67, abs=0.005)


def test_a_layer_tensor_has_one_page_more_than_the_tokens():
    record = RECORDS["glm52-mi355x-tp8-rows"]
    scenario = plan_of("glm52-mi355x-tp8-rows", kv_budget=250 * GIB, max_total_tokens=record["tokens"])
    kv = next(line for line in scenario["ledger"] if line["name"] == "KV rows")
    assert kv["bytes"] == record["kv_tensor_rows"] * 1152 * 78


def test_host_pools_of_hicache_scale_as_44928_to_10296_bytes_before_0_5_22():
    plan = hsplan.plan(
        "glm-5.2-nvfp4", gpu="mi355x", tp=4, kv_cache_dtype="fp8_e4m3", hierarchical_cache=True, release="0.5.19"
    ).to_dict()
    launched = plan["scenarios"][plan["as_launched"]]
    assert plan["as_launched"] == "baseline"
    assert launched["bytes_per_token"]["stored_kv"] == 44_928
    assert launched["bytes_per_token"]["stored_index"] == 10_296


def test_a_hisparse_request_ends_at_the_device_tokens_less_6():
    def longest(release: str) -> int:
        plan = hsplan.plan(
            "glm-5.2-fp8", gpu="h20", tp=8, kv_cache_dtype="fp8_e4m3", release=release, offload={},
            kv_budget=100 * GIB, max_total_tokens=181_952,
        ).to_dict()  # fmt: skip
        tokens: int = plan["scenarios"]["offload"]["max_request_tokens"]
        return tokens

    assert longest("main-2026-07-01") == 181_946  # logged
    # The workers of 0.5.17, 0.5.20, 0.5.22 and 0.5.23 have the same line.
    assert longest("0.5.17") == longest("0.5.18") == longest("0.5.23") == 181_946


def v4_flash(release: str, **flags: Any) -> dict[str, Any]:
    plan = hsplan.plan("deepseek-v4-flash", gpu="h20", tp=8, release=release, **flags).to_dict()
    launched: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return launched


def test_the_budget_and_the_tokens_of_the_v4_run_on_h20_of_may_2026():
    record = RECORDS["dsv4-flash-base-h20-mfs60"]
    # rest = avail − pre × (1 − 0.6), each printed within 0.005 GiB
    budget = record["load_end_avail_gb"] - record["pre_gb"] * 0.4
    assert budget == pytest.approx(record["kv_size_gb"], abs=0.0075)
    low, high = (
        v4_flash("main-2026-05-15", kv_budget=int((record["kv_size_gb"] + side) * GIB))["max_total_num_tokens"]
        for side in (-0.005, 0.005)
    )
    assert low <= record["tokens"] <= high
    exact = v4_flash("main-2026-05-15", kv_budget=int(record["tokens"] * 15_955.85) + 1)
    assert exact["compressed"]["bytes_per_full_token"] == pytest.approx(15_955.85, rel=1e-12)
    assert exact["max_total_num_tokens"] == record["tokens"]


@pytest.mark.parametrize("record_id", ["dsv4-flash-0731-ascend-1", "dsv4-flash-0731-ascend-2"])
def test_the_rate_of_the_v4_runs_of_august_2026_is_7705_45_bytes(record_id: str):
    assert "7,705.45" in RECORDS[record_id]["notes"]
    rate = v4_flash("0.5.17", kv_budget="40GiB")["compressed"]["bytes_per_full_token"]
    assert rate == pytest.approx(7_705.45, rel=1e-12)
