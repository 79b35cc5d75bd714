"""
Logs built from the records of real runs, in their build's own words: they calibrate to the recorded budget, and a run
of the H200 sweep predicts the others.
"""

from __future__ import annotations

import io
from itertools import combinations, permutations
from typing import Any

import pytest
from engine_lines import sglang_log, vllm_log
from test_engine_logs import RECORDS, RUNS
from test_vllm_logs import RECORDS as VLLM_RECORDS
from test_vllm_logs import RUNS as VLLM_RUNS
from test_vllm_logs import _with_model

import hsplan
from hsplan.calibrate import calibrate
from hsplan.calibration import Calibration
from hsplan.engines.sglang.releases import RELEASES as SGLANG_RELEASES
from hsplan.engines.vllm.releases import RELEASES as VLLM_RELEASES

GIB = 2**30
SWEEP = [f"glm51-fp8-h200-tp8-mfs{percent}" for percent in (70, 80, 90, 95)]
# tokens exact, budgets to 0.0001 GiB
PINNED = [name for name in RUNS if RECORDS[name].get("budget_interval")]
HEADROOM = {"max_running_requests": 2048}


def calibrated(spec: Any, *logs: str, **overrides: Any) -> Calibration:
    return calibrate(spec, [(f"log {i}", io.BytesIO(log.encode())) for i, log in enumerate(logs)], **overrides)


def log_of(name: str) -> str:
    record, run = RECORDS[name], RUNS[name]
    return sglang_log(
        tokens=record["tokens"],
        release=run["release"],
        ranks=record["tp"],
        fraction=run.get("mem_fraction"),
        before=_printed(record, "load_begin_avail_gb"),
        after=_printed(record, "load_end_avail_gb"),
        weights=_printed(record, "weights_gb"),
        pool=_printed(record, "kv_size_gb"),
        draft=_printed(record, "draft_kv_size_gb"),
        dtype="bfloat16" if "bf16" in str(record["kv_cache_dtype"]) else "float8_e4m3fn",
        context=hsplan.plan(**_flags(name)).launch.context_len,
    )


def _printed(record: dict[str, Any], key: str) -> float | None:
    """A printed figure; None where the record has none, or several."""
    value = record.get(key)
    return value if isinstance(value, float) else None


def _flags(name: str) -> dict[str, Any]:
    """The record's spec and flags; the memory fraction is left to the log."""
    return {key: value for key, value in {**RUNS[name], **HEADROOM}.items() if key != "mem_fraction"}


def calibration_of(*names: str) -> Calibration:
    flags = _flags(names[0])
    return calibrated(flags.pop("spec"), *map(log_of, names), **flags)


@pytest.mark.parametrize("name", PINNED)
def test_the_log_of_a_record_calibrates_to_the_recorded_budget(name: str):
    interval = RECORDS[name]["budget_interval"]
    budget = calibration_of(name).runs[0].budget_bytes
    assert budget.low / GIB == pytest.approx(interval["gib_low"], abs=0.0001)
    assert (budget.high + 1) / GIB == pytest.approx(interval["gib_high"], abs=0.0001)


def test_the_sweep_has_the_tokens_that_are_predicted_below():
    assert [RECORDS[name]["tokens"] for name in SWEEP] == [142_208, 410_560, 678_848, 813_056]


def predicted(calibration: Calibration, name: str) -> tuple[int, int]:
    """Tokens at least and at most of another run of the sweep."""
    plan = hsplan.plan(**_flags(name), mem_fraction=RUNS[name]["mem_fraction"], calibration=calibration).to_dict()
    low, high = plan["scenarios"][plan["as_launched"]]["max_total_num_tokens_range"]
    return low, high


@pytest.mark.parametrize(("one", "other"), list(permutations(SWEEP, 2)))
def test_one_run_of_the_sweep_predicts_each_other_within_three_pages(one: str, other: str):
    low, high = predicted(calibration_of(one), other)
    assert low <= RECORDS[other]["tokens"] <= high
    assert high - low <= 2 * 64  # three values of whole pages


@pytest.mark.parametrize("pair", list(combinations(SWEEP, 2)))
def test_two_runs_together_never_predict_wider_than_one_of_them(pair: tuple[str, str]):
    both, singles = calibration_of(*pair), [calibration_of(name) for name in pair]
    for other in SWEEP:
        low, high = predicted(both, other)
        assert low <= RECORDS[other]["tokens"] <= high
        for single in singles:
            alone = predicted(single, other)
            assert alone[0] <= low
            assert high <= alone[1]


def test_four_runs_together_pin_every_one_of_them_to_the_token():
    calibration = calibration_of(*SWEEP)
    assert {name: predicted(calibration, name) for name in SWEEP} == {
        name: (RECORDS[name]["tokens"],) * 2 for name in SWEEP
    }


@pytest.mark.parametrize("release", SGLANG_RELEASES)
def test_a_log_of_each_sglang_release_calibrates_to_the_budget_of_its_tokens(release: str):
    # 2,574,848 tokens × 55,932 B before elision, × 48,408 B since 0.5.18
    cell, size = (55_932, 132.43) if release == "0.5.17" else (48_408, 114.39)
    log = sglang_log(tokens=2_574_848, release=release, ranks=4, fraction=0.9, pool=size, draft=1.70, context=1_048_576)
    flags = {"gpu": "gb300", "tp": 4, "draft_layers": 1, "release": release}
    found = calibrated("glm-5.2-nvfp4", log, **flags)
    assert found.runs[0].budget_bytes.low == 2_574_848 * cell
    assert found.runs[0].budget_bytes.high == 2_574_912 * cell - 1
    assert found.runs[0].fraction == 0.9
    row = next(row for row in found.compared if row.line == "draft pool of 2,574,848 tokens")
    assert abs(row.residual) <= 0.005


@pytest.mark.parametrize("release", VLLM_RELEASES)
def test_a_log_of_each_vllm_release_calibrates_to_the_budget_of_its_blocks(release: str):
    # GLM-5.2 on Hopper: 64 × (78 × 656 + 21 × 132) B a block; 10,000 blocks of 3,168 a request of 202,752
    page = 64 * (78 * 656 + 21 * 132)
    tokens = int(10_000 / 3168 * 202_752)
    log = vllm_log(tokens=tokens, concurrency=10_000 / 3168, length=202_752, gib=32.15, release=release)
    flags = {"engine": f"vllm@{release}", "kv_cache_dtype": "fp8_e4m3", "max_model_len": 202_752}
    found = calibrated("glm-5.2-fp8", log, **flags)
    assert found.runs[0].budget_bytes.low == 10_000 * page
    assert found.runs[0].budget_bytes.high == 10_001 * page - 1


WITH_ROUNDED_TOKENS = "glm52-reap469b"


@pytest.mark.parametrize("name", [name for name in VLLM_RUNS if not name.startswith(WITH_ROUNDED_TOKENS)])
def test_the_log_of_a_vllm_record_calibrates_to_its_printed_gib(name: str):
    record, run = VLLM_RECORDS[name], {**VLLM_RUNS[name]}
    spec = _with_model(run.pop("spec"), run.pop("model", None))
    log = vllm_log(
        tokens=record["tokens"],
        concurrency=record["tokens"] / run["max_model_len"],
        length=run["max_model_len"],
        gib=record["available_kv_gib"],
        release=run["release"],
    )
    budget = calibrated(spec, log, engine="vllm", context=4096, **run).runs[0].budget_bytes
    blocks = record["check"]["blocks_from_log"]
    assert budget.low <= blocks * record["check"]["page_bytes"] <= budget.high
    assert budget.low / GIB <= record["available_kv_gib"] + 0.005
    assert budget.high / GIB >= record["available_kv_gib"] - 0.005
