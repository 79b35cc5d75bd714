"""Weights of DeepSeek-V4 and MiniMax-M3 on one rank, group by group, against sums written out by hand."""

from __future__ import annotations

import json

import pytest
from configs import DEEPSEEK_V4_1_FLASH, DEEPSEEK_V4_FLASH, DEEPSEEK_V4_PRO, MINIMAX_M3, spec_of

import hsplan
from hsplan import InputError, UnsupportedError
from hsplan.cli.modelview import view

GIB = 2**30
# Replicated parts of V4-Flash: queries and latent, norms and sinks, routers with hash tables, hyper-connections,
# compressors, 21 indexers.
FLASH_ON_EVERY_RANK = 270_549_120 + 855_808 + 108_834_816 + 135_537_756 + 525_722_624 + 21 * 13_112_064
FLASH_ATTENTION, FLASH_EXPERTS, FLASH_SHARED, FLASH_EMBED = 4_328_785_920, 147_169_738_752, 1_082_196_480, 1_059_061_760
# cos and sin in fp32, 1,048,576 positions × 64, once for windows and once for compressed layers
ROPE = 268_435_456


def weights(model, gpu="h200", **deployment):
    plan = hsplan.plan(spec_of(model, gpu=gpu, max_running_requests=64, **deployment)).to_dict()
    ledger = plan["scenarios"]["baseline"]["ledger"]
    return next(line for line in ledger if line["name"] == "weights")["bytes"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("tp", [4, 8])
def test_v4_flash_shards_attention_experts_and_vocabulary_and_replicates_the_rest(tp, engine):
    sharded = (FLASH_ATTENTION + FLASH_EXPERTS + FLASH_SHARED + 2 * FLASH_EMBED) // tp
    # scales of shared experts round up to whole blocks on a rank
    assert weights(DEEPSEEK_V4_FLASH, tp=tp, engine=engine) == pytest.approx(
        sharded + FLASH_ON_EVERY_RANK + 2 * ROPE, abs=16_384
    )


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "ropes", "gib"),
    [(DEEPSEEK_V4_FLASH, "h200", 8, 2, 19.24), (DEEPSEEK_V4_FLASH, "h200", 4, 2, 37.25),
     (DEEPSEEK_V4_PRO, "b200", 8, 1, 101.94)],
    ids=["Flash TP8", "Flash TP4", "Pro TP8"],
)  # fmt: skip
def test_weights_of_a_rank_of_deepseek_v4_are_the_worked_ones(model, gpu, tp, ropes, gib):
    assert (weights(model, gpu, tp=tp) - ropes * ROPE) / GIB == pytest.approx(gib, abs=0.0055)


def test_dp_attention_replicates_attention_and_keeps_experts_divided():
    with_dp, without = (weights(DEEPSEEK_V4_FLASH, tp=8, dp_attention=dp) for dp in (8, 1))
    # seven eighths of attention and of the embedding more
    assert with_dp - without == pytest.approx((FLASH_ATTENTION + FLASH_EMBED) * 7 // 8, abs=16_384)


def test_the_draft_of_v4_flash_is_its_mtp_layer_with_copies_of_embedding_and_head():
    plan = hsplan.plan(spec_of(DEEPSEEK_V4_FLASH, draft_layers=1, max_running_requests=64)).to_dict()
    lines = {line["name"]: line["bytes"] for line in plan["scenarios"]["baseline"]["ledger"]}
    mtp = 159_609_485_896 - 156_015_698_140
    assert 2 * FLASH_EMBED // 8 + mtp // 8 < lines["draft weights"] < 2 * FLASH_EMBED // 8 + mtp // 4


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_m3_copies_kv_heads_beyond_the_fourth_rank(engine):
    # 60 layers of K and V, 57 index queries: 4 heads × 128 × 6144 × 2 B each; a rank never has less than one head
    heads = (2 * 60 + 57) * 4 * 128 * 6_144 * 2
    whole = 2 * 426_174_572_928 + 2 * (57 * 128 * 6_144 + 57 * 128)  # the router in fp32
    index_and_norms = 57 * (128 * 6_144 + 256) * 2 + (60 * (2 * 6_144 + 256) + 6_144) * 2
    router = 57 * (128 * 6_144 + 128) * 4
    sharded = whole - heads - index_and_norms - router
    for tp in (4, 8):
        expected = sharded // tp + heads // 4 + index_and_norms + router + ROPE
        assert weights(MINIMAX_M3, "b300", tp=tp, engine=engine) == pytest.approx(expected, abs=4_096)


@pytest.mark.parametrize(
    ("spec", "main", "with_mtp"),
    [
        # the published core and the hash tables of 3 layers, 3 × 129,280 × 6
        ("deepseek-v4-flash", 284_332_240_471 + 2_327_040, 290_944_616_402),
        ("deepseek-v4-pro", 1_572_997_201_763 + 2_327_040, 1_598_837_347_742 + 2_327_040),
        ("minimax-m3-bf16", 426_174_572_928, 426_174_572_928),
    ],
)
def test_the_layers_of_a_shipped_spec_sum_up_to_the_published_parameters(spec, main, with_mtp):
    shown = view(spec)
    assert shown.parameters == main
    assert shown.parameters + shown.mtp_parameters == with_mtp


def test_output_groups_of_v4_bound_attention_ranks():
    with pytest.raises(UnsupportedError, match="8 output groups cannot be divided over 16 attention ranks"):
        weights(DEEPSEEK_V4_FLASH, tp=16, nodes=2)


def test_weights_of_v4_1_are_not_guessed():
    with pytest.raises(UnsupportedError, match="Engram tables"):
        weights(DEEPSEEK_V4_1_FLASH)
    found = hsplan.plan(spec_of(DEEPSEEK_V4_1_FLASH, kv_budget="40GiB")).to_dict()
    assert any("Engram tables" in what for what in found["not_modelled"])


def test_a_folder_of_tensors_with_unknown_names_is_refused():
    with pytest.raises(UnsupportedError, match="tensor names of deepseek_v4 checkpoints are not known"):
        hsplan.plan(spec_of(DEEPSEEK_V4_FLASH, weights={"path": "/nowhere"}))


@pytest.mark.parametrize("field", ["compress_window", "index_share_ratio", "kv_shared_layers", "sliding_window_size"])
@pytest.mark.parametrize("model", [DEEPSEEK_V4_FLASH, MINIMAX_M3], ids=["V4", "M3"])
def test_a_field_that_may_change_the_cache_is_refused_in_a_config(tmp_path, model, field):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**model, field: 1}))
    with pytest.raises(UnsupportedError, match=field):
        hsplan.plan(str(config), gpu="h200", tp=8)


def test_an_unknown_field_of_a_written_spec_is_an_error():
    with pytest.raises(InputError, match="unknown model field 'compres_ratios'"):
        hsplan.plan(spec_of({**DEEPSEEK_V4_FLASH, "compres_ratios": [0]}))


def test_compress_ratios_are_clipped_to_the_layers_and_never_filled():
    for entries in (43, 44, 46):
        model = {**DEEPSEEK_V4_FLASH, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0][:entries]}
        assert hsplan.plan(spec_of(model)).to_dict()["model"]["index_owner_layers"] == 21
    with pytest.raises(UnsupportedError, match="42 compress_ratios for 43 layers"):
        hsplan.plan(spec_of({**DEEPSEEK_V4_FLASH, "compress_ratios": [4] * 42}))


def test_flags_of_m3_are_one_a_layer():
    sparse = {**MINIMAX_M3["sparse_attention_config"], "sparse_attention_freq": [1] * 59}
    with pytest.raises(InputError, match="59 flags for 60 layers"):
        hsplan.plan(spec_of({**MINIMAX_M3, "sparse_attention_config": sparse}))
