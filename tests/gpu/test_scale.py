"""
A plan made to fit a smaller machine, with all numbers worked out by hand for one layer of 656 B rows.

64,000 device tokens, twice as many in host memory:

    KV rows                  (64,000 + 64) × 656                       42,025,984
    index-K                  (128,000 + 64) × 132                      16,904,448
    HiSparse request tables  2 × (41,472 + 115,744) + 24,580              339,012
    logical to device map    (128,000 + 65) × 8                         1,024,520
    request to token table   2 × 8,196 × 4                                 65,568
    host KV pool             (128,000 + 64) × 656                      84,009,984
"""

import pytest

import hsplan
from hsplan.errors import CannotRunError
from hsplan.gpu.scale import Fitted, fitted, sizes_of

MODEL = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}
SCENARIO = "elided+offload"
GPU_BYTES = 42_025_984 + 16_904_448 + 339_012 + 1_024_520 + 65_568
HOST_BYTES = 84_009_984
MUCH = 2**40


def plan_of(*, weights="50MB", **overrides):
    deployment = {
        "gpu": "h200",
        "tp": 1,
        "kv_cache_dtype": "fp8_e4m3",
        "max_running_requests": 1,
        "max_model_len": 8192,
        "max_total_tokens": 64_000,
    }
    spec = {"model": MODEL, "weights": {"bytes_per_rank": weights}, "deployment": deployment}
    return hsplan.plan(spec, **{"context": 8192, **overrides})


def fit(gpu_bytes, host_bytes, **overrides):
    return fitted(plan_of(**overrides), SCENARIO, gpu_bytes=gpu_bytes, host_bytes=host_bytes)


def tokens(fit):
    return fit.entry.pools.tokens.best


def test_a_machine_that_is_just_large_enough_runs_the_plan_as_it_is():
    found = fit(50_000_000 + GPU_BYTES, HOST_BYTES)
    assert (tokens(found), found.weight_bytes, found.notes) == (64_000, 50_000_000, ())


def test_a_byte_too_little_of_host_memory_takes_three_percent_of_the_tokens():
    found = fit(MUCH, HOST_BYTES - 1)
    assert tokens(found) == 62_080
    assert found.notes == ("pools of 62,080 device tokens instead of 64,000: host memory is smaller than planned",)


def test_a_byte_too_little_of_gpu_memory_takes_three_percent_of_the_tokens():
    found = fit(50_000_000 + GPU_BYTES - 1, MUCH)
    assert (tokens(found), found.weight_bytes) == (62_080, 50_000_000)
    assert found.notes == ("pools of 62,080 device tokens instead of 64,000: GPU memory is smaller than planned",)


def test_of_two_that_are_too_small_the_one_that_binds_is_named():
    notes = fit(50_000_000 + GPU_BYTES - 1, HOST_BYTES // 2).notes
    assert notes[0].endswith(": host memory is smaller than planned")


def test_pools_shrink_until_they_fit_and_little_further():
    found = fit(MUCH, HOST_BYTES // 10)
    # (2 × 6,371 + 64) × 656 = 8,400,736 is the most below 8,400,998.
    assert 6_371 * 97 // 100 - 64 <= tokens(found) <= 6_371
    assert tokens(found) % 64 == 0
    assert found.plan.scenarios[SCENARIO] is found.entry


def test_weights_of_more_than_half_the_card_give_way_to_the_pools():
    found = fit(2**30 + GPU_BYTES - 1, HOST_BYTES, weights="1GiB")
    assert (tokens(found), found.weight_bytes) == (64_000, 0)
    assert found.notes == ("no room is kept for the weights, 1.00 GiB",)


def test_weights_that_fit_beside_the_pools_keep_their_room():
    assert fit(2**30 + GPU_BYTES, HOST_BYTES, weights="1GiB").weight_bytes == 2**30


def refusal(call, *args, **options):
    with pytest.raises(CannotRunError) as caught:
        call(*args, **options)
    (problem,) = caught.value.problems
    return problem.what, problem.remedy


def test_a_card_without_room_for_the_tables_is_refused():
    # Of one page: 128 × 656 + 3 × 8,448 + 339,012 + 193 × 8 + 65,568 = 515,436
    assert refusal(fit, 500_000, MUCH) == (
        "the request tables alone take 503.36 KiB, there is room for 488.28 KiB",
        "give a smaller --max-running-requests or --max-model-len",
    )


def test_host_memory_of_less_than_a_page_is_refused_by_its_name():
    # Of one page: (2 × 64 + 64) × 656 = 125,952
    assert refusal(fit, MUCH, 100_000) == (
        "the smallest host pool takes 123.00 KiB, this machine gives 97.66 KiB",
        "give a larger --host-memory",
    )


def sizes(*, steps=100, free_bytes=MUCH, **overrides):
    plan = plan_of(**{"max_running_requests": 64, **overrides})
    return sizes_of(
        Fitted(plan=plan, entry=plan.scenarios[SCENARIO], weight_bytes=0, notes=()), steps=steps, free_bytes=free_bytes
    )


def test_what_is_run_has_the_rows_and_the_hot_buffers_of_the_plan():
    found, notes = sizes()
    assert (found.owners, found.row_bytes, found.top_k, found.slots) == ((True,), 656, 2048, 4096)
    assert (found.page_tokens, found.context, found.steps) == (64, 8192, 100)
    assert notes == ()


@pytest.mark.parametrize(
    ("overrides", "requests"),
    [
        ({"host_to_device_ratio": 1}, 7),  # host memory: 64,064 // 8,192
        ({"host_to_device_ratio": 4}, 15),  # hot buffers: 64,000 // 4,160
        ({"max_running_requests": 3}, 3),
        ({"free_bytes": 3_800_000}, 5),  # 40 × 8,192 + 40 × 4,096 + 64 × 4,096 = 753,664 B a request
    ],
)
def test_as_many_requests_run_as_the_tightest_limit_allows(overrides, requests):
    assert sizes(**overrides)[0].requests == requests


def test_traces_that_limit_the_requests_are_told_of():
    assert sizes(free_bytes=3_800_000)[1] == ("5 requests at once: the traces of more do not fit beside the pools",)


def test_requests_that_would_never_leave_the_hot_buffer_are_made_longer():
    found, notes = sizes(context=4096)
    # The shortest request is a sixteenth shorter: (4,096 + 2,048 + 100) × 16 // 15 + 64
    assert found.context == 6_724
    assert notes == ("requests of 6,724 tokens instead of 4,096: shorter ones never leave the hot buffer",)


def test_host_memory_of_less_than_a_request_is_refused_with_its_tokens():
    assert refusal(sizes, max_total_tokens=1920) == (
        "no request of 6,724 tokens fits: the host pool holds 3,904",
        "give a larger --host-memory, or fewer --steps",
    )


def test_a_pool_of_less_than_a_hot_buffer_is_refused():
    what, _ = refusal(sizes, max_total_tokens=4096, host_to_device_ratio=4)
    assert what == "no request of 6,724 tokens fits: hot buffers holds 0"
