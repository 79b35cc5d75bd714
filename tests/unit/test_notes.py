"""What a plan says beside its figures: what they take for granted, and under what they hold."""

from pathlib import Path

import hsplan

PUBLISHED = Path(__file__).resolve().parents[2] / "benchmarks/data/glm-5.1-8xh200.yaml"
PACKED = {"kv_cache_dtype": "fp8_e4m3", "kv_budget": "32GiB", "context": 131_072}


def noted(beginning, spec="glm-5.2-fp8", **keys):
    return [note for note in hsplan.plan(spec, **keys).notes if note.startswith(beginning)]


def test_a_time_per_token_without_a_step_limits_the_loading_alone():
    assert noted("tpot_ms", tpot_ms=50) == [
        "tpot_ms 50 limits the loading alone: without --step-ms the rest of a step counts as 0"
    ]
    assert noted("tpot_ms", tpot_ms=50, step_ms=12) == []
    assert noted("tpot_ms") == []


def test_drafts_without_a_layer_of_their_own_are_said_to_be_counted_so():
    start = "tokens are drafted without layers of their own"
    assert len(noted(start, num_speculative_tokens=3)) == 1
    assert noted(start, num_speculative_tokens=3, draft_layers=1) == noted(start) == []


def test_that_gpus_of_a_node_do_not_share_host_memory_is_said_unless_it_is_given():
    start = "host memory is taken to feed the links of all 8 GPUs"
    assert len(noted(start, offload={})) == 1
    assert noted(start, offload={}, host_gb_s=110) == noted(start, offload={}, tp=1, checkpoint="int4") == []
    assert noted(start) == []  # nothing is loaded as launched


def test_how_long_prompts_may_be_for_the_requests_of_a_plan():
    """30 hot buffers of 4,160 and a page leave 37,376 of 162,240 device slots: a prompt of 32K and 4,096 tokens."""
    (note,) = noted("until it is read", PUBLISHED, context=40_960)
    assert "all 31 requests of a rank run together where a prompt and up to 4,096 tokens of its" in note
    assert "are at most 37,376 tokens;" in note
    # 1 + (162,240 − 40,960 − 64) // 4,160
    assert note.endswith("at 40,960 tokens 30 do")


def test_prompts_of_deepseek_v4_take_a_slot_for_four_tokens():
    keys = {"offload": {"host_to_device_ratio": 50}, "max_running_requests": 64}
    (note,) = noted("until it is read", "deepseek-v4-flash", context=1_000_000, **keys)
    assert note.endswith("at 1,000,000 tokens 0 do")  # more than all device slots take


def test_short_requests_and_decode_nodes_have_no_such_limit():
    assert noted("until it is read", PUBLISHED, context=4096) == []
    assert noted("until it is read", offload={"host_to_device_ratio": 14}, disaggregation="decode", **PACKED) == []
    assert len(noted("until it is read", offload={"host_to_device_ratio": 14}, **PACKED)) == 1


def test_host_memory_that_holds_the_best_figure_only_is_said_not_to_hold_the_most():
    # 16 requests' pools need 834.46 GiB and 10 beside; with 277,760 of 273,600 tokens 847.15 and 10, rounded up.
    keys = {"kv_cache_dtype": "fp8_e4m3", "offload": {"host_to_device_ratio": 8}, "context": 131_072}
    (note,) = noted("at 277,760 device tokens", "glm-5.3-fp8", host_memory="850GiB", **keys)
    assert "would need 857.16 GiB on a node" in note
    assert noted("at 277,760 device tokens", "glm-5.3-fp8", host_memory="860GiB", **keys) == []


def test_a_budget_given_to_pipeline_stages_of_vllm_is_said_to_be_that_of_each():
    keys = {"engine": "vllm", "tp": 4, "pp": 2, "kv_budget": "30GiB"}
    assert len(noted("the given kv_budget is taken for every pipeline stage", "deepseek-v3.2-fp8", **keys)) == 1
    assert noted("the given kv_budget is taken", "deepseek-v3.2-fp8", **keys | {"tp": 8, "pp": 1}) == []
