"""Weights per rank against "Load weight end" lines, and estimates from nothing but spec and flags against logs."""

from __future__ import annotations

from typing import Any

import pytest

import hsplan

GIB = 2**30


def launched(spec: str, **flags: Any) -> dict[str, Any]:
    plan = hsplan.plan(spec, **flags).to_dict()
    scenario: dict[str, Any] = plan["scenarios"][plan["as_launched"]]
    return scenario


def line_gib(scenario: dict[str, Any], name: str) -> float:
    return next(line["bytes"] for line in scenario["ledger"] if line["name"] == name) / GIB


@pytest.mark.parametrize(
    ("spec", "flags", "logged_gib"),
    [
        ("glm-5.2-nvfp4", {"gpu": "gb300", "tp": 4, "release": "0.5.18"}, 106.76),
        ("glm-5.2-nvfp4", {"gpu": "gb300", "tp": 4, "release": "main-2026-08-14"}, 107.74),
        ("glm-5.1-fp8", {"gpu": "h200", "tp": 8, "release": "main-2026-06-12"}, 89.24),
        ("kimi-k2.5-int4", {"gpu": "mi355x", "tp": 8, "release": "main-2026-02-26"}, 73.58),
    ],
    ids=["GLM-5.2-NVFP4", "GLM-5.2-NVFP4 with all indexers", "GLM-5.1-FP8", "Kimi-K2.5"],
)
def test_weights_of_a_rank_are_within_half_a_percent_of_the_log(spec: str, flags: dict[str, Any], logged_gib: float):
    assert line_gib(launched(spec, **flags), "weights") == pytest.approx(logged_gib, rel=0.005)


def test_weights_of_glm_5_on_mi355x_are_within_one_percent_of_the_log():
    # 0.68 GiB stay unexplained on ROCm; the loading overhead of the ledger has its range from here
    scenario = launched("glm-5-fp8", gpu="mi355x", tp=8, release="main-2026-02-18", kv_cache_dtype="fp8_e4m3")
    assert line_gib(scenario, "weights") == pytest.approx(89.58, rel=0.01)


def test_a_draft_holds_its_own_embedding_and_head_when_the_pool_is_sized():
    # 4.5 experts + 0.886 embedding and head + 0.141 eh_proj + attention and indexer, all bf16
    scenario = launched("glm-5.2-nvfp4", gpu="gb300", tp=4, draft_layers=1, release="0.5.23")
    assert line_gib(scenario, "draft weights") == pytest.approx(5.671, abs=0.001)


def test_57_indexers_in_bf16_take_0_995_gib():
    def weights(release: str) -> float:
        return line_gib(launched("glm-5.2-nvfp4", gpu="gb300", tp=4, release=release), "weights")

    assert weights("0.5.17") - weights("0.5.18") == pytest.approx(1_068_426_240 / GIB, abs=0.0001)


GB300 = {"gpu": "gb300", "tp": 4, "draft_layers": 1, "num_speculative_tokens": 5}
H200 = {"gpu": "h200", "tp": 8, "kv_cache_dtype": "fp8_e4m3"}
RUNS = [
    ("glm-5.2-nvfp4", GB300, "main-2026-08-14", None, 2_574_848),
    ("glm-5.1-fp8", H200, "main-2026-06-12", 0.7, 142_208),
    ("glm-5.1-fp8", H200, "main-2026-06-12", 0.8, 410_560),
    ("glm-5.1-fp8", H200, "main-2026-06-12", 0.9, 678_848),
    ("glm-5.1-fp8", H200, "main-2026-06-12", 0.95, 813_056),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "flags", "release", "fraction", "logged"), RUNS, ids=lambda v: str(v)[:16])
def test_from_spec_and_flags_alone_the_logged_tokens_lie_in_a_narrow_range(
    spec: str, flags: dict[str, Any], release: str, fraction: float | None, logged: int
):
    given = {} if fraction is None else {"mem_fraction": fraction}
    scenario = launched(spec, **flags, **given, release=release)
    low, high = scenario["max_total_num_tokens_range"]
    assert low <= logged <= high
    best, (budget_low, budget_high) = scenario["kv_budget_bytes"], scenario["kv_budget_bytes_range"]
    allowed = max(0.6 * GIB, 0.05 * best)
    assert best - budget_low <= allowed
    assert budget_high - best <= allowed
