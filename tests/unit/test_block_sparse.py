"""MiniMax-M3's rates by ranks and dtypes, HiSparse on its sparse layers, and what the engine refuses."""

from __future__ import annotations

import pytest
from configs import MINIMAX_M3, spec_of

import hsplan
from hsplan import InputError, UnsupportedError

FP8 = {"kv_cache_dtype": "fp8_e4m3"}
FA4 = {"gpu": "b200", "attention_backend": "fa4"}


def plan_of(model=MINIMAX_M3, **keys):
    return hsplan.plan(spec_of(model, **{"kv_budget": "60GiB", "max_running_requests": 64, **keys})).to_dict()


def scenario(name="baseline", **keys):
    return plan_of(**keys)["scenarios"][name]


def charged(name="baseline", **keys):
    return scenario(name, **keys)["bytes_per_token"]["charged"]


@pytest.mark.parametrize(
    ("tp", "bf16", "fp8", "fp8_index"),
    [
        (1, 137_472, 76_032, 68_736),
        (2, 76_032, 45_312, 38_016),
        (4, 45_312, 29_952, 22_656),
        (8, 45_312, 29_952, 22_656),
    ],
)
def test_a_token_takes_k_and_v_of_60_layers_and_57_index_keys(tp, bf16, fp8, fp8_index):
    # 60 × 2 × heads × 128 × size + 57 × 128 × index size; heads beyond the four are copies
    assert charged(tp=tp, **FA4) == bf16
    assert charged(tp=tp, **FA4, **FP8) == fp8
    assert charged(tp=tp, gpu="b200", **FP8) == fp8_index


@pytest.mark.parametrize(
    ("gpu", "release", "keys", "backend", "charged_index", "stored_index"),
    [
        ("b200", "0.5.23", {}, "fa4", 2, 2),
        ("b200", "0.5.23", FP8, "trtllm_mha", 1, 1),
        ("b200", "0.5.20", FP8, "trtllm_mha", 2, 1),
        ("h200", "0.5.23", {}, "fa3", 2, 2),
        ("h200", "0.5.23", FP8, "fa3", 1, 1),
        ("h200", "0.5.22", FP8, "fa3", 2, 2),
        ("rtx-pro-6000", "0.5.23", FP8, "flashinfer", 2, 2),
        ("a100", "0.5.17", {}, "flashinfer", 2, 2),
        ("b200", "0.5.21", FP8, "trtllm_mha", 1, 1),
        ("mi355x", "0.5.23", FP8, "triton", 1, 1),
        ("mi355x", "0.5.21", {}, "triton", 1, 1),
        ("mi355x", "0.5.20", {}, "triton", 2, 2),
        ("mi300x", "0.5.23", {}, "triton", 2, 2),
        ("mi300x", "0.5.23", FP8, "triton", 2, 2),
    ],
)
def test_the_index_key_is_fp8_where_the_release_has_it(gpu, release, keys, backend, charged_index, stored_index):
    found = scenario(gpu=gpu, release=release, **keys)
    assert found["row"]["attention_backend"] == backend
    size = found["row"]["bytes"]
    assert found["bytes_per_token"]["charged"] == 60 * size + 57 * 128 * charged_index
    assert found["bytes_per_token"]["stored_index"] == 57 * 128 * stored_index


def test_on_gfx950_the_index_key_is_fp8_whatever_the_cache():
    # 60 × 512 + 57 × 128, and 60 × 256 + 57 × 128; on gfx942 the key takes two bytes a value
    assert charged(gpu="mi355x") == 38_016
    assert charged(gpu="mi355x", **FP8) == 22_656
    assert charged(gpu="mi300x") == 45_312
    assert charged(gpu="mi300x", **FP8) == 29_952


@pytest.mark.parametrize(
    ("gpu", "keys", "page"),
    [
        ("b200", {}, 128),
        ("b200", FP8, 128),
        ("h200", {}, 128),
        ("h200", {"page_size": 64}, 64),
        ("h200", {"attention_backend": "fa4"}, 1),
        ("rtx-pro-6000", {}, 1),
        ("rtx-pro-6000", {"page_size": 16}, 16),
        ("mi355x", {}, 1),
        # fa4 on SM100 has no other page, trtllm_mha four of them
        ("b200", {"page_size": 64}, 128),
        ("gb300", {"attention_backend": "fa4", "page_size": 1}, 128),
        ("b200", {**FP8, "page_size": 32}, 32),
        ("b200", {**FP8, "page_size": 1}, 64),
    ],
)
def test_pages_are_the_models_blocks_where_the_backend_takes_them(gpu, keys, page):
    plan = plan_of(gpu=gpu, **keys)
    assert plan["scenarios"]["baseline"]["row"]["page_tokens"] == page
    assert any("SGLang forces" in note for note in plan["notes"]) == (keys.get("page_size", page) != page)


def test_under_hisparse_dense_layers_and_keys_span_the_logical_tokens():
    # 3 dense × ratio 4 + 57 sparse layers of 512 B, and 57 keys of 256 B × 4
    found = scenario("offload", gpu="b200", offload={"host_to_device_ratio": 4})
    assert found["bytes_per_token"]["charged"] == (3 * 4 + 57) * 512 + 57 * 256 * 4 == 93_696
    assert found["logical_tokens"] == 4 * found["max_total_num_tokens"]
    assert found["host_pool_bytes"] == (found["logical_tokens"] + 128) * 512 * 57
    assert found["concurrency"]["limits"]["hot_buffer"] == found["max_total_num_tokens"] // (4_096 + 128)


def test_hisparse_comes_with_0_5_21():
    assert scenario("offload", gpu="b200", release="0.5.21")["available"]
    assert scenario("offload", gpu="b200", release="0.5.20")["reason"] == (
        "SGLang 0.5.20 has no HiSparse for MiniMax-M3 (from 0.5.21 on)"
    )
    with pytest.raises(UnsupportedError, match="has no HiSparse for MiniMax-M3"):
        plan_of(release="0.5.20", offload={})


def test_hisparse_does_not_start_with_two_kv_heads_on_a_rank():
    two, four = (scenario("offload", gpu="b200", tp=tp) for tp in (2, 4))
    assert not two["fits"]
    assert two["why_not"] == "SGLang asserts one KV head a rank under HiSparse, and a rank has 2"
    assert two["cure"] == "attention TP of 4"
    assert four["fits"]


def test_elided_is_baseline_no_layer_reuses_top_k():
    plan = plan_of()
    assert plan["as_launched"] == "baseline"
    assert plan["model"]["index_owner_layers"] == 57
    assert plan["model"]["skip_topk_layers"] == 0
    assert plan["scenarios"]["elided"]["reason"].startswith("the model has no skip-TopK layers")


def test_a_layer_whose_index_keeps_values_takes_two_vectors():
    sparse = {**MINIMAX_M3["sparse_attention_config"], "sparse_disable_index_value": [0] * 10 + [1] * 50}
    found = plan_of({**MINIMAX_M3, "sparse_attention_config": sparse}, **FA4)["scenarios"]["baseline"]
    assert found["bytes_per_token"]["charged"] == 60 * 512 + (57 + 7) * 256


def test_prefill_graphs_take_8_mib_a_captured_size():
    # 8 + 14 + 8 + 8 + 12 sizes up to 4,096, and 8 more up to 8,192: 58 × 8 = 464 MiB
    plan = hsplan.plan(spec_of(MINIMAX_M3, weights={"bytes_per_rank": "60GiB"}, chunked_prefill_size=8192))
    (step,) = [s for s in plan.launched.budget.explain() if s.name == "mem_fraction_static"]
    assert "prefill graph 464" in step.formula


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"release": "main-2026-07-01"}, "how SGLang main-2026-07-01 sizes MiniMax-M3 is not known"),
        ({"attention_backend": "flashmla"}, "flashmla with MiniMax-M3 is not modelled"),
        ({"draft_layers": 1}, "no draft layers"),
        ({"cp": 2}, "cp with MiniMax-M3 is not modelled"),
        ({"hierarchical_cache": True, "offload": {}}, "radix cache off"),
    ],
)
def test_what_the_engine_or_hsplan_cannot_run_is_refused(keys, reason):
    with pytest.raises(UnsupportedError, match=reason):
        plan_of(**keys)


def test_packed_nvfp4_pages_on_blackwell_are_refused_and_not_on_hopper():
    model = {**MINIMAX_M3, "quantization_config": {"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}}
    with pytest.raises(UnsupportedError, match="packed pages on Blackwell"):
        plan_of(model, gpu="b200")
    assert plan_of(model)["scenarios"]["baseline"]["bytes_per_token"]["charged"] == 45_312


def test_hisparse_needs_sparse_layers_in_the_stage():
    with pytest.raises(InputError, match="a stage without sparse layers"):
        plan_of(layer_range=[0, 3], offload={})
    assert not plan_of(layer_range=[0, 3])["scenarios"]["offload"]["available"]


def test_a_hot_buffer_holds_the_selected_blocks():
    with pytest.raises(InputError, match="smaller than index_topk 2048"):
        plan_of(offload={"device_buffer_size": 1024})
