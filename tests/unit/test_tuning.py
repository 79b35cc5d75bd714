"""The best offload settings: against an exhaustive search, and where offload does not pay."""

import json

import pytest

import hsplan
from hsplan.engines import engine_of
from hsplan.planner import replan
from hsplan.tuning import tuned

STEP = {"fixed": 12, "per_request": 0.3}
DEPLOYMENTS = [
    ("glm-5.2-fp8", {"kv_cache_dtype": "fp8_e4m3", "context": 131_072, "tpot_ms": 50, "host_memory": 2 * 2**40}),
    ("glm-5.1-fp8", {"kv_cache_dtype": "bfloat16", "context": 32_768, "tpot_ms": 40}),
    ("deepseek-v3.2-fp8", {"kv_cache_dtype": "fp8_e4m3", "context": 65_536, "tpot_ms": 60, "host_memory": 2**40}),
    ("glm-5.2-nvfp4", {"gpu": "b200", "tp": 4, "context": 65_536}),
    ("glm-5.3-fp8", {"gpu": "h20-3e", "kv_cache_dtype": "fp8_e4m3", "context": 262_144, "tpot_ms": 80}),
]


def exhaustive(plan):
    """The most tokens a second over every ratio up to 64 and every buffer, by pricing each at its own request count."""
    best = 0.0
    for slots in (2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576):
        for ratio in range(1, 65):
            values = {"device_buffer_size": slots, "host_to_device_ratio": ratio}
            limits = replan(plan, max_running_requests=4096, **values).launched.capacity.limits.known()
            requests = min(count for name, count in limits.items() if name != "max_running")
            if requests < 1:
                continue
            found = replan(plan, max_running_requests=requests, **values)
            if found.fits:
                capacity = found.launched.capacity
                step_ms = 12 + 0.3 * capacity.requests + capacity.swap_in_ms
                best = max(best, 1000 * capacity.requests / step_ms)
    return best


@pytest.mark.parametrize(("spec", "overrides"), DEPLOYMENTS, ids=[spec for spec, _ in DEPLOYMENTS])
def test_no_setting_yields_more_than_the_best_one_found(spec, overrides):
    plan = hsplan.plan(spec, step_ms=STEP, **overrides)
    assert tuned(plan).best.tokens_s == pytest.approx(exhaustive(plan), rel=1e-9)


def test_without_a_known_step_the_most_requests_are_best():
    found = tuned(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", context=131_072))
    assert found.best.tokens_s is None
    assert found.best.requests == max(setting.requests for setting in found.sizes)


def test_the_best_setting_meets_the_time_per_token():
    found = tuned(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", context=131_072, tpot_ms=25, step_ms=STEP))
    assert found.best.step_ms <= 25
    assert all(setting.step_ms <= 25 for setting in found.sizes)


def test_offload_pays_at_long_contexts_and_not_at_short_ones():
    short = tuned(hsplan.plan("deepseek-v3.2-fp8", context=8192, step_ms=STEP))
    assert not short.pays
    assert short.pays_from == 16_384
    long = tuned(hsplan.plan("deepseek-v3.2-fp8", context=131_072, step_ms=STEP))
    assert long.pays


def test_too_little_host_memory_leaves_no_setting():
    found = tuned(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", context=32_768, host_memory=2**34))
    assert (found.best, found.plan, found.pays, found.pays_from) == (None, None, False, None)
    assert found.without.requests == 20


def test_a_best_setting_is_launched_with_its_own_flags():
    plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", context=131_072, tpot_ms=50, step_ms=STEP)
    found = tuned(plan)
    flags = engine_of(plan.launch.loaded).flags(found.plan.launch, found.plan.launched.pools)
    config = {
        "device_buffer_size": found.best.device_buffer_size,
        "host_to_device_ratio": found.best.host_to_device_ratio,
    }
    assert [flag.text for flag in flags] == [
        "--enable-hisparse",
        f"--hisparse-config '{json.dumps(config)}'",
        "--disable-radix-cache",
        f"--max-running-requests {found.best.max_running_requests}",
        "--kv-cache-dtype fp8_e4m3",
    ]
    assert all(flag.reason for flag in flags)


def test_vllm_has_a_host_pool_in_place_of_a_ratio():
    plan = hsplan.plan("glm-5.3-fp8", engine="vllm@0.33.0", max_model_len=131_072, context=65_536, tpot_ms=40)
    found = tuned(plan)
    assert all(setting.host_to_device_ratio is None for setting in found.sizes)
    texts = [flag.text for flag in engine_of(plan.launch.loaded).flags(found.plan.launch, found.plan.launched.pools)]
    size = found.best.device_buffer_size
    assert texts[0] == f'--attention-config \'{{"hisparse_config": {{"device_buffer_size": {size}}}}}\''
    assert '"kv_connector": "HiSparseConnector"' in texts[1]
    assert texts[2] == f"--max-num-seqs {found.best.max_running_requests}"


def test_a_plan_without_offload_has_only_flags_that_hold_without_it():
    plan = hsplan.plan("glm-5.2-fp8", max_running_requests=16)
    assert [flag.text for flag in engine_of(plan.launch.loaded).flags(plan.launch, plan.launched.pools)] == [
        "--max-running-requests 16"
    ]
