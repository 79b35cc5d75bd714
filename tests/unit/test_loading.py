"""Weight bytes of a rank, against the worked table of the published checkpoints."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, DEEPSEEK_V3_2, FP8, GLM_5, GLM_5_2, KIMI_K2, NVFP4, spec_of

import hsplan
from hsplan import InputError

GIB = 2**30
GLM_5_FP8 = {**GLM_5, "quantization_config": FP8}
GLM_5_2_FP8 = {**GLM_5_2, "quantization_config": FP8}
GLM_5_2_NVFP4 = {**GLM_5_2, "quantization_config": NVFP4}
# fp32 values of 64 dimensions for every position.
ROPE = {"GLM-5": 202_752 * 256, "GLM-5.2": 1_048_576 * 256, "K2": 131_072 * 256, "V3.2": 163_840 * 256 * 2}


def weights(model, **keys):
    plan = hsplan.plan(spec_of(model, **{"gpu": "h200", "tp": 8, "release": "0.5.23", **keys}))
    return plan.launch.extra.weights[0]


def stack_gib(model, rope, indexers, **keys):
    """GiB of the stack without the rope cache, as the table counts them."""
    found = weights(model, **keys)
    return (found.base + indexers * found.indexer - ROPE[rope]) / GIB


@pytest.mark.parametrize(
    ("model", "rope", "indexers", "gib"),
    [
        (GLM_5_FP8, "GLM-5", 78, 89.01),
        (GLM_5_2_FP8, "GLM-5.2", 21, 88.46),
        (GLM_5_2_NVFP4, "GLM-5.2", 21, 54.62),
        (KIMI_K2, "K2", 0, 120.95),
        # The table keeps wk in bf16; this engine keeps it in fp8 for V3.2: 61 × 917,280 bytes less.
        (DEEPSEEK_V3_2, "V3.2", 61, 80.40 - 0.052),
    ],
    ids=["GLM-5", "GLM-5.2", "GLM-5.2 nvfp4", "K2", "V3.2"],
)
def test_a_rank_of_eight_holds_the_published_gib(model, rope, indexers, gib):
    assert stack_gib(model, rope, indexers) == pytest.approx(gib, abs=0.011)


@pytest.mark.parametrize(
    ("model", "rope", "indexers", "replicated", "shared"),
    [
        (GLM_5_FP8, "GLM-5", 78, 104.20, 101.90),
        (GLM_5_2_FP8, "GLM-5.2", 21, 103.65, 101.35),
        (GLM_5_2_NVFP4, "GLM-5.2", 21, 81.58, 76.97),
        (KIMI_K2, "K2", 0, 130.13, 127.98),
        (DEEPSEEK_V3_2, "V3.2", 61, 94.21 - 0.052, 92.13 - 0.052),
    ],
    ids=["GLM-5", "GLM-5.2", "GLM-5.2 nvfp4", "K2", "V3.2"],
)
def test_dp_attention_with_expert_parallelism_holds_the_published_gib(model, rope, indexers, replicated, shared):
    dp = {"dp_attention": 8, "ep": 8}
    assert stack_gib(model, rope, indexers, moe_a2a_backend="deepep", **dp) == pytest.approx(replicated, abs=0.011)
    assert stack_gib(model, rope, indexers, **dp) == pytest.approx(shared, abs=0.011)


@pytest.mark.parametrize(
    ("model", "gpu", "n_bytes"),
    [
        (GLM_5_2, "h200", 18_744_320),
        (GLM_5_2_NVFP4, "gb300", 18_744_320),
        # GLM fuses wk with weights_proj on CUDA, which makes it bf16; V3.2 keeps it in fp8.
        (GLM_5_FP8, "h200", 10_357_760),
        (DEEPSEEK_V3_2, "h200", 14_422_240),
    ],
)
def test_an_indexer_takes_the_published_bytes_in_memory(model, gpu, n_bytes):
    assert weights(model, gpu=gpu).indexer == n_bytes


@pytest.mark.parametrize(("release", "indexers"), [("0.5.17", 78), ("0.5.18", 21), ("0.5.23", 21)])
def test_indexers_of_skip_layers_are_not_built_from_0_5_18_on(release, indexers):
    plan = hsplan.plan(spec_of(GLM_5_2_NVFP4, gpu="gb300", tp=4, release=release)).to_dict()
    line = next(line for line in plan["scenarios"][plan["as_launched"]]["ledger"] if line["name"] == "weights")
    assert f"{indexers} indexers × 18,744,320 B" in line["formula"]


def test_the_target_of_the_published_run_holds_what_its_log_says():
    """GLM-5.2-NVFP4 on 4 × GB300: 106.57 GiB by formula; 106.76 logged, allocator segments beside it."""
    found = weights(GLM_5_2_NVFP4, gpu="gb300", tp=4)
    assert (found.base + 21 * found.indexer) / GIB == pytest.approx(106.57, abs=0.02)


def test_the_embedding_and_head_follow_their_groups():
    """154,880 × 6,144 × 2 B = 1,903,165,440: by attention ranks under DP attention, the head by all ranks."""
    plain, dp = weights(GLM_5, dp_attention=8), weights(GLM_5, dp_attention=8, enable_dp_lm_head=True)
    assert dp.base - plain.base == 1_903_165_440 - 237_895_680


@pytest.mark.parametrize(
    "keys",
    [{"tp": 128}, {"tp": 3}, {"tp": 6}, {"tp": 8, "ep": 3}, {"tp": 8, "dp_attention": 3}, {"tp": 5, "gpus": 5}],
    ids=str,
)
def test_ranks_that_do_not_divide_the_model_are_refused(keys):
    with pytest.raises(InputError) as caught:
        hsplan.plan(spec_of(GLM_5_2_FP8, **keys))
    assert len(caught.value.lines()) == 2


def test_a_named_checkpoint_wins_over_the_quantisation_of_the_config():
    assert weights(GLM_5_2_FP8, weights={"checkpoint": "bf16"}).base > 1.9 * weights(GLM_5_2_FP8).base


def shared_bytes(model, **keys):
    """What one rank holds of the shared experts of the target."""
    parts = weights(model, **keys).formula.split(" + ")
    return next(int(part.split()[1].replace(",", "")) for part in parts if part.startswith("shared "))


# GLM-5.2: 75 layers of 3 × (2,048 × 6,144 + 4 B of scale for each of 16 × 48 blocks) = 2,831,846,400 B.
@pytest.mark.parametrize("release", ["0.5.17", "0.5.20", "0.5.22", "0.5.23"])
@pytest.mark.parametrize(
    ("keys", "n_bytes"),
    [
        ({"gpu": "mi300x"}, 353_980_800),
        ({"gpu": "mi300x", "ep": 8}, 2_831_846_400),
        ({"gpu": "mi355x", "ep": 8, "dp_attention": 8}, 2_831_846_400),
        # MoE TP 4 still divides it: 75 × 3 × (512 × 6,144 + 4 × 4 × 48).
        ({"gpu": "mi300x", "ep": 2}, 707_961_600),
        ({"gpu": "h200", "ep": 8}, 353_980_800),
        ({"gpu": "b200", "ep": 2}, 353_980_800),
        # All-to-all turns fusion off and gives every rank a copy.
        ({"gpu": "mi300x", "moe_a2a_backend": "mori"}, 2_831_846_400),
    ],
    ids=str,
)
def test_rocm_fuses_the_shared_expert_under_expert_parallelism_and_every_rank_holds_it(release, keys, n_bytes):
    assert shared_bytes(GLM_5_2_FP8, release=release, **keys) == n_bytes


@pytest.mark.parametrize(
    ("model", "keys", "n_bytes"),
    [
        # 58 layers of 3 × (2,048 × 7,168 + 4 × 16 × 56), whole and an eighth.
        ({**DEEPSEEK_V3, "quantization_config": FP8}, {}, 2_554_954_752),
        ({**DEEPSEEK_V3, "quantization_config": FP8}, {"release": "main-2025-11-06"}, 319_369_344),
        (DEEPSEEK_V3_2, {}, 319_369_344),
        # 384 experts are fused only in Quark's format: 60 layers.
        ({**KIMI_K2, "quantization_config": FP8}, {}, 330_382_080),
        # int4 experts leave the shared one in bf16, 75 × 3 × 256 × 6,144 × 2; so do two shared experts their fusion.
        (GLM_5_2, {"weights": {"checkpoint": "int4"}}, 707_788_800),
        ({**GLM_5_2_FP8, "n_shared_experts": 2}, {}, 707_961_600),
        ({**GLM_5_2_FP8, "n_routed_experts": 128}, {}, 353_980_800),
    ],
    ids=["V3", "V3 before", "V3.2", "Kimi-K2", "int4", "two shared", "128 experts"],
)
def test_only_what_the_gate_of_the_engine_admits_is_fused(model, keys, n_bytes):
    assert shared_bytes(model, gpu="mi300x", ep=8, **keys) == n_bytes


@pytest.mark.parametrize(
    ("model", "release", "n_bytes"),
    [
        # 3 × (2,048 × 6,144 + 4 × 16 × 48) less its eighth.
        (GLM_5_2_FP8, "0.5.21", 0),
        (GLM_5_2_FP8, "0.5.22", 33_038_208),
        # 3 × (2,048 × 7,168 + 4 × 16 × 56) less its eighth.
        ({**DEEPSEEK_V3, "quantization_config": FP8}, "0.5.17", 38_544_576),
    ],
    ids=["GLM before", "GLM", "V3"],
)
def test_a_draft_layer_is_fused_where_the_gate_knows_its_name(model, release, n_bytes):
    """Experts and the rest of an MTP layer take the same bytes with 8 expert groups as with one."""
    keys = {"gpu": "mi300x", "release": release, "draft_layers": 1}
    assert weights(model, ep=8, **keys).draft - weights(model, **keys).draft == n_bytes


def test_indexers_count_on_the_stage_that_holds_most():
    """
    GLM-5.2 on two stages: layers 0 to 38 have 12 owners and three dense layers, 39 to 77 have 9 and are the heavier.

    Pricing the indexers of all 39 layers takes 30 × 10,357,760 B more, with a given budget too.
    """
    keys = {"gpu": "h100", "tp": 8, "pp": 2, "gpus": 8, "nodes": 2, "kv_cache_dtype": "fp8_e4m3", "release": "0.5.23"}
    found = hsplan.plan(spec_of(GLM_5_2_FP8, **keys)).to_dict()["scenarios"]
    lines = {name: next(x for x in found[name]["ledger"] if x["name"] == "weights") for name in ("elided", "baseline")}
    assert "9 indexers × 10,357,760 B" in lines["elided"]["formula"]
    assert lines["baseline"]["bytes"] - lines["elided"]["bytes"] == 310_732_800
    given = hsplan.plan(spec_of(GLM_5_2_FP8, kv_budget="16GiB", **keys)).to_dict()["scenarios"]
    assert given["elided"]["kv_budget_bytes"] == 16 * GIB
    assert given["baseline"]["kv_budget_bytes"] == 16 * GIB - 310_732_800
