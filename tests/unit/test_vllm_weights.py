"""Weights of a rank of vLLM where they are not divided by tp: sums written out by hand."""

from __future__ import annotations

import pytest

import hsplan

ROPE = 1_048_576 * 64 * 4  # cosines and sines of all positions in fp32: 268,435,456 B
TP4_DP2 = {"gpu": "h200", "gpus": 8, "tp": 4, "dp": 2, "ep": 8}
# GLM-5.2: three matrices of 2,048 × 6,144 in fp8 with a scale a 128 × 128 block, in 75 layers; 12,288 wide in 3.
SHARED = 75 * 3 * (2_048 * 6_144 + 4 * 16 * 48)
DENSE = 3 * 3 * (12_288 * 6_144 + 4 * 96 * 48)


def ledger(spec, release="0.33.0", **keys):
    plan = hsplan.plan(spec, engine=f"vllm@{release}", **keys)
    return {line.name: line for line in plan.launched.budget.lines}


def groups(spec, **keys):
    """Bytes of each group in the formula of the weights."""
    parts = ledger(spec, **keys)["weights"].formula.split(" B + ")
    named = (part.removesuffix(" B").rsplit(" ", 1) for part in parts[:-1])
    return {name: int(size.replace(",", "")) for name, size in named}


@pytest.mark.parametrize(
    ("keys", "shared", "dense"),
    [
        ({}, 2_831_846_400, 679_643_136),
        ({"release": "0.28.0"}, SHARED, DENSE // 4),  # served by deepseek_v2.py until 0.29.0
        # The last 39 layers have experts only; GLM divides dense MLPs where stages pass whole tokens on.
        ({"pp": 2, "nodes": 2}, 39 * SHARED // 75, None),
        ({"ep": 1}, SHARED // 4, DENSE // 4),
        ({"dp": 1, "tp": 8}, SHARED // 8, DENSE // 8),
        ({"tp": 1, "dp": 8}, SHARED, DENSE),
    ],
    ids=["whole", "0.28.0", "last stage", "no ep", "tp 8", "dp 8"],
)
def test_glm_52_holds_whole_shared_experts_and_dense_mlps_where_tp_ranks_share_tokens(keys, shared, dense):
    found = groups("glm-5.2-fp8", **{**TP4_DP2, **keys})
    assert (found["shared"], found.get("dense")) == (shared, dense)


def test_only_shared_experts_are_whole_in_models_of_deepseek_v2():
    found = groups("deepseek-v3-fp8", **TP4_DP2)
    assert found["shared"] == 58 * 3 * (2_048 * 7_168 + 4 * 16 * 56)
    assert found["dense"] == 3 * 3 * (18_432 * 7_168 + 4 * 144 * 56) // 4


def test_shared_experts_of_deepseek_v4_are_whole_from_028_on_and_without_pipeline_stages():
    keys = {**TP4_DP2, "gpu": "b200"}
    whole = 61 * 3 * (3_072 * 7_168 + 24 * 56)
    assert groups("deepseek-v4-pro", **keys)["shared"] == whole == 4_029_923_520
    assert groups("deepseek-v4-pro", release="0.28.0", **keys)["shared"] == whole
    assert groups("deepseek-v4-pro", release="0.27.1", **keys)["shared"] == whole // 4
    staged = {**keys, "pp": 2, "nodes": 2}
    assert groups("deepseek-v4-pro", **staged)["shared"] < whole // 4


def test_minimax_m3_divides_both():
    keys = {"gpu": "b300", "gpus": 8}
    replicas = groups("minimax-m3-bf16", **keys, tp=4, dp=2, ep=8)
    alone = groups("minimax-m3-bf16", **{**keys, "gpus": 4}, tp=4)
    assert (replicas["shared"], replicas["dense"]) == (alone["shared"], alone["dense"])


def draft(spec, **keys):
    return ledger(spec, draft_layers=1, num_speculative_tokens=3, **keys)["draft weights"].bytes


@pytest.mark.parametrize(
    ("spec", "vocabulary", "hidden"), [("deepseek-v3.2-fp8", 129_280, 7_168), ("deepseek-v4-flash", 129_280, 4_096)]
)
def test_the_draft_of_the_last_stage_has_an_embedding_of_its_own(spec, vocabulary, hidden):
    staged = {"gpu": "h200", "gpus": 8, "tp": 4, "pp": 2}
    alone = {"gpu": "h200", "gpus": 4, "tp": 4}
    embedding = vocabulary * hidden * 2 // 4
    # No layer of V4's last stage is a window: the MTP layer brings a rope cache for one.
    rope = ROPE if spec.startswith("deepseek-v4") else 0
    assert draft(spec, **staged) - draft(spec, **alone) == embedding + rope


def test_the_mtp_layer_of_v4_pro_brings_a_rope_cache_for_windows_and_that_of_flash_finds_one():
    pro, flash = (groups(spec, gpu="b200", tp=8)["rope cache"] for spec in ("deepseek-v4-pro", "deepseek-v4-flash"))
    assert (pro, flash) == (ROPE, 2 * ROPE)
    # SGLang's draft has no cache of its own, but embedding and head: 2 × 129,280 × 7,168 × 2 / 8 B.
    other = hsplan.plan("deepseek-v4-pro", engine="sglang", gpu="b200", gpus=8, tp=8, draft_layers=1)
    bare = next(line.bytes for line in other.launched.budget.lines if line.name == "draft weights") - 463_339_520
    assert draft("deepseek-v4-pro", gpu="b200", gpus=8, tp=8) == bare + ROPE
