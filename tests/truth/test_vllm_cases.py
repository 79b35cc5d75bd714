"""
Small questions about vLLM with one right answer (data/cases.yaml), answered through `hsplan.plan()`.

`CALCULATOR` are the cases of the blog's calculator; `ANSWERS` computes the others; `NOT_YET` says why none can.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import hsplan

GIB = 2**30
CASES = {
    case["id"]: case
    for case in yaml.safe_load((Path(__file__).parent / "data" / "cases.yaml").read_text(encoding="utf-8"))["cases"]
    if "vllm" in case["id"] + str(case["given"]) and "sglang" not in str(case["given"])
}
PLAIN_FP8 = {"gpu": "b200", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "kv_budget": "40GiB", "host_pool": "1024GiB"}


def scenario(name: str, spec: str = "glm-5.3-fp8", **overrides: Any) -> dict[str, Any]:
    found: dict[str, Any] = hsplan.plan(spec, engine="vllm@0.33.0", **overrides).to_dict()["scenarios"][name]
    return found


def calculated(given: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
    ranks = {"tp": given["tp"], "dp": given["dp"], "ep": given["tp"] * given["dp"] if given["ep"] else 1}
    plan = hsplan.plan(
        "glm-5.3-fp8", preset="vllm-calculator", gpu=given["gpu"], context=given.get("seq", 81_920), **ranks, **more
    )
    found: dict[str, dict[str, Any]] = plan.to_dict()["scenarios"]
    return found


CALCULATOR = [case_id for case_id in CASES if case_id.startswith("vllm-calc-") and case_id != "vllm-calc-nofit"]


@pytest.mark.parametrize("case_id", CALCULATOR)
def test_the_preset_gives_the_numbers_of_the_calculator(case_id: str):
    given, value = CASES[case_id]["given"], CASES[case_id]["expect"]["value"]
    found = calculated(given)
    assert found["elided"]["concurrency"]["requests"] == value["baseline"]
    assert found["elided+offload"]["concurrency"]["requests"] == value["hisparse"]
    assert found["elided+offload"]["host_pool_bytes"] == value["min_host_gib"] * GIB
    assert round(found["elided"]["kv_budget_bytes"] / GIB, 1) == given["kv_hbm_gib"]


# Facts' worked table: context, requests without and with offload, least host GiB.
WORKED = [
    (32_768, 12, 56, 77),
    (65_536, 6, 44, 121),
    (131_072, 3, 30, 165),
    (262_144, 1, 19, 209),
    (524_288, 0, 10, 220),
]


@pytest.mark.parametrize(("context", "without", "offloaded", "host_gib"), WORKED)
def test_the_preset_follows_the_worked_table(context: int, without: int, offloaded: int, host_gib: int):
    found = calculated({"gpu": "h200", "tp": 8, "dp": 1, "ep": True, "seq": context})
    assert found["elided"]["concurrency"]["requests"] == without
    assert found["elided+offload"]["concurrency"]["requests"] == offloaded
    assert found["elided+offload"]["host_pool_bytes"] == host_gib * GIB


def test_weights_without_expert_parallelism_do_not_fit_four_h200():
    case = CASES["vllm-calc-nofit"]
    assert case["expect"]["value"] == "weights_do_not_fit"
    found = calculated(case["given"])["elided"]
    weights = {line["name"]: line["bytes"] for line in found["ledger"]}["weights"]
    # (19.556 + 684.167) / 4 GiB, and 141e9 × 0.92 are 120.8 GiB.
    assert weights / GIB == pytest.approx(175.931, abs=0.001)
    assert found["kv_budget_bytes"] < 0
    assert not found["fits"]


def test_a_smaller_host_pool_than_the_least_limits_the_preset():
    given = CASES["vllm-calc-h200-80k"]["given"]
    assert calculated(given, host_pool="133GiB")["elided+offload"]["concurrency"]["limits"]["host"] == 38
    assert calculated(given, host_pool="134GiB")["elided+offload"]["concurrency"]["requests"] == 39


def test_ten_thousand_hot_rows_leave_22_requests_of_the_preset():
    given = CASES["vllm-calc-h200-80k"]["given"]
    assert calculated(given, device_buffer_size=10_240)["elided+offload"]["concurrency"]["requests"] == 22


def hot_rows_of_mtp3() -> int:
    """Hot blocks of a request from what each more drafted token adds: 20 groups × rows / 64."""
    found = hsplan.plan(
        "glm-5.3-fp8", engine="vllm", draft_layers=1, num_speculative_tokens=3, offload={}, **PLAIN_FP8
    ).scenarios["elided+offload"]
    assert found.budget is not None
    tables = next(line for line in found.budget.lines if line.name == "HiSparse tables")
    # 22 index groups × (128 × rows × 4 + 129 × rows × 2 + 4 × 512 × 2,048 × 4 + 4 × 512 × 4 + 16)
    fixed = 4 * 512 * 2_048 * 4 + 4 * 512 * 4 + 16
    return (tables.bytes // 22 - fixed) // (128 * 4 + 129 * 2)


def seats() -> int:
    found = scenario(
        "elided+offload", "glm-5.2-fp8", gpu="b200", tp=1, dp=64, ep=64, nodes=8, kv_budget="20GiB",
        kv_cache_dtype="fp8_e4m3", max_running_requests=96,
    )  # fmt: skip
    requests: int = found["concurrency"]["limits"]["max_running"]
    assert requests * 64 == 6_144
    return requests


def kimi_gib() -> float:
    found = scenario("baseline", "kimi-k2.5-int4", gpu="b200", tp=8, kv_cache_dtype="fp8_e4m3", kv_budget="60GiB")
    return 96 * (8_192 + 1_024) * int(found["bytes_per_token"]["charged"]) / GIB


ANSWERS: dict[str, Callable[[], Any]] = {
    "vllm-hot-groups-glm53": lambda: scenario("elided+offload", **PLAIN_FP8)["blocks"]["hot_groups"],
    "vllm-gpu-block-stride-fp8": lambda: scenario("elided+offload", **PLAIN_FP8)["blocks"]["bytes_per_block"],
    "vllm-53781-bf16-region": lambda: scenario("elided+offload", **{**PLAIN_FP8, "kv_cache_dtype": "bfloat16"})[
        "blocks"
    ]["bytes_per_block"],
    "vllm-mtp-hot-rows": hot_rows_of_mtp3,
    "vllm-46326-seats": seats,
    "aic-1423-kimi-vllm": kimi_gib,
}
POLICIES = {"vllm-steady-vs-admission", "vllm-calc-nofit"}
DEEPSEEK_V4 = {"vllm-51041-not-a-rate", "vllm-44376-two-point", "spark-57-pool-vs-maxlen"}  # test_vllm_families.py
NOT_YET = {
    "mistral-small-rate": "a GQA model, refused as an unknown architecture",
    "configiq-112-gemma4": "a hybrid model, refused as an unknown architecture",
    "dynamo-10104-crashloop": "a GQA model; the one-request check is tested in test_vllm_logs.py",
    "openthoughts-65-workspace": "model and version not stated; the workspace is a ledger line",
}


def test_every_vllm_case_is_answered_or_has_a_reason():
    assert set(ANSWERS) | set(CALCULATOR) | POLICIES | DEEPSEEK_V4 | set(NOT_YET) == set(CASES)


@pytest.mark.parametrize("case_id", ANSWERS)
def test_a_case_is_answered_within_its_tolerance(case_id: str):
    case = CASES[case_id]
    assert ANSWERS[case_id]() == pytest.approx(case["expect"]["value"], rel=case.get("tolerance", 0), abs=0)


def test_one_request_is_admitted_and_the_others_read_from_host_memory():
    found = scenario(
        "elided+offload", max_model_len=131_072, context=131_072, max_num_batched_tokens=8_192,
        **{**PLAIN_FP8, "kv_budget": 100_000 * 184_320},
    )  # fmt: skip
    # Admission: 2,048 index + 20 × (64 hot + 256 resident) blocks; steady: 2,048 + 20 × (64 + 2).
    assert found["blocks"]["num_blocks"] == 100_000
    assert found["blocks"]["steady_state_concurrency"] == 1 + (100_000 - 8_448) / 3_368
    assert found["concurrency"]["limits"]["gpu"] == 1 + (100_000 - 8_448) // 3_368 == 28
