"""
What real vLLM runs of DeepSeek-V4 and MiniMax-M3 printed, and cases about them, answered through `hsplan.plan()`.

A V4 log gives whole blocks only, so tokens and concurrency follow bit for bit from the blocks that they imply.
`LEFT_OUT` says why another record is not run. Together with the tests below these are all records of both families.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan

GIB = 2**30
DATA = Path(__file__).parent / "data"
RECORDS = {
    record["id"]: record
    for record in yaml.safe_load((DATA / "engine-logs.yaml").read_text(encoding="utf-8"))
    if record["id"].startswith(("dsv4", "minimax-m3")) and not str(record["engine"]).startswith("sglang")
}
CASES = {case["id"]: case for case in yaml.safe_load((DATA / "cases.yaml").read_text(encoding="utf-8"))["cases"]}

DSPARK = {
    "gpu": "rtx-pro-6000", "tp": 4, "draft_layers": 3, "release": "main-2026-08-10", "max_model_len": 33_792,
    "max_num_batched_tokens": 8_448,
}  # fmt: skip
# Labelled v0.22, which counts the tokens of one step: F = 16,384 is max_num_batched_tokens.
GH200 = {
    "gpu": "gh200", "tp": 2, "release": "main-2026-06-01", "max_model_len": 30_000, "max_num_batched_tokens": 16_384,
}  # fmt: skip
# A fork for SM89 of that day; its cards are not known here, blocks do not depend on them.
FORK_4090 = {"gpu": "rtx-pro-6000", "tp": 4, "release": "main-2026-07-01", "max_num_batched_tokens": 2_048}
B200 = {"gpu": "b200", "release": "0.25.0", "max_model_len": 1_048_576, "max_num_batched_tokens": 8_192}
M3 = {
    "gpu": "b200", "tp": 2, "kv_cache_dtype": "fp8_e4m3", "indexer_kv_dtype": "fp8", "draft_layers": 1,
    "release": "main-2026-08-20", "max_model_len": 1_048_576, "max_num_batched_tokens": 16_384,
}  # fmt: skip

RUN = {
    "dsv4flash-rtxpro5000-tp4-dspark", "dsv4flash-gh200-tp2-fit-error", "dsv4flash-4090-48g-tp4-L262144",
    "dsv4flash-4090-48g-tp4-L786432", "dsv4flash0731-h20-tp2-v026", "dsv4flash0731-b200-tp8",
    "dsv4flash0731-b200-dp8", "minimax-m3-nvfp4-b200-tp2-fit-error",
}  # fmt: skip
LEFT_OUT = {
    "dsv4flash-preview-b300": "a ratio whose tokens were not printed, parallelism not stated",
    "dsv4flash0731-gb10-nvfp4dsmla": "a cache dtype of a fork",
    "dsv4flash-rtxpro6000-tp2-fp8": "rounded figures of a fork",
    "dsv4pro-dspark-b300-tp8": "rounded figures of a budget, no capacity line",
    "minimax-m3-nvfp4-tp4-nominal": "nominal arithmetic, not engine output; its rate is tested below",
}


def launched(spec: str = "deepseek-v4-flash", **run: Any) -> dict[str, Any]:
    plan = hsplan.plan(spec, engine="vllm", **{"context": 4_096, **run}).to_dict()
    found: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return found


def needed_gib(found: dict[str, Any]) -> float:
    match = re.search(r"needs ([\d.]+) GiB", found["why_not"])
    assert match is not None
    return float(match[1])


def longest(found: dict[str, Any]) -> int:
    assert found["cure"].startswith("max_model_len ")
    return int(found["cure"].removeprefix("max_model_len ").replace(",", ""))


def test_every_record_of_both_families_is_run_or_left_out_with_a_reason():
    assert RUN | set(LEFT_OUT) == set(RECORDS)


def test_the_dspark_run_has_its_blocks_tokens_and_concurrency():
    record, check = RECORDS["dsv4flash-rtxpro5000-tp4-dspark"], RECORDS["dsv4flash-rtxpro5000-tp4-dspark"]["check"]
    found = launched(kv_budget=check["blocks_from_log"] * check["stride"], **DSPARK)
    assert found["blocks"]["bytes_per_block"] == check["stride"] == 1_002_240
    assert found["max_total_num_tokens"] == record["tokens"] == 63_859
    assert f"{found['blocks']['max_concurrency']:.2f}" == "1.89"
    # 12.39 GiB are 13,273 blocks, the named exception: 3 more than logged, 0.022 %.
    printed = launched(kv_budget=int(record["available_kv_gib"] * GIB), **DSPARK)
    assert printed["blocks"]["num_blocks"] == check["predicted_blocks"] == 13_273
    assert printed["max_total_num_tokens"] == check["predicted_tokens"] == 63_873


def test_the_gh200_run_fails_with_the_gib_and_the_length_of_its_message():
    record = RECORDS["dsv4flash-gh200-tp2-fit-error"]
    low, high = (launched(kv_budget=int((5.44 + half) * GIB), **GH200) for half in (-0.005, 0.005))
    assert needed_gib(low) == record["need_gib"] == 6.66
    assert longest(low) <= record["estimated_max_len"] <= longest(high)
    # 5,554 pages of 22 × 47,808 B hold exactly the length that was logged, 5,553 do not.
    assert longest(launched(kv_budget=5_554 * 1_051_776, **GH200)) == record["estimated_max_len"] == 13_528
    assert longest(launched(kv_budget=5_554 * 1_051_776 - 1, **GH200)) < 13_528


@pytest.mark.parametrize(
    ("record_id", "blocks"), [("dsv4flash-4090-48g-tp4-L262144", 6_610), ("dsv4flash-4090-48g-tp4-L786432", 5_944)]
)
def test_two_lengths_on_one_machine_print_their_tokens_bit_for_bit(record_id: str, blocks: int):
    record = RECORDS[record_id]
    found = launched(kv_budget=blocks * 1_039_680, max_model_len=record["max_model_len"], **FORK_4090)
    assert found["blocks"]["num_blocks"] == blocks
    assert found["max_total_num_tokens"] == record["tokens"]
    assert f"{found['blocks']['max_concurrency']:.2f}" == f"{record['max_concurrency']:.2f}"
    # The record divides by 757.4 blocks of states and windows, the engine by whole blocks.
    assert blocks == pytest.approx(record["check"]["blocks_implied"], abs=2)


def test_the_h20_run_prints_about_150_000_tokens_by_the_rules_of_its_release():
    """0.26.0 has neither dense blocks nor blocks by group; the record tried other strides with the newer formula."""
    record = RECORDS["dsv4flash0731-h20-tp2-v026"]
    found = launched(
        gpu="h20", tp=2, release="0.26.0", max_model_len=record["max_model_len"], max_num_batched_tokens=8_192,
        kv_budget=int(record["available_kv_gib"] * GIB),
    )  # fmt: skip
    assert found["blocks"]["num_blocks"] == record["check"]["legacy_stride"]["blocks"] == 7_952
    # 474 + 5,917 blocks a request; 7.7 GiB and 150K are rounded in the issue.
    assert found["max_total_num_tokens"] == int(7_952 / 6_391 * 121_344) == 150_982
    assert found["max_total_num_tokens"] == pytest.approx(record["tokens"], rel=0.01)


@pytest.mark.parametrize(
    ("record_id", "ranks", "engines"),
    [("dsv4flash0731-b200-tp8", {"tp": 8}, 1), ("dsv4flash0731-b200-dp8", {"tp": 1, "dp": 8, "ep": 8}, 8)],
)
def test_the_blocks_of_the_b200_runs_print_their_concurrency(record_id: str, ranks: dict[str, int], engines: int):
    record, check = RECORDS[record_id], RECORDS[record_id]["check"]
    found = launched(kv_budget=check["blocks_implied_per_engine"] * 1_039_680, **B200, **ranks)
    assert engines * found["blocks"]["max_concurrency"] == pytest.approx(record["max_concurrency"], abs=0.015)


def test_the_m3_run_fails_with_the_gib_and_the_length_of_its_message():
    record = RECORDS["minimax-m3-nvfp4-b200-tp2-fit-error"]
    check = record["check"]
    found = launched("minimax-m3-bf16", kv_budget=int(record["available_kv_gib"] * GIB), **M3)
    assert found["bytes_per_token"]["charged"] == check["bytes_per_token"] == 38_528
    assert found["blocks"]["bytes_per_block"] == check["page_bytes"] == 4_931_584
    assert needed_gib(found) == record["need_gib"] == 37.62
    low, high = (launched("minimax-m3-bf16", kv_budget=int((31.72 + half) * GIB), **M3) for half in (-0.005, 0.005))
    assert longest(low) <= record["estimated_max_len"] <= longest(high)
    assert longest(launched("minimax-m3-bf16", kv_budget=6_905 * 4_931_584, **M3)) == record["estimated_max_len"]


def test_the_rate_of_the_nominal_m3_pools_is_that_of_four_ranks():
    found = launched("minimax-m3-bf16", kv_budget="40GiB", **{**M3, "tp": 4, "max_model_len": 131_072})
    check = RECORDS["minimax-m3-nvfp4-tp4-nominal"]["check"]
    assert found["bytes_per_token"]["charged"] == check["bytes_per_token_per_rank_tp4"] == 22_912


def test_a_report_of_v4_has_fixed_bytes_per_request_and_bytes_per_token():
    assert CASES["vllm-51041-not-a-rate"]["expect"]["value"] == "fixed bytes per request + bytes per token"
    found = launched(kv_budget="20GiB", release="0.33.0", gpu="h200", tp=4, max_num_batched_tokens=8_192)
    assert set(found["bytes_per_token"].values()) == {None}
    assert found["blocks"]["bytes_per_full_token"] == 3_915
    # 2 × 259 + 2,065 + 4,099 blocks whatever the length
    assert found["blocks"]["fixed_bytes_per_request"] == 6_682 * 1_002_240


def test_the_fixed_part_between_two_logged_lengths_is_that_of_the_case():
    case = CASES["vllm-44376-two-point"]
    points = [
        (point["tokens"], needed_gib(launched(kv_budget="1GiB", **{**GH200, "max_model_len": point["tokens"]})))
        for point in case["given"]["points"]
    ]
    assert points == [(30_000, 6.66), (13_528, 5.44)]
    slope = (points[0][1] - points[1][1]) / (points[0][0] - points[1][0])
    assert points[1][1] - slope * points[1][0] == pytest.approx(case["expect"]["value"], rel=case["tolerance"])


def test_the_printed_tokens_of_the_same_bytes_grow_with_the_length():
    """spark-57: a fork's figures, but the explanation holds for upstream."""
    assert "depend on max_model_len" in CASES["spark-57-pool-vs-maxlen"]["expect"]["value"]
    short, long = (
        launched(kv_budget="24.5GiB", release="0.33.0", gpu="rtx-pro-6000", tp=2, max_model_len=length)
        for length in (50_000, 500_000)
    )
    assert short["blocks"]["num_blocks"] == long["blocks"]["num_blocks"]
    assert long["max_total_num_tokens"] > 5 * short["max_total_num_tokens"]
    assert short["concurrency"]["limits"]["gpu"] == long["concurrency"]["limits"]["gpu"]
