"""DeepSeek-V4's rates, fixed bytes, windows and limits, with numbers written out; what the engine refuses."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V4_1_FLASH, DEEPSEEK_V4_FLASH, DEEPSEEK_V4_PRO, spec_of

import hsplan
from hsplan import InputError, UnsupportedError

BUDGET = "60GiB"


def plan_of(model=DEEPSEEK_V4_FLASH, **keys):
    deployment = {"kv_budget": BUDGET, "max_running_requests": 64, "chunked_prefill_size": 8192, **keys}
    return hsplan.plan(spec_of(model, **deployment)).to_dict()


def scenario(model=DEEPSEEK_V4_FLASH, name="baseline", **keys):
    return plan_of(model, **keys)["scenarios"][name]


def rates(model=DEEPSEEK_V4_FLASH, name="baseline", **keys):
    found = scenario(model, name, **keys)["compressed"]
    return found["bytes_per_full_token"], found["bytes_per_swa_token"]


# A page of 64 entries is 64 × 584 = 37,376 padded to 37,440: 585 an entry; a page of 2 is 1,168 padded to 1,728: 864.
# Index keys are 132 an entry of ratio 4. A window slot is 585 in each layer, and 8 rows of state a page of 256:
# 4 × (512 + 128) × 4 = 10,240 B.
FLASH_WINDOW = 43 * 585 + 8 / 256 * 10_240 * 21
FLASH_RATE = 21 * (585 + 132) / 4 + 20 * 864 / 128


def test_the_rates_of_v4_flash_are_the_written_ones():
    assert (FLASH_RATE, FLASH_WINDOW) == (3_899.25, 31_875)
    assert rates() == (3_899.25, 31_875)


def test_the_rates_of_v4_pro_have_61_windows_30_ratio_4_and_31_ratio_128_layers():
    assert rates(DEEPSEEK_V4_PRO) == (30 * 717 / 4 + 31 * 6.75, 61 * 585 + 320 * 30)
    assert rates(DEEPSEEK_V4_PRO) == (5_586.75, 45_285)


def test_trtllm_stores_512_bytes_an_entry_without_padding():
    assert rates(gpu="b200", attention_backend="trtllm") == (21 * (512 + 132) / 4 + 20 * 4, 43 * 512 + 320 * 21)


def test_a_given_ratio_puts_windows_into_the_rate():
    assert rates(swa_full_tokens_ratio=0.1) == (pytest.approx(3_899.25 + 3_187.5, rel=1e-15), 31_875)
    assert scenario(swa_full_tokens_ratio=0.1)["compressed"]["swa_cap_tokens"] is None
    assert scenario(swa_full_tokens_ratio=0.1)["compressed"]["swa_fixed_bytes"] == 0


def test_hisparse_divides_entries_of_ratio_4_by_the_ratio_and_keeps_their_keys():
    assert rates(name="offload", offload={"host_to_device_ratio": 4})[0] == 21 * (585 / 16 + 33) + 135


def test_speculation_prices_one_more_layer_and_wider_rings():
    wide = 43 * 585 + 16 / 256 * 10_240 * 21
    found = rates(draft_layers=1)
    assert found == (pytest.approx(3_899.25 * 44 / 43, rel=1e-15), pytest.approx(wide * 44 / 43, rel=1e-15))


@pytest.mark.parametrize("release", ["0.5.17", "0.5.18", "0.5.19", "0.5.20"])
def test_before_0_5_21_an_entry_is_584_bytes_and_windows_are_a_tenth_of_the_tokens(release):
    # 0.1 × 584 × 43 + 584/4 × 21 + 584/128 × 20 + 132/4 × 21 + 0.1 × 8/128 × 10,240 × 21
    assert rates(release=release)[0] == pytest.approx(2_511.2 + 3_066 + 91.25 + 693 + 1_344, rel=1e-12)
    assert scenario(release=release)["compressed"]["swa_cap_tokens"] is None


def test_v4_1_stores_entries_in_its_source_layers_and_window_slots_in_all():
    # ratio 2: (585 + 68) / 2 in layers 2, 8 and 14; ratio 1: 585 + 68 in layer 20; no ring of ratio 4
    assert rates(DEEPSEEK_V4_1_FLASH) == (3 * 326.5 + 653, 40 * 585)


def test_v4_1_on_sm100_without_attention_tp_stores_fp4_entries():
    # 288 + 68 an entry beside windows of 528
    found = scenario(DEEPSEEK_V4_1_FLASH, gpu="b200", dp_attention=8)
    assert found["row"]["attention_backend"] == "flashmla_mega"
    assert found["compressed"]["bytes_per_full_token"] == 3 * 178 + 356 == 890
    assert found["compressed"]["bytes_per_swa_token"] == 40 * 528
    assert scenario(DEEPSEEK_V4_1_FLASH, gpu="b200")["row"]["attention_backend"] == "flashmla"


def test_v4_1_has_nothing_to_elide_and_no_offload():
    plan = plan_of(DEEPSEEK_V4_1_FLASH)
    assert plan["model"]["index_owner_ids"] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert plan["model"]["skip_topk_layers"] == 30
    baseline, elided = plan["scenarios"]["baseline"], plan["scenarios"]["elided"]
    assert elided["engine_applies"]
    assert baseline["max_total_num_tokens"] == elided["max_total_num_tokens"]
    assert "no index key of their own" in elided["reason"]
    assert plan["scenarios"]["offload"]["reason"] == "HiSparse moves the entries of ratio 4, and the model has none"


def test_elided_is_baseline_where_no_layer_reuses_top_k():
    found = plan_of()["scenarios"]
    for one, other in (("baseline", "elided"), ("offload", "elided+offload")):
        assert found[one]["compressed"] == found[other]["compressed"]
        assert found[other]["reason"].startswith("the model has no skip-TopK layers")


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        # 64 × (128 + 128 + 256 + 256) + 2 × 8,192 + 256, and 4 × 64 kept tails of 128 + 256
        ({"radix_cache": False}, 65_792),
        ({}, 65_792 + 98_304),
        ({"radix_cache": False, "dp_attention": 8}, 8 * 768 + 16_640),
        # PD decode: no chunks, and 16 slots in transfer for 8 requests
        ({"disaggregation": "decode", "max_running_requests": 8}, 8 * 768 + 16 * 384),
        # 3 draft tokens and the verified one: 128 + 4 × 128 + 256 + 2 × 4 a request
        ({"radix_cache": False, "draft_layers": 1}, 64 * 904 + 16_640),
        # Pipeline stages do not overlap: one chunk in flight, and drafts take a page: 128 + 4 × 128 + 256 + 256
        ({"radix_cache": False, "pp": 2, "gpus": 16}, 64 * 768 + 8_192 + 256),
        ({"radix_cache": False, "layer_range": [0, 22]}, 64 * 768 + 8_192 + 256),
        ({"radix_cache": False, "pp": 2, "gpus": 16, "draft_layers": 1}, 64 * 1_152 + 8_192 + 256),
    ],
    ids=[
        "without prefixes",
        "with prefixes",
        "8 ranks",
        "PD decode",
        "speculation",
        "pipeline",
        "a stage",
        "pipeline with drafts",
    ],
)
def test_windows_are_sized_by_the_request_cap(keys, slots):
    assert scenario(**keys)["compressed"]["swa_cap_tokens"] == slots


@pytest.mark.parametrize(
    ("release", "slots", "index_pages"), [("0.5.20", None, 1), ("0.5.21", 164_096, 1), ("0.5.22", 164_096, 4)]
)
def test_windows_are_sized_so_from_0_5_21_on_and_index_pages_padded_from_0_5_22_on(release, slots, index_pages):
    found = scenario(release=release)
    assert found["compressed"]["swa_cap_tokens"] == slots
    pages = found["max_total_num_tokens"] // 256
    # A page of 64 keys of 132 B for 256 tokens and layer of ratio 4, one spare page or four
    index = next(line for line in found["ledger"] if line["name"] == "index-K")
    assert index["bytes"] == (pages + index_pages) * 64 * 132 * 21


def test_no_prefixes_are_kept_under_hisparse():
    assert scenario(name="offload")["compressed"]["swa_cap_tokens"] == 65_792


def test_state_of_ratio_128_is_kept_for_requests_in_transfer_too():
    # 8 requests and 16 in transfer: 25 rings of 128, one more and a row, in blocks of 128
    found = scenario(disaggregation="decode", max_running_requests=8)["compressed"]
    assert found["fixed_c128_state_bytes"] == 3_456 * 4_096 * 20


def test_v4_1_gives_up_the_pages_that_its_low_ratios_reserve():
    # windows 164,096 × 23,400; state 134 rows × 4,096 B × 3 layers; entries: 256 × 585 in each of 4 layers; keys:
    # 320 more of ratio 1 and 192 more of ratio 2 in 3 layers, × 68
    tokens = 1_024_000
    fixed = 164_096 * 23_400 + 134 * 4_096 * 3
    reserved = 4 * 149_760 + 320 * 68 + 3 * 192 * 68
    budget = fixed + tokens * 1_632.5 + reserved
    for spare, held in ((0, tokens), (-1, tokens - 256)):
        found = scenario(DEEPSEEK_V4_1_FLASH, kv_budget=int(budget) + spare)
        assert found["max_total_num_tokens"] == held


def test_v4_1_on_two_stages_has_one_chunk_in_flight():
    # windows: 256 × (128 + 128 + 256 + 256) + 8,192 + 256 + 1,024 × 384 = 598,272, × 20 layers × 585 B; state: 518 rows
    # of 4,096 B in 3 layers; reserved as above: 3 × (149,760 + 192 × 68); a token: 3 × (585 + 68) / 2 = 979.5 B, so
    # 40 GiB − 6,999,782,400 − 6,365,184 − 488,448 hold 36,695,290, in pages of 256
    found = scenario(
        DEEPSEEK_V4_1_FLASH, tp=4, pp=2, gpus=8, kv_budget="40GiB", max_running_requests=256, chunked_prefill_size=8_192
    )
    assert found["compressed"]["swa_cap_tokens"] == 598_272
    assert found["max_total_num_tokens"] == 36_695_040


def test_a_chunk_of_the_engines_own_is_divided_by_dp_attention_and_a_given_one_is_not():
    keys = {"radix_cache": False, "dp_attention": 8}
    own = plan_of(**keys, chunked_prefill_size="auto")
    given = plan_of(**keys)
    assert own["scenarios"]["baseline"]["compressed"]["swa_cap_tokens"] == 8 * 768 + 2 * 1_024 + 256
    assert any(note.startswith("chunked_prefill_size is taken as that of one rank") for note in given["notes"])
    assert not any("chunked_prefill_size" in note for note in own["notes"])


def test_state_of_ratio_128_is_taken_for_every_running_request_and_said_when_none_are_given():
    # 65 rings of 128, one more and a row: 8,449 rows in blocks of 128, × 1,024 × 4 B × 20 layers
    assert scenario()["compressed"]["fixed_c128_state_bytes"] == 8_576 * 4_096 * 20
    plan = plan_of(max_running_requests="auto")
    found = plan["scenarios"]["baseline"]["compressed"]
    # 60 GiB / 7,086.75 B are 9.09 M tokens: 4,438 requests by the engine's estimate, at most 4,096
    assert found["fixed_c128_state_bytes"] == (4_097 * 128 + 256) * 4_096 * 20
    assert found["swa_cap_tokens"] is None
    assert any("the state of 4,096 requests takes 43.0 GB" in note for note in plan["notes"])
    assert any("launcher sets 256" in note for note in plan["notes"])


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize(("dp", "requests", "rows"), [(1, 256, 66_176), (8, 32, 8_832)])
def test_drafts_leave_the_256_requests_of_the_launcher_alone(release, dp, requests, rows):
    """257 or 33 rings of 256, one more and a row, in blocks of 128; 48 would be set only where nothing was."""
    plan = plan_of(draft_layers=1, max_running_requests="auto", dp_attention=dp, release=release)
    found = plan["scenarios"]["baseline"]
    assert found["compressed"]["fixed_c128_state_bytes"] == rows * 4_096 * 20
    assert found["concurrency"]["limits"]["max_running"] == requests
    notes = " ".join(plan["notes"])
    assert "launcher sets 256 for DeepSeek-V4" in notes
    assert f"the state of {requests} requests takes" in notes
    assert "thousands" not in notes


def test_what_the_launcher_sets_is_said_where_it_is_not_given_and_the_shipped_specs_give_it():
    assert any("launcher sets 0.1" in note for note in plan_of()["notes"])
    assert not any("launcher" in note for note in plan_of(swa_full_tokens_ratio=0.1)["notes"])
    assert not any("launcher" in note for note in plan_of(DEEPSEEK_V4_1_FLASH)["notes"])  # V4.1 is left to the cap
    assert not any("launcher" in note for note in plan_of(release="0.5.20")["notes"])  # a tenth in any case
    for name in ("deepseek-v4-flash", "deepseek-v4-pro"):
        plan = hsplan.plan(name).to_dict()
        assert not any("launcher" in note for note in plan["notes"])
        assert plan["scenarios"]["baseline"]["compressed"]["swa_cap_tokens"] is None


def test_offload_is_advised_only_where_it_starts():
    with_offload, without = (
        scenario(model, kv_budget="20GiB", workload={"context": 1_000_000})["concurrency"]
        for model in (DEEPSEEK_V4_FLASH, DEEPSEEK_V4_1_FLASH)
    )
    assert with_offload["lift"] == "offload, more ranks, or a higher mem_fraction"
    assert without["lift"] == "more ranks, or a higher mem_fraction"


def test_rates_and_fixed_bytes_are_never_blended_into_one_rate():
    found = scenario()
    assert set(found["bytes_per_token"].values()) == {None}
    assert found["max_total_num_tokens"] == (
        int((60 * 2**30 - 8_576 * 4_096 * 20 - 164_096 * 31_875) / 3_899.25) // 256 * 256
    )
    other = hsplan.plan("deepseek-v3.2-fp8").to_dict()["scenarios"]["baseline"]
    assert other["compressed"] is None


def test_a_window_pool_that_grows_with_tokens_bounds_the_requests():
    found = scenario(swa_full_tokens_ratio=0.001, max_running_requests=4096, max_model_len=65_536)
    windows = found["compressed"]["swa_tokens"]
    assert found["concurrency"]["limits"]["gpu"] == windows // (128 + 256)


def test_a_pool_that_cannot_admit_one_request_does_not_fit():
    plan = plan_of(swa_full_tokens_ratio=0.0001, kv_budget="2GiB", max_running_requests=4)
    found = plan["scenarios"]["baseline"]
    assert found["compressed"]["swa_tokens"] <= 384
    assert not found["fits"]
    assert "cannot admit one request" in found["why_not"]
    assert found["cure"] == "a higher swa_full_tokens_ratio"


def test_fixed_bytes_beyond_the_budget_do_not_fit():
    found = scenario(kv_budget="2GiB", max_running_requests=256)
    assert found["max_total_num_tokens"] == 0
    assert "windows and state of the requests take" in found["why_not"]
    assert found["cure"] == "a lower max_running_requests"


def test_hot_buffers_are_counted_in_entries_of_ratio_4():
    found = scenario(name="offload", offload={"host_to_device_ratio": 4})
    assert found["concurrency"]["limits"]["hot_buffer"] == found["compressed"]["c4_tokens"] // (4_096 + 64)
    pages = -(-(found["max_total_num_tokens"] // 4) // 64)
    assert found["host_pool_bytes"] == pages * 37_440 * 21
    assert found["logical_tokens"] == found["max_total_num_tokens"]


def test_the_stage_with_the_fewest_tokens_binds_a_pipeline():
    both = scenario(DEEPSEEK_V4_PRO, pp=2, gpus=8, nodes=2)["max_total_num_tokens"]
    first = scenario(DEEPSEEK_V4_PRO, layer_range=[0, 30])["max_total_num_tokens"]
    last = scenario(DEEPSEEK_V4_PRO, layer_range=[30, 61])["max_total_num_tokens"]
    assert both == min(first, last)
    assert first != last


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"release": "main-2026-07-01"}, "how SGLang main-2026-07-01 sizes DeepSeek-V4 is not known"),
        ({"gpu": "mi355x"}, "on ROCm"),
        ({"kv_cache_dtype": "bfloat16"}, "pool is fp8"),
        ({"cp": 2}, "cp with DeepSeek-V4 is not modelled"),
        ({"dcp": 2}, "dcp with DeepSeek-V4 is not modelled"),
        ({"attention_backend": "flashmla_kv"}, "no backend of DeepSeek-V4"),
        ({"attention_backend": "trtllm"}, "needs SM100"),
        ({"attention_backend": "trtllm", "gpu": "b200", "release": "0.5.18"}, "has no trtllm for DeepSeek-V4"),
        ({"attention_backend": "trtllm", "gpu": "b200", "disaggregation": "decode"}, "PD disaggregation"),
        ({"attention_backend": "trtllm", "gpu": "b200", "offload": {}}, "does not run with HiSparse"),
        ({"hierarchical_cache": True, "offload": {}}, "radix cache off"),
        ({"draft_layers": 1, "offload": {}}, "DSA models only"),
        ({"draft_layers": 1, "num_speculative_tokens": 10}, "11 draft tokens"),
    ],
)
def test_what_the_engine_or_hsplan_cannot_run_is_refused(keys, reason):
    with pytest.raises(UnsupportedError, match=reason):
        plan_of(**keys)


@pytest.mark.parametrize(
    ("model", "keys", "reason"),
    [
        (DEEPSEEK_V4_FLASH, {"layer_range": [0, 2]}, "layers 0 to 1 store windows only"),
        (DEEPSEEK_V4_FLASH, {"layer_range": [3, 4], "offload": {}}, "layers 3 to 3 have no entries of ratio 4"),
        (DEEPSEEK_V4_1_FLASH, {"layer_range": [10, 20]}, "layers 10 to 19: layer 10 has no source layer in the stage"),
    ],
)
def test_a_stage_that_the_engine_cannot_size_is_an_input_error(model, keys, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(model, **keys)


def test_v4_1_before_0_5_23_is_refused():
    with pytest.raises(UnsupportedError, match=r"how SGLang 0\.5\.22 sizes DeepSeek-V4\.1 is not known"):
        plan_of(DEEPSEEK_V4_1_FLASH, release="0.5.22")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"page_size": 64}, "asserts pages of 256"),
        ({"offload": {"device_buffer_size": 500}}, "smaller than index_topk 512"),
        ({"offload": {"device_buffer_size": 2050}}, "whole pages of 64"),
    ],
)
def test_flags_that_the_engine_asserts_against_are_input_errors(keys, reason):
    with pytest.raises(InputError, match=reason):
        plan_of(**keys)


def test_the_ratio_of_windows_is_refused_for_models_without_windows():
    with pytest.raises(InputError, match="no sliding-window layers"):
        hsplan.plan("glm-5.2-fp8", swa_full_tokens_ratio=0.1)


def test_every_formula_of_a_v4_plan_can_be_written_out():
    for name, entry in hsplan.plan(spec_of(DEEPSEEK_V4_FLASH, kv_budget=BUDGET)).scenarios.items():
        steps = {step.name: step.formula for part in (entry.layout, entry.pools) for step in part.explain()}
        assert {"bytes a full token", "window slots", "fixed bytes", "full tokens"} <= set(steps), name
