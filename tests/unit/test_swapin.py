"""Miss curves, link rates, the time of a step, and the requests that a time per token allows."""

import json
from pathlib import Path

import pytest

import hsplan
from hsplan.errors import InputError
from hsplan.hardware import gpu_named
from hsplan.linkrate import shipped_curve
from hsplan.missrate import miss_rates, miss_share, rate_profiles
from hsplan.swapin import SwapIn

GLM = "glm-5.1-longbench"
RESULT = Path(__file__).resolve().parents[2] / "benchmarks/results/validate-h200-2026-11-29.json"


def test_every_profile_has_curves_that_fall_with_slots_and_rise_with_context():
    assert rate_profiles() == ("deepseek-v3.2-low-overlap", "glm-5.1-longbench", "stress")
    for profile in rate_profiles():
        rates = miss_rates(profile)
        assert (rates.top_k, rates.contexts[0], rates.contexts[-1]) == (2048, 4096, 1_048_576)
        for shares in rates.misses:
            assert list(shares) == sorted(shares, reverse=True)
        for column in zip(*rates.misses, strict=True):
            assert list(column) == sorted(column)


@pytest.mark.parametrize(("slots", "published"), [(2048, 0.300), (4096, 0.134), (8192, 0.067)])
def test_the_stored_curve_is_within_a_point_of_the_published_rates(slots, published):
    assert miss_share(GLM, top_k=2048, slots=slots, context=32_768) == pytest.approx(published, abs=0.01)


def test_shares_lie_between_their_neighbours_and_the_ends_hold():
    low, mid, high = (miss_share(GLM, top_k=2048, slots=slots, context=32_768) for slots in (8192, 5000, 4096))
    assert low < mid < high
    assert miss_share(GLM, top_k=2048, slots=4096, context=4_000_000) == miss_rates(GLM).misses[-1][2]
    assert miss_share(GLM, top_k=2048, slots=65_536, context=1_048_576) == miss_rates(GLM).misses[-1][-1]


def test_a_request_that_fits_misses_nothing():
    assert miss_share(GLM, top_k=2048, slots=4096, context=4096) == 0.0
    assert miss_share(GLM, top_k=2048, slots=4096, context=8192) > 0.0


def test_another_top_k_is_looked_up_in_multiples_of_it():
    assert miss_share(GLM, top_k=1024, slots=2048, context=16_384) == miss_share(
        GLM, top_k=2048, slots=4096, context=32_768
    )


@pytest.mark.parametrize(
    ("row_bytes", "pool_bytes", "rows", "gb_s"),
    [
        (656, 2**30, 4096, 43.7),  # measured points
        (656, 16 * 2**30, 256, 15.6),
        (1152, 4 * 2**30, 16_384, 50.3),
        (576, 2**30, 4096, 43.7),  # the nearest end holds
        (656, 64 * 2**30, 100_000, 24.9),
    ],
)
def test_a_gather_is_as_fast_as_measured(row_bytes, pool_bytes, rows, gb_s):
    found = shipped_curve().gather_gb_s(gpu_named("h200"), row_bytes=row_bytes, pool_bytes=pool_bytes, rows=rows)
    assert found == pytest.approx(gb_s, abs=0.01)


def test_another_link_is_scaled_by_its_nominal_rate():
    sizes = {"row_bytes": 656, "pool_bytes": 2**30, "rows": 4096}
    found = shipped_curve().gather_gb_s(gpu_named("a100"), **sizes)
    assert found == pytest.approx(43.7 / 2, abs=0.01)  # PCIe 4: 32 of 64 GB/s


def swap(**changes):
    values = {"row_bytes": 656, "layers": 78, "owners": 21, "misses": 270.0, "request_bytes": 32_768 * 656}
    return SwapIn(gpu=gpu_named("h200"), curve=shipped_curve(), **values | changes)


def test_a_step_without_misses_takes_the_resolving_alone():
    assert swap(misses=0.0).step_ms(8) == pytest.approx(0.525)  # 21 × 25 µs


def test_a_step_is_its_bytes_over_the_rate_and_the_resolving():
    # 16 requests: 4,320 rows × 656 B = 2,833,920 B out of 344 MB; 44.2 to 46.2 GB/s × 0.95: 65 to 67 µs a layer.
    assert swap().step_ms(16) == pytest.approx(78 * 0.0670 + 0.525, abs=0.1)


@pytest.mark.parametrize("case", range(4))
def test_the_model_is_within_13_percent_of_the_measured_steps(case):
    measurement = json.loads(RESULT.read_text(encoding="utf-8"))["cases"][case]["measurement"]
    run = measurement["run"]
    (graph,) = [timing for timing in measurement["timings"] if timing["mode"] == "graph"]
    model = swap(
        row_bytes=run["row_bytes"],
        layers=run["layers"],
        owners=run["owners"],
        misses=run["miss_share"] * run["top_k"],
        request_bytes=run["context"] * run["row_bytes"],
    )
    assert model.step_ms(run["requests"]) * 1000 == pytest.approx(graph["step_us"]["p50"], rel=0.13)


def test_a_call_of_16_requests_takes_about_as_long_as_published():
    # arXiv 2608.07009: 112 µs with 1152 B rows, 4096 slots, 13.4 % misses on a PCIe 5 H200.
    model = swap(row_bytes=1152, layers=1, owners=1, misses=0.134 * 2048, request_bytes=32_768 * 1152)
    assert model.step_ms(16) * 1000 == pytest.approx(112, rel=0.25)


def test_requests_fill_the_time_per_token_and_no_more():
    model = swap()
    most = model.requests_within(20.0, lambda requests: 5.0 + 0.1 * requests, 128)
    assert 5.0 + 0.1 * most + model.step_ms(most) <= 20.0
    assert 5.0 + 0.1 * (most + 1) + model.step_ms(most + 1) > 20.0
    assert model.requests_within(1e6, lambda _: 0.0, 128) == 128
    assert model.requests_within(0.1, lambda _: 0.0, 128) == 0


def limits(**overrides):
    plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", host_to_device_ratio=4, **overrides)
    return plan, plan.to_dict()["scenarios"]["offload"]["concurrency"]


def test_a_plan_has_a_link_limit_when_it_is_given_a_time_per_token():
    plan, found = limits(tpot_ms=30, step_ms={"fixed": 12, "per_request": 0.2})
    assert found["limits"]["link"] == found["requests"] == 33
    assert found["binding"] == "link"
    assert found["lift"].startswith("device_buffer_size 8,192")
    assert 10 < found["swap_in_ms"] < 12
    assert plan.to_dict()["scenarios"]["elided"]["concurrency"]["limits"]["link"] is None
    assert limits()[1]["limits"]["link"] is None


def test_misses_of_another_workload_allow_fewer_requests():
    assert limits(tpot_ms=30, profile="stress")[1]["limits"]["link"] < limits(tpot_ms=30)[1]["limits"]["link"]


def test_a_time_per_token_that_loading_alone_exceeds_does_not_fit():
    plan, found = limits(tpot_ms=0.5)
    assert (found["limits"]["link"], plan.fits) == (0, False)
    assert "no request meets the tpot_ms" in plan.to_dict()["scenarios"]["offload"]["why_not"]


@pytest.mark.parametrize(
    ("fixed", "why", "cure"),
    [
        (60, "its step takes 60.00 ms before any row is loaded", "a longer tpot_ms"),
        (49.9, "its step takes 49.90 ms, its missed rows ", "a longer tpot_ms, or a larger device_buffer_size"),
    ],
)
def test_a_step_too_long_in_itself_is_not_put_down_to_its_missed_rows(fixed, why, cure):
    plan, found = limits(tpot_ms=50, step_ms={"fixed": fixed})
    offload = plan.to_dict()["scenarios"]["offload"]
    assert (found["limits"]["link"], plan.fits) == (0, False)
    assert why in offload["why_not"]
    assert offload["cure"] == cure


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(InputError, match=r"--profile: unknown profile 'stres'\n  did you mean stress\?"):
        hsplan.plan("glm-5.2-fp8", profile="stres")


def test_both_engines_load_the_same_rows_of_the_same_hot_buffer():
    plans = [
        hsplan.plan("glm-5.3-fp8", engine=engine, kv_cache_dtype="fp8_e4m3", max_model_len=65_536, offload={})
        for engine in ("sglang@0.5.23", "vllm@0.33.0")
    ]
    sglang, vllm = (plan.scenarios["elided+offload"].pools.swap_in for plan in plans)
    assert (sglang.misses, sglang.layers, sglang.owners) == (vllm.misses, vllm.layers, vllm.owners)
