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
        assert [call.steps for call in rates.calls] == [1, 2, 3, 4]
        for call in rates.calls:
            for shares in call.misses:
                assert list(shares) == sorted(shares, reverse=True)
            for column in zip(*call.misses, strict=True):
                assert list(column) == sorted(column)


@pytest.mark.parametrize(("slots", "published"), [(2048, 0.300), (4096, 0.134), (8192, 0.067)])
def test_the_stored_curve_is_within_a_point_of_the_published_rates(slots, published):
    assert miss_share(GLM, top_k=2048, slots=slots, context=32_768) == pytest.approx(published, abs=0.01)


def test_shares_lie_between_their_neighbours_and_the_ends_hold():
    low, mid, high = (miss_share(GLM, top_k=2048, slots=slots, context=32_768) for slots in (8192, 5000, 4096))
    assert low < mid < high
    assert miss_share(GLM, top_k=2048, slots=4096, context=4_000_000) == 0.32388
    assert miss_share(GLM, top_k=2048, slots=65_536, context=1_048_576) == 0.14637


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
    values |= {"kv_cache_dtype": "fp8_e4m3", "steps": 1, "ids": 2048, "slots": 4096}
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
    ("fixed", "limit", "why", "cure"),
    [
        (
            60,
            "tpot_ms",
            "a step of one takes 60.00 ms even without loading",
            "a tpot_ms of 61.1 or more, or a shorter step",
        ),
        # 271 rows × 656 B × 78 layers at 25.7 GB/s, and 0.525 ms
        (49.9, "link", "a step of one takes 49.90 ms, and 1.06 ms for its missed rows", "a tpot_ms of 51 or more"),
    ],
)
def test_a_step_too_long_in_itself_is_not_put_down_to_its_missed_rows(fixed, limit, why, cure):
    plan, found = limits(tpot_ms=50, step_ms={"fixed": fixed})
    offload = plan.to_dict()["scenarios"]["offload"]
    assert (found["limits"][limit], plan.fits) == (0, False)
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


DRAFTS = {"num_speculative_tokens": 3, "draft_layers": 1}


def offloaded(**overrides):
    values = {"context": 131_072, "host_to_device_ratio": 14, "device_buffer_size": 8192, "max_running_requests": 14}
    return hsplan.plan("glm-5.2-fp8", **values | overrides)


@pytest.mark.parametrize(
    ("steps", "ids", "misses"),
    # 0.14318, 0.2836, 0.42123 and 0.55619 of 2,048; `hsplan simulate … --num-speculative-tokens 3 --slots 8192` draws
    # another trace and counts 87,947 rows a call in 78 layers, 1,128 in each.
    [(1, 2048, 293.2), (2, 2831, 580.8), (3, 3417, 862.7), (4, 3926, 1139.1)],
)
def test_a_call_with_drafts_reads_several_steps_and_misses_more(steps, ids, misses):
    found = offloaded(num_speculative_tokens=steps - 1).scenarios["offload"].pools.swap_in
    assert (found.steps, found.ids) == (steps, ids)
    assert found.misses == pytest.approx(misses, abs=0.1)


def test_four_steps_of_one_request_load_about_four_times_the_rows_in_a_step_of_the_plan():
    without, drafts = offloaded(), offloaded(**DRAFTS)
    # 14 requests × 1,139 rows × 656 B × 78 layers = 816 MB; 28.7 GB/s × 0.95 out of 1.1 GiB: 29.9 ms, and 0.5 ms
    assert without.launched.capacity.swap_in_ms == pytest.approx(8.5, abs=0.05)
    assert drafts.launched.capacity.swap_in_ms == pytest.approx(30.4, abs=0.05)
    assert any("reads the top-k of 4 steps" in note for note in drafts.notes)
    assert not any("steps" in note for note in without.notes)


def test_more_steps_than_the_curves_have_give_no_figure_and_say_so():
    values = {"engine": "vllm@0.33.0", "kv_cache_dtype": "fp8_e4m3", "max_model_len": 65_536, "offload": {}}
    plan = hsplan.plan("glm-5.3-fp8", num_speculative_tokens=5, draft_layers=1, step_ms={"fixed": 12}, **values)
    capacity = plan.scenarios["offload"].capacity
    assert (capacity.swap_in_ms, capacity.step_ms, capacity.tokens_s) == (None, None, None)
    assert "swap-in of calls that read 6 steps: the miss curves end at 4" in plan.not_modelled


def test_drafts_and_hot_buffers_that_the_release_refuses_are_refused():
    with pytest.raises(InputError, match="verifies at most 4 tokens a step, not 6\n  draft at most 3"):
        offloaded(num_speculative_tokens=5)
    assert "at most 4 tokens" in hsplan.plan("glm-5.2-fp8", num_speculative_tokens=5).scenarios["offload"].reason
    many = offloaded(**DRAFTS, device_buffer_size=2048, max_running_requests=2048)
    # rows are one more than requests
    assert "2,049 rows of requests are more than the 2,048 slots" in many.launched.capacity.why_not
    assert many.launched.capacity.cure == "max_running_requests 2,047 or fewer"


@pytest.mark.parametrize(
    ("slots", "kept"),
    # buffer, page, and scratch: 4 × 2,048 ids less the buffer, 1,024 at least
    [(2048, 8256), (4096, 8256), (8192, 8192 + 64 + 1024)],
)
def test_with_drafts_a_request_keeps_scratch_slots_for_what_its_hot_buffer_cannot_hold(slots, kept):
    found = offloaded(**DRAFTS, device_buffer_size=slots).launched
    assert found.capacity.limits.hot_buffer == found.pools.tokens.best // kept
    assert offloaded(device_buffer_size=slots).launched.pools.hot_scratch_tokens == 0
    early = offloaded(**DRAFTS, device_buffer_size=slots, release="0.5.21").launched
    assert early.capacity.limits.hot_buffer == early.pools.tokens.best // (slots + 64)


def test_a_hot_buffer_smaller_than_a_call_reads_is_named():
    found = " ".join(offloaded(**DRAFTS, device_buffer_size=3072).notes)
    assert "a hot buffer of 3,072 holds fewer than the 3,926 ids that a call reads" in found
    assert "holds fewer" not in " ".join(offloaded(**DRAFTS, device_buffer_size=4096).notes)


def test_releases_whose_swap_in_reads_no_drafts_give_no_figure():
    plan = offloaded(**DRAFTS, release="0.5.21")
    assert plan.launched.capacity.swap_in_ms is None
    assert plan.not_modelled == (
        "swap-in with drafts: SGLang 0.5.21 has none that reads several steps (from 0.5.22 on)",
    )


STEP = "glm-5.1-8xh200"  # one request of 131,072 tokens: 27.352 + 2.5238 + 131,072 × 0.000028795 = 33.65 ms
LONG = {"context": 131_072, "host_to_device_ratio": 18, "step_ms": STEP}


def test_the_time_per_token_limits_scenarios_without_offload_too():
    plan = hsplan.plan("glm-5.2-fp8", tpot_ms=40, **LONG)
    elided = plan.to_dict()["scenarios"]["elided"]["concurrency"]
    # 27.352 + 2 × 6.298 = 39.95 ms; of three requests 46.25, which the GPU would hold
    assert (elided["limits"]["gpu"], elided["limits"]["tpot_ms"], elided["requests"]) == (3, 2, 2)
    assert (elided["binding"], elided["lift"]) == ("tpot_ms", "a tpot_ms of 46.3, or a shorter step")
    assert elided["step_ms"] == pytest.approx(39.95, abs=0.01)
    assert hsplan.plan("glm-5.2-fp8", **LONG | {"tpot_ms": 46.3}).scenarios["elided"].capacity.requests == 3
    unknown = hsplan.plan("glm-5.2-fp8", tpot_ms=40).to_dict()["scenarios"]["elided"]["concurrency"]
    assert set(unknown["limits"]) == {"gpu", "host", "hot_buffer", "max_running", "link"}


def test_a_step_that_is_too_long_without_loading_is_the_reason():
    plan = hsplan.plan("glm-5.2-fp8", tpot_ms=20, **LONG)
    for name in ("elided", "offload"):
        why = plan.scenarios[name].capacity.why_not
        assert why == "no request meets the tpot_ms of 20: a step of one takes 33.65 ms even without loading"
    # 33.65 ms, and 1.75 ms of loading
    assert plan.scenarios["elided"].capacity.cure == "a tpot_ms of 33.7 or more, or a shorter step"
    assert plan.launched.capacity.cure == "a tpot_ms of 35.4 or more, or a shorter step"
    assert hsplan.plan("glm-5.2-fp8", **LONG | {"tpot_ms": 35.4}).fits


def test_a_larger_hot_buffer_is_a_cure_only_where_it_has_been_seen_to_fit():
    found = hsplan.plan("glm-5.2-fp8", tpot_ms=34.8, **LONG).launched.capacity
    assert "a step of one takes 33.65 ms, and 1.75 ms for its missed rows" in found.why_not
    assert found.cure.startswith("a tpot_ms of 35.4 or more, or device_buffer_size ")
    slots = int(found.cure.rpartition(" ")[2].replace(",", ""))
    assert hsplan.plan("glm-5.2-fp8", tpot_ms=34.8, device_buffer_size=slots, **LONG).fits
    assert not hsplan.plan("glm-5.2-fp8", tpot_ms=34.8, device_buffer_size=slots // 2, **LONG).fits


def test_the_link_is_counted_beyond_the_request_cap():
    values = {"kv_cache_dtype": "fp8_e4m3", "context": 131_072, "device_buffer_size": 2048, "host_to_device_ratio": 9}
    found = hsplan.plan("glm-5.2-fp8", tpot_ms=20, max_running_requests=13, **values).launched.capacity
    assert (found.limits.gpu, found.limits.link, found.requests) == (17, 18, 13)
    assert (found.binding, found.lift) == ("max_running", "max_running_requests 17")


def test_a_link_that_limits_nothing_is_no_limit():
    # hot buffers of 4,096 hold whole requests of 4,096 tokens
    assert hsplan.plan("glm-5.2-fp8", offload={}, context=4096, tpot_ms=5).launched.capacity.limits.link is None


def test_without_a_request_nothing_is_loaded_and_no_step_takes_time():
    found = hsplan.plan("glm-5.2-fp8", offload={}, max_total_tokens=64, step_ms={"fixed": 12}).launched.capacity
    assert (found.requests, found.swap_in_ms, found.step_ms, found.tokens_s) == (0, None, None, None)


def test_a_profile_of_ones_own_is_for_simulations():
    with pytest.raises(InputError) as caught:
        hsplan.plan("glm-5.2-fp8", profile="mine.yaml")
    assert caught.value.lines()[1].startswith("  plans look up stored curves only; `hsplan simulate --profile`")
