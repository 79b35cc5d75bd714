"""The best offload settings: against an exhaustive search, and where offload does not pay."""

import json

import pytest

import hsplan
from hsplan.engines import engine_of
from hsplan.planner import replan
from hsplan.trial import Setting
from hsplan.tuning import LeftOut, Tuned, tuned

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
    for slots in (2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768):
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


def planned(**values):
    return hsplan.plan("glm-5.2-fp8", **({"context": 131_072, "step_ms": STEP} | values))


def binding_of(found):
    return {setting.device_buffer_size: setting.binding for setting in found.sizes}


def test_the_memory_that_a_cap_of_running_requests_takes_is_that_of_the_requests_found():
    found = tuned(planned(host_memory=2**40))
    # 397,632 device tokens under a cap of 3, 386,432 under one of 4,096: 3 × 131,072 are 393,216.
    assert (found.without.requests, found.without.binding) == (3, "gpu")
    # 6 × 242,880 host tokens under a cap of 11, 6 × 236,032 under one of 4,096: 11 × 131,072 are 1,441,792.
    assert (found.best.host_to_device_ratio, found.best.requests) == (6, 11)


def test_what_binds_is_the_limit_that_stopped_the_search():
    # Ratio 7 would need 1,138 GiB of host memory on a node.
    sizes = (2048, 3072, 4096, 6144, 8192, 12_288, 16_384)
    hot = dict.fromkeys((24_576, 32_768), "hot_buffer")
    assert binding_of(tuned(planned(host_memory=2**40))) == dict.fromkeys(sizes, "host") | hot
    slow = binding_of(tuned(planned(tpot_ms=20)))
    assert {slots for slots, binding in slow.items() if binding == "link"} >= {2048, 3072, 4096, 6144}
    assert slow[24_576] == "hot_buffer"
    # At ratio 22 the device pool would be of 129,600 tokens, shorter than a request.
    assert binding_of(tuned(planned(kv_cache_dtype="fp8_e4m3")))[2048] == "length"
    # A step that is nearly all loading: more requests read from a larger pool, at a lower rate.
    loading = tuned(planned(kv_cache_dtype="fp8_e4m3", step_ms={"fixed": 0.5}))
    assert binding_of(loading)[2048] == "tokens_s"


def test_vllm_is_compared_at_the_longest_max_model_len_that_starts_without_offload():
    plan = planned(engine="vllm", context=4096)
    found = tuned(plan)
    # At max_model_len 1,048,576 one request needs 90.46 GiB without offload, of 28.01 GiB.
    assert plan.launch.context_len == 1_048_576
    assert (found.without.max_model_len, found.without.requests) == (331_200, 80)
    running = {"engine": "vllm", "context": 4096, "max_running_requests": 80}
    assert hsplan.plan("glm-5.2-fp8", **running, max_model_len=331_200).fits
    assert not hsplan.plan("glm-5.2-fp8", **running, max_model_len=331_201).fits
    assert not found.pays
    assert found.top == found.without
    # Where no length of a request's context starts, offload is all there is.
    alone = tuned(planned(engine="vllm", context=524_288))
    assert alone.without is None
    assert alone.left_out[0].device_buffer_size is None
    assert alone.left_out[0].why.startswith("vLLM does not start: one request of max_model_len 1,048,576 needs")
    assert alone.pays


def test_a_time_per_token_below_the_rest_of_the_step_is_named_as_the_cause():
    found = tuned(planned(tpot_ms=12))
    why = "no request meets the tpot_ms of 12: a step of one takes 12.30 ms even without loading"
    sizes = (2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768)
    assert found.left_out == tuple(LeftOut(slots, why) for slots in (None, *sizes))
    assert (found.top, found.gain, found.pays, found.pays_from) == (None, None, False, None)
    loading = tuned(planned(tpot_ms=13))
    assert loading.without.binding == "tpot_ms"
    assert loading.left_out[0].why.startswith(
        "no request meets the tpot_ms of 13: a step of one takes 12.30 ms, and 2."
    )
    alone = tuned(hsplan.plan("glm-5.2-fp8", context=131_072, tpot_ms=0.5))
    assert all(
        entry.why.startswith("no request meets the tpot_ms of 0.5: its missed rows alone take ")
        for entry in alone.left_out
    )


def test_sizes_without_a_setting_say_why():
    found = tuned(planned(context=32_768, kv_cache_dtype="fp8_e4m3", host_memory=2**34))
    assert len(found.left_out) == 9
    assert all(entry.why.startswith("the host pools need ") for entry in found.left_out)
    assert found.without.requests == 20


def setting(slots, tokens_s, *, host_bytes=0, requests=10):
    return Setting(
        device_buffer_size=slots,
        host_to_device_ratio=slots and 4,
        max_running_requests=requests,
        requests=requests,
        binding="gpu",
        swap_in_ms=0.0,
        step_ms=None if tokens_s is None else 10.0,
        tokens_s=tokens_s,
        host_bytes_per_node=host_bytes,
        scenario="elided",
    )


def compared(best, without):
    return Tuned(best=best, plan=None, without=without, sizes=(best,), left_out=(), pays_from=None)


@pytest.mark.parametrize(
    ("with_it", "without", "pays", "top"),
    [
        (267.0, 268.0, False, "without"),
        (268.0, 267.0, False, "best"),
        (1010.0, 1000.0, False, "best"),
        (1011.0, 1000.0, True, "best"),
        (900.0, 1000.0, False, "without"),
        (1000.0, 1000.0, False, "without"),  # the one with less host memory
    ],
)
def test_a_difference_of_one_percent_is_none(with_it, without, pays, top):
    found = compared(setting(4096, with_it, host_bytes=2**30), setting(None, without))
    assert found.pays is pays
    assert found.top is getattr(found, top)
    assert found.gain == pytest.approx(with_it / without - 1)


def test_without_a_known_step_one_request_in_a_hundred_is_no_difference():
    assert not compared(setting(4096, None, requests=101), setting(None, None, requests=100)).pays
    assert compared(setting(4096, None, requests=102), setting(None, None, requests=100)).pays


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
