"""HiSparse: the tables beside the pool, the host pool, and what the engine asks of the hot buffer."""

from __future__ import annotations

import pytest
from configs import GLM_5, GLM_5_2, spec_of

import hsplan
from hsplan import InputError, UnsupportedError

PACKED = {"kv_cache_dtype": "fp8_e4m3"}


def offloaded(model=GLM_5_2, **keys):
    """The plan as launched with offload, 64 GiB for packed rows on H200: 957,568 device tokens at ratio 2."""
    offload = keys.pop("offload", {})
    return hsplan.plan(spec_of(model, **{"kv_budget": "64GiB", **PACKED, **keys}, offload=offload))


def entry(**keys):
    return offloaded(**keys).to_dict()["scenarios"]["offload"]


def ledger(**keys):
    return {line["name"]: line for line in entry(**keys)["ledger"]}


def test_device_tokens_logical_tokens_and_host_tokens():
    """68,719,476,736 // 71,760 in pages of 64; twice that; and one spare page of 51,168 bytes a token."""
    found = entry()
    assert found["max_total_num_tokens"] == 957_568
    assert found["logical_tokens"] == 1_915_136
    assert found["host_pool_bytes"] == 1_915_200 * 51_168 == 97_996_953_600
    assert found["deployment"]["host_bytes_per_node"] == 783_975_628_800


def test_the_pool_has_a_spare_page_and_index_keys_for_every_host_token():
    found = ledger()
    assert found["KV rows"]["bytes"] == (957_568 + 64) * 656 * 78
    assert found["index-K"]["bytes"] == (1_915_136 + 64) * 132 * 78
    assert found["host KV pool"]["place"] == "host"
    assert found["host KV pool"]["bytes"] == 97_996_953_600


def test_no_index_keys_lie_in_the_host_pool():
    """The host pool holds KV rows alone, so its bytes are a multiple of one row of all layers."""
    assert entry(offload={"host_to_device_ratio": 4})["host_pool_bytes"] % 51_168 == 0


@pytest.mark.parametrize(
    ("buffer", "per_layer", "per_slot"),
    # Token ids and device slots of 4 bytes each for buffer and page, and an order of 2 bytes.
    [(4096, 41_472, 3_234_816), (8192, 82_432, 6_429_696)],
)
def test_a_hot_buffer_costs_its_tables_in_every_layer(buffer, per_layer, per_slot):
    keys = {"offload": {"device_buffer_size": buffer}, "max_model_len": 131_072}
    with_64 = ledger(**keys, max_running_requests=64)["HiSparse request tables"]["bytes"]
    with_65 = ledger(**keys, max_running_requests=65)["HiSparse request tables"]["bytes"]
    assert per_slot == 78 * per_layer
    # Beside the layers: device map, host map of 131,076 + 64 entries, top-k output and miss plan.
    assert with_65 - with_64 == per_slot + 8 * (buffer + 64) + 8 * 131_140 + 16_384 + 24_580


@pytest.mark.parametrize(("release", "prefetch"), [("0.5.17", 0), ("0.5.18", 24_580), ("0.5.23", 24_580)])
def test_the_request_tables_are_those_of_the_release(release, prefetch):
    """65 rows of 33,280 + 1,049,120 + 3,234,816 + 16,384 bytes, the miss plan, and three small arrays."""
    found = ledger(release=release, max_running_requests=64, max_model_len=131_072)["HiSparse request tables"]
    assert found["bytes"] == 65 * (4_333_600 + prefetch) + 24_580
    assert found["place"] == "gpu"


def test_a_model_without_skip_layers_has_no_miss_plan():
    found = ledger(model=GLM_5, max_running_requests=64, max_model_len=131_072)["HiSparse request tables"]
    assert found["bytes"] == 65 * 4_333_600 + 24_580


def test_default_requests_at_a_million_tokens_take_30_gib_of_tables():
    """2,049 rows of 33,280 + 8 × (1,048,580 + 64) + 3,234,816 + 16,384 + 24,580 bytes, request table beside them."""
    found = ledger()
    assert found["HiSparse request tables"]["bytes"] == 2_049 * 11_698_212 + 24_580
    assert found["HiSparse request tables"]["bytes"] + found["request to token table"]["bytes"] > 30 * 2**30


def test_the_map_from_logical_to_device_tokens_has_8_bytes_an_entry():
    assert ledger()["logical to device map"]["bytes"] == 8 * (1_915_136 + 64 + 1)


def test_the_state_of_a_speculative_swap_is_counted_from_0_5_22_on():
    """16 requests, two draft tokens of 2,048: hashed index, policy, scratch, slots and outputs."""
    keys = {"draft_layers": 1, "num_speculative_tokens": 1, "max_running_requests": 16, "disaggregation": "prefill"}
    found = ledger(release="0.5.22", **keys)["HiSparse speculative swap state"]
    index = 78 * 17 * 131_072
    policy = 78 * 18 * 4096 * 4
    scratch = 18 * 5 * 4096 * 4 + 78 * 17 * 1024 * 4
    assert found["bytes"] == index + policy + scratch + 17 * 2 * 2048 * 4 + 16 * 4096 == 204_054_528
    assert "HiSparse speculative swap state" not in ledger(release="0.5.21", **keys)


@pytest.mark.parametrize(
    ("release", "kv_rows"),
    # The draft pool grows with the ratio from 0.5.22 on.
    [("0.5.18", 1), ("0.5.22", 2)],
)
def test_the_draft_pool_under_offload_is_that_of_the_release(release, kv_rows):
    found = entry(release=release, draft_layers=1)
    tokens = found["max_total_num_tokens"]
    pool = next(line["bytes"] for line in found["ledger"] if line["name"] == "draft KV pool")
    assert pool == (tokens * kv_rows + 64) * 656 + (tokens * 2 + 64) * 132


# The request cap


@pytest.mark.parametrize(("release", "tokens"), [("0.5.17", 957_568), ("0.5.18", 957_568), ("0.5.23", 957_568)])
def test_a_request_stops_six_tokens_short_of_the_device_pool(release, tokens):
    """Whatever host memory holds: #28753 lifted a check of PD decode, not the limit of the worker."""
    found = entry(release=release)
    assert found["max_total_num_tokens"] == tokens
    assert found["max_request_tokens"] == tokens - 6
    assert entry(release=release, disaggregation="decode")["max_request_tokens"] < tokens


def test_a_ratio_that_leaves_too_few_device_tokens_for_a_request_does_not_fit_and_says_which_does():
    """64 GiB // (51,168 + 10,296 × 27) in pages are 208,768 tokens; at ratio 12 393,280, at 11 417,920."""

    def at(ratio):
        spec = spec_of(
            GLM_5_2, kv_budget="64GiB", max_running_requests=8, **PACKED, offload={"host_to_device_ratio": ratio}
        )
        return hsplan.plan(spec, context=400_000).to_dict()["scenarios"]["offload"]

    assert at(27)["why_not"] == "the engine takes no request longer than 208,762 tokens"
    assert at(27)["cure"].startswith("host_to_device_ratio 11, or a shorter context")
    assert [at(ratio)["fits"] for ratio in (27, 12, 11)] == [False, False, True]


# What the engine refuses


@pytest.mark.parametrize(
    ("buffer", "ok"), [(2047, False), (2048, True), (4096, True), (32_768, True), (32_832, False), (100_000, False)]
)
def test_the_hot_buffer_holds_top_k_and_fits_16_bit_slot_numbers(buffer, ok):
    if ok:
        assert entry(offload={"device_buffer_size": buffer})["available"] is True
    else:
        with pytest.raises(InputError) as caught:
            offloaded(offload={"device_buffer_size": buffer})
        assert caught.value.lines()[0].startswith("offload.device_buffer_size: a hot buffer of ")
        assert "give at" in caught.value.lines()[1]


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize(
    ("gpu", "most", "refused", "needed", "there"),
    [
        # 2,048 + 4,096 + 2 ids, 242 counters of 64 lanes twice: 4 × (6,146 + 2 × 242) + 2 × (15,424 + 4,096).
        ("mi300x", 15_360, 15_424, "65,560", "65,536"),
        # Chunks of 32 lanes: 4 × (6,146 + 2 × 955) + 2 × (30,528 + 4,096) of 99 KiB.
        ("rtx-pro-6000", 30_464, 30_528, "101,472", "101,376"),
        ("l40s", 30_464, 30_528, "101,472", "101,376"),
    ],
)
def test_the_swap_in_kernel_finds_room_for_the_hot_buffer(release, gpu, most, refused, needed, there):
    keys = {"gpu": gpu, "release": release}
    keys |= {"kv_cache_dtype": "bfloat16", "attention_backend": "flashmla_sparse"} if gpu != "mi300x" else {}
    assert entry(**keys, offload={"device_buffer_size": most})["available"] is True
    with pytest.raises(InputError) as caught:
        offloaded(**keys, offload={"device_buffer_size": refused})
    what = f"swapping into {refused} slots takes {needed} B of shared memory, the {gpu} has {there} B"
    assert caught.value.lines() == [f"offload.device_buffer_size: {what}", f"  give at most {most}"]


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b200", "gb300", "mi355x"])
def test_other_cards_have_room_for_any_hot_buffer(gpu):
    keys = {} if gpu == "mi355x" else {"kv_cache_dtype": "bfloat16", "attention_backend": "flashmla_sparse"}
    assert entry(gpu=gpu, **keys, offload={"device_buffer_size": 32_704})["available"] is True


def test_the_kernel_of_several_steps_takes_any_hot_buffer():
    """Its tables lie in global memory; 0.5.21 swaps drafts in with the plain kernel."""
    keys = {
        "gpu": "rtx-pro-6000",
        "disaggregation": "decode",
        "draft_layers": 1,
        "offload": {"device_buffer_size": 32_704},
    }
    assert entry(**keys, release="0.5.22")["available"] is True
    with pytest.raises(InputError, match="shared memory"):
        offloaded(**keys, release="0.5.21")


@pytest.mark.parametrize(("release", "ok"), [("0.5.17", True), ("0.5.21", True), ("0.5.22", False), ("0.5.23", False)])
def test_the_hot_buffer_is_whole_pages_from_0_5_22_on(release, ok):
    if ok:
        assert entry(release=release, offload={"device_buffer_size": 4100})["available"] is True
    else:
        with pytest.raises(InputError) as caught:
            offloaded(release=release, offload={"device_buffer_size": 4100})
        assert caught.value.lines()[1] == "  give 4096"


def test_a_wrong_buffer_only_closes_the_offload_scenarios_when_offload_is_not_launched():
    plan = hsplan.plan({**spec_of(GLM_5_2, kv_budget="64GiB"), "offload": None}).to_dict()["scenarios"]
    assert plan["offload"]["available"] is True
    assert entry(offload={"device_buffer_size": 8192})["row"]["bytes"] == 656


@pytest.mark.parametrize("ratio", [0, 0.5, -1, 1001, float("nan"), float("inf"), "2x"])
def test_a_ratio_below_one_or_absurd_is_refused(ratio):
    with pytest.raises(InputError, match=r"offload\.host_to_device_ratio"):
        offloaded(offload={"host_to_device_ratio": ratio})


def test_a_fractional_ratio_is_a_what_if_with_floored_tokens():
    """78 × 656 + int(132 × 78 × 2.5) = 76,908; 893,504 device tokens; × 2.5 = 2,233,760."""
    plan = offloaded(offload={"host_to_device_ratio": 2.5}).to_dict()
    found = plan["scenarios"]["offload"]
    assert found["bytes_per_token"]["charged"] == 76_908
    assert (found["max_total_num_tokens"], found["logical_tokens"]) == (893_504, 2_233_760)


@pytest.mark.parametrize("flags", [{"dcp": 2, "gpu": "b200", "kv_cache_dtype": "auto"}, {"hierarchical_cache": True}])
def test_offload_with_dcp_or_hicache_is_refused(flags):
    with pytest.raises(UnsupportedError):
        offloaded(**flags)


@pytest.mark.parametrize(("build", "ok"), [("main-2026-03-21", False), ("main-2026-03-22", True)])
def test_offload_exists_since_22_march_2026(build, ok):
    plan = hsplan.plan(spec_of(GLM_5, release=build, kv_budget="64GiB", **PACKED)).to_dict()
    assert plan["scenarios"]["offload"]["available"] is ok
    assert plan["scenarios"]["offload"]["engine_applies"] is ok


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_the_default_buffer_is_twice_the_engines_own_top_k_whatever_the_models(release):
    plan = offloaded({**GLM_5_2, "index_topk": 1024}, release=release)
    assert plan.launched.pools.hot_buffer_tokens == 4096 + 64
