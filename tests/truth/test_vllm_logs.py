"""
What real vLLM runs printed: the logged tokens for a budget of the printed GiB, and for the blocks that they imply.

`RUNS` says how a record is launched; `LEFT_OUT` why another is not. Together they are all vLLM records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan
from hsplan.spec import load_spec

GIB = 2**30
RECORDS = {
    record["id"]: record
    for record in yaml.safe_load((Path(__file__).parent / "data" / "engine-logs.yaml").read_text(encoding="utf-8"))
    if not str(record["engine"]).startswith("sglang")
}
KIMI_2025 = {"spec": "kimi-k2-fp8", "gpu": "h200", "tp": 8, "release": "main-2025-11-06", "max_model_len": 131_072}
KIMI = {
    "spec": "kimi-k2.5-int4", "gpu": "rtx-pro-6000", "tp": 8, "kv_cache_dtype": "fp8_e4m3",
    "release": "main-2026-04-20", "max_model_len": 262_144,
}  # fmt: skip
GLM_51 = {
    "spec": "glm-5.1-fp8", "gpu": "rtx-pro-6000", "tp": 8, "kv_cache_dtype": "fp8_e4m3",
    "release": "main-2026-05-14", "max_model_len": 202_752,
}  # fmt: skip
# A build that ignores `indexer_types`; the checkpoint has nothing else to say which layers share.
REAP = {
    "spec": "glm-5.2-nvfp4", "gpu": "rtx-pro-6000", "tp": 4, "kv_cache_dtype": "fp8_e4m3", "draft_layers": 1,
    "num_speculative_tokens": 3, "release": "main-2026-06-25", "max_model_len": 250_000,
    "model": {"index_topk_freq": None, "index_skip_topk_offset": None},
}  # fmt: skip
MTP = {"draft_layers": 1, "num_speculative_tokens": 3}

# Records with GiB and tokens.
RUNS: dict[str, dict[str, Any]] = {
    "kimi-k2-thinking-h200-tp8-bf16": KIMI_2025,
    "kimi-k2-thinking-h200-tp8-dcp8-bf16": {**KIMI_2025, "dcp": 8},
    "glm51-nvfp4-rtxpro6000-tp8-dcp1-mtp0": GLM_51,
    "glm51-nvfp4-rtxpro6000-tp8-dcp1-mtp3": {**GLM_51, **MTP},
    "glm51-nvfp4-rtxpro6000-tp8-dcp2-mtp3": {**GLM_51, **MTP, "dcp": 2},
    "glm51-nvfp4-rtxpro6000-tp8-dcp4-mtp0": {**GLM_51, "dcp": 4},
    "glm51-nvfp4-rtxpro6000-tp8-dcp8-mtp3": {**GLM_51, **MTP, "dcp": 8},
    # a community build of 2026-05-02 on the token formula of before 2026-04-28
    "glm51-nvfp4-rtxpro6000-tp8-mtp-gmu089": {**GLM_51, **MTP, "release": "main-2026-04-27"},
    "glm52-reap469b-rtxpro6000-tp4-dcp4": {**REAP, "dcp": 4},
    "glm52-reap469b-rtxpro6000-tp4-dcp2": {**REAP, "dcp": 2},
}
# Records with tokens alone: the blocks that they imply give them back.
BY_BLOCKS: dict[str, dict[str, Any]] = {
    "kimi-k26-tp8-dcp1-nomtp": KIMI,
    "kimi-k26-tp8-dcp1-mtp3": KIMI,
    "kimi-k26-tp8-dcp4-mtp3": {**KIMI, "dcp": 4},
    "kimi-k26-tp8-dcp8-nomtp": {**KIMI, "dcp": 8},
    "kimi-k26-refresh-dcp4-mtp3": {**KIMI, "dcp": 4},
    "kimi-k26-v2-dcp1-mtp3": KIMI,
    "kimi-k26-v2-dcp4-nomtp": {**KIMI, "dcp": 4},
    "kimi-k26-v2-dcp8-mtp3": {**KIMI, "dcp": 8},
    "kimi-k26-v2-dcp8-nomtp": {**KIMI, "dcp": 8},
    "kimi-k26-tp16-gmu094": {**KIMI, "tp": 16, "nodes": 2},
    "kimi-k25-dcp1-fp8": KIMI,
    "glm51-nvfp4-a16-rtxpro6000-tp8": {**GLM_51, "release": "main-2026-05-15"},
}
ELSEWHERE = {
    "glm52-reap469b-rtxpro6000-tp4-dcp1-limit": "the estimated maximum length, tested below",
    "glm52-4x96gb-pr82-fp8dsmla": "bytes per token only, tested below",
    "glm52-fp8-hisparse-dp64-pd": "blocks of the host pool, tested below",
    "glm53-h200-hisparse-calculator-default": "the calculator, tested in test_vllm_cases.py",
}
LEFT_OUT = {
    "minimax-m27-awq-gb10-tp2": "a GQA model, refused; its pool is the minimum of two unequal nodes",
    "glm53flash-h200nvl-tp2-fp8": "GLM-5.3-Flash is another architecture",
    "glm53flash-gb10-1m": "GLM-5.3-Flash is another architecture",
    "glm52-a100-40g-pp16-tp2": "no published build runs sparse MLA on an A100; its stages are tested in test_vllm.py",
    "glm52-fp8-b200-tp8-1m": "an order of magnitude, no capacity line",
    "glm52-fp8-h200-tp8-200k": "no capacity line",
    "glm53-mi350x-hisparse": "ROCm, no capacity line",
    "inferencex-vllm-log-fixtures": "a test fixture, model not stated",
}


def is_of_another_family(record_id: str) -> bool:
    """Those of test_vllm_families.py."""
    return record_id.startswith(("dsv4", "minimax-m3"))


def plan_of(run: dict[str, Any], **more: Any) -> dict[str, Any]:
    run = {**run, **more}
    spec, context = run.pop("spec"), 4096
    plan = hsplan.plan(_with_model(spec, run.pop("model", None)), engine="vllm", context=context, **run).to_dict()
    launched: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return launched


def _with_model(spec: str, changes: dict[str, Any] | None) -> Any:
    if changes is None:
        return spec
    return {"model": {**load_spec(spec, {}).spec.model, **changes}, "deployment": {"gpu": "h200"}}


def test_every_vllm_record_is_run_or_left_out_with_a_reason():
    ours = {record_id for record_id in RECORDS if not is_of_another_family(record_id)}
    assert set(RUNS) | set(BY_BLOCKS) | set(ELSEWHERE) | set(LEFT_OUT) == ours
    assert len(RUNS) + len(BY_BLOCKS) + len(ELSEWHERE) + len(LEFT_OUT) == len(ours)


@pytest.mark.parametrize("record_id", RUNS)
def test_the_logged_tokens_lie_between_those_of_the_printed_gib_and_half_a_digit(record_id: str):
    record, run = RECORDS[record_id], RUNS[record_id]
    gib, check = record["available_kv_gib"], record["check"]
    low, high = (plan_of(run, kv_budget=int((gib + half) * GIB)) for half in (-0.005, 0.005))
    assert low["bytes_per_token"]["charged"] == check["bytes_per_token"]
    assert low["blocks"]["bytes_per_block"] == check["page_bytes"]
    assert low["row"]["page_tokens"] == check["block_size"]
    # 10.3 GiB of the REAP runs has one decimal, and 355,000 is rounded.
    slack = 4 * 64 * 4 if record_id.startswith("glm52-reap") else 0
    assert low["max_total_num_tokens"] - slack <= record["tokens"] <= high["max_total_num_tokens"] + slack


@pytest.mark.parametrize("record_id", [r for r in RUNS if r != "glm52-reap469b-rtxpro6000-tp4-dcp2"])
def test_the_blocks_of_a_log_print_its_tokens_and_its_concurrency(record_id: str):
    record = RECORDS[record_id]
    budget = record["check"]["blocks_from_log"] * record["check"]["page_bytes"]
    found = plan_of(RUNS[record_id], kv_budget=budget)
    assert found["blocks"]["num_blocks"] == record["check"]["blocks_from_log"]
    assert record["tokens"] - 1 <= found["max_total_num_tokens"] <= record["tokens"]
    if record["max_concurrency"] is not None:
        assert f"{found['blocks']['max_concurrency']:.2f}" == f"{record['max_concurrency']:.2f}"


@pytest.mark.parametrize("record_id", BY_BLOCKS)
def test_a_log_without_gib_holds_whole_blocks_of_the_page_that_its_backend_takes(record_id: str):
    record, run = RECORDS[record_id], BY_BLOCKS[record_id]
    page = 64 if record_id.startswith("glm") else 16
    row = 78 * (656 + 132) if record_id.startswith("glm") else 61 * 576
    blocks = -(-record["tokens"] // (page * run.get("dcp", 1)))
    found = plan_of(run, kv_budget=blocks * page * row)
    assert found["blocks"] == {
        "bytes_per_block": page * row,
        "num_blocks": blocks,
        "max_concurrency": pytest.approx(record["tokens"] / run["max_model_len"], rel=1e-5),
    }
    assert found["max_total_num_tokens"] == record["tokens"]


def test_3_900_blocks_print_one_token_less_than_they_hold():
    found = plan_of(GLM_51, release="main-2026-05-15", kv_budget=3_900 * 3_933_696)
    assert (found["blocks"]["num_blocks"], found["max_total_num_tokens"]) == (3_900, 249_599)
    older = plan_of(GLM_51, release="main-2026-04-27", kv_budget=3_900 * 3_933_696)
    assert older["max_total_num_tokens"] == 249_600


def test_a_pattern_elides_nothing_before_june_2026():
    pattern = {"index_topk_pattern": "F" + "S" * 77}
    early = plan_of(GLM_51, model=pattern, kv_budget="19.55GiB")
    late = plan_of(GLM_51, model=pattern, kv_budget="19.55GiB", release="main-2026-06-19")
    assert early["bytes_per_token"]["charged"] == 78 * (656 + 132)
    assert late["bytes_per_token"]["charged"] == 78 * 656 + 132


def test_a_run_that_does_not_start_names_the_length_that_would():
    found = plan_of(REAP, kv_budget=2_777 * 3_984_128)
    assert not found["fits"]
    # 3,907 blocks of 3,984,128 B are 14.50 GiB; 2,777 are 10.30 and hold 177,728 tokens.
    assert "one request of max_model_len 250,000 needs 14.50 GiB, 10.30 GiB are there" in found["why_not"]
    assert found["cure"] == "max_model_len 177,728"
    assert RECORDS["glm52-reap469b-rtxpro6000-tp4-dcp1-limit"]["tokens"] == 177_728


def test_glm_52_with_its_mtp_layer_takes_54_728_bytes_a_token_once_elided():
    run = {**GLM_51, "spec": "glm-5.2-nvfp4", "tp": 4, "release": "main-2026-07-01", "draft_layers": 1}
    rate = plan_of(run, kv_budget="20GiB")["bytes_per_token"]
    assert rate["charged"] == RECORDS["glm52-4x96gb-pr82-fp8dsmla"]["check"]["logged_bytes_per_token"] == 54_728
    assert rate["draft"] == 656 + 132


def test_a_host_pool_of_160_gib_a_rank_holds_59_747_blocks():
    found = plan_of(
        {"spec": "glm-5.2-fp8", "gpu": "b200", "tp": 1, "dp": 64, "ep": 64, "nodes": 8, "kv_cache_dtype": "fp8_e4m3"},
        kv_budget="20GiB", host_pool="160GiB",
    )  # fmt: skip
    check = RECORDS["glm52-fp8-hisparse-dp64-pd"]["check"]
    assert found["blocks"]["host_block_stride"] == check["host_block_bytes"] == 2_875_392
    assert found["blocks"]["host_num_blocks"] == check["host_blocks"] == 59_747
    assert found["blocks"]["shared_host_pool"] is False
    assert found["deployment"]["host_bytes_per_node"] == 8 * 59_747 * 2_875_392


# The build of 2026-05-02 reserves 2.8 GiB, less than the workspaces of any published one.
BUDGETED = [r for r in RUNS if RECORDS[r]["gpu_memory_utilization"] is not None and not r.endswith("gmu089")]


@pytest.mark.parametrize("record_id", BUDGETED)
def test_from_spec_and_flags_alone_the_logged_gib_lies_in_the_range(record_id: str):
    """The reserve was tuned on the first of these runs, whose graphs are not estimated: consistency, not proof."""
    record = RECORDS[record_id]
    run = {**RUNS[record_id], "spec": "glm-5-nvfp4", "release": "main-2026-05-14"}
    found = plan_of(
        run, mem_fraction=record["gpu_memory_utilization"], max_running_requests=64, max_num_batched_tokens=8192,
        cuda_graph_max_bs=0,
    )  # fmt: skip
    low, high = (edge / GIB for edge in found["kv_budget_bytes_range"])
    assert low <= record["available_kv_gib"] <= high
    assert found["kv_budget_bytes"] / GIB == pytest.approx(record["available_kv_gib"], abs=3.5)
