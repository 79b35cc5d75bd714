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
    """The most tokens a second over every ratio up to 64 and every buffer, each with all the requests it holds."""
    best = 0.0
    for slots in (2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576):
        for ratio in range(1, 65):
            values = {"device_buffer_size": slots, "host_to_device_ratio": ratio}
            found = most_by_counting_down(plan, **values)
            if found is not None:
                capacity = found.launched.capacity
                step_ms = 12 + 0.3 * capacity.requests + capacity.swap_in_ms
                best = max(best, 1000 * capacity.requests / step_ms)
    return best


def most_by_counting_down(plan, **values):
    """The plan with the most running requests that it holds, from what one request leaves room for downwards."""
    ranks = plan.launch.cap_ranks
    limits = replan(plan, max_running_requests=ranks, **values).launched.capacity.limits
    for requests in range(min(limits.gpu, limits.hot_buffer or limits.gpu), 0, -1):
        found = replan(plan, max_running_requests=requests * ranks, **values)
        if found.fits and found.launched.capacity.requests == requests:
            return found
    return None


@pytest.mark.parametrize(("spec", "overrides"), DEPLOYMENTS, ids=[spec for spec, _ in DEPLOYMENTS])
def test_no_setting_yields_more_than_the_best_one_found(spec, overrides):
    plan = hsplan.plan(spec, step_ms=STEP, **overrides)
    assert tuned(plan).best.tokens_s == pytest.approx(exhaustive(plan), rel=1e-9)


@pytest.mark.parametrize("given", [1, 128, 2048, 4096])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_is_given_for_running_requests_changes_no_advice(engine, given):
    # Tables of 4,096 requests leave no room for one of 32,768 tokens; the search chooses their number itself.
    def advice(requests):
        plan = hsplan.plan("glm-5.2-fp8", engine=engine, offload={}, max_running_requests=requests)
        return tuned(plan)

    found, usual = advice(given), advice(64)
    assert (found.best, found.without, found.sizes) == (usual.best, usual.without, usual.sizes)


@pytest.mark.parametrize(
    ("context", "overrides"),
    [(8192, {"dp_attention": 8}), (2049, {"dp_attention": 8}), (32_768, {}), (65_536, {"step_ms": STEP})],
)
def test_without_offload_as_many_requests_run_as_their_tables_leave_room_for(context, overrides):
    plan = hsplan.plan("glm-5.2-fp8", offload={}, context=context, max_running_requests=4096, **overrides)
    bare = replan(plan, offload=None)
    assert tuned(plan).without.requests == most_by_counting_down(bare).launched.capacity.requests


def test_tables_too_large_for_all_requests_do_not_leave_none():
    # 6,163 requests of one token fit into the pool, but not the tables of so many.
    found = tuned(hsplan.plan("glm-5.2-fp8", offload={}, context=1))
    assert found.without.requests >= 2048


def test_the_time_per_token_binds_without_offload():
    step = {"fixed": 12, "per_request": 4}
    found = tuned(hsplan.plan("glm-5.2-fp8", context=32_768, tpot_ms=50, step_ms=step, offload={}))
    assert (found.without.requests, found.without.binding) == (9, "tpot_ms")  # 12 + 9 × 4 = 48 ms


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
