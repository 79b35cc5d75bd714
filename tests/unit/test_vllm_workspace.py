"""What vLLM allocates beside weights and pool, line by line: sums written out by hand from the engine's shapes."""

from __future__ import annotations

import pytest

import hsplan
from hsplan.engines.vllm.caches import kind_of
from hsplan.engines.vllm.memory import profiled
from hsplan.spec import load_spec

GIB, MIB = 2**30, 2**20


def plan_of(spec, release="0.33.0", **keys):
    return hsplan.plan(spec, engine=f"vllm@{release}", **{"gpu": "h200", "gpus": 8, **keys})


def reserved(spec, **keys):
    """Bytes of the lines before the pool."""
    return {line.name: line.bytes for line in plan_of(spec, **keys).launched.budget.lines}


def activations(tokens):
    """As logged: 2.6 GiB and 352 KiB a token."""
    return int(2.6 * GIB) + tokens * 352 * 1024


V32 = {"spec": "deepseek-v3.2-fp8", "kv_cache_dtype": "fp8_e4m3"}
GLM = {"spec": "glm-5.2-fp8", "kv_cache_dtype": "fp8_e4m3", "max_model_len": 131_072}
# Heads of a rank, queries and rows of 1,152 B, outputs of 1,024 B; the kernels take 64 heads or 128.
FLASHMLA = [
    ({**V32, "tp": 8}, 8_192 * (16 * 1_152 + 64 * 2_176 + 16 * 1_024) + 5 * 163_840 * 1_152),
    ({**V32, "tp": 1, "dp": 8, "ep": 8}, 5_507_121_152),
    ({**GLM, "tp": 1, "dp": 8, "ep": 8}, 3_036_676_096),
    ({**GLM, "tp": 8, "max_num_batched_tokens": 32_768}, 5_888_802_816),
    # Queries alone beside the rows of the prefill until 0.30.0, nothing that was read before 0.28.0.
    ({**V32, "tp": 8, "release": "0.30.0"}, 8_192 * 16 * 1_152 + 943_718_400),
    ({**V32, "tp": 8, "release": "0.27.1"}, 943_718_400),
    # PCP with DCP: a rank's half of the rows beside all of them; with DCP over TP too, an eighth and all 128 heads.
    ({**V32, "tp": 4, "pcp": 2, "dcp": 2}, 8_192 * (32 * 1_152 + 64 * 2_176 + 32 * 1_024) + 1_228_800 * 1_152),
    ({**V32, "tp": 4, "pcp": 2, "dcp": 8}, 8_192 * (32 * 1_152 + 128 * 2_176 + 128 * 1_024) + 921_600 * 1_152),
    ({**V32, "tp": 4, "pcp": 2, "dcp": 2, "release": "0.30.0"}, 3 * 40 * 163_840 * 132),
    # bf16 rows: queries of 64 heads are less than the index keys of 163,840 tokens, and more than those of 4,096.
    ({**V32, "kv_cache_dtype": "bfloat16", "attention_backend": "flashmla_sparse", "tp": 8}, 40 * 163_840 * 132),
    ({**V32, "kv_cache_dtype": "bfloat16", "attention_backend": "flashmla_sparse", "tp": 8, "max_model_len": 4_096,
      "context": 4_096}, 8_192 * 64 * 1_152),
    ({**V32, "kv_cache_dtype": "bfloat16", "attention_backend": "flashmla_sparse", "tp": 8, "max_model_len": 4_096,
      "context": 4_096, "release": "0.28.0"}, 8_192 * 16 * 1_152),
    # Packed rows of SM12x are read as they are.
    ({"spec": "glm-5.2-nvfp4", "gpu": "rtx-pro-6000", "tp": 8, "max_model_len": 131_072}, 40 * 131_072 * 132),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "size"), FLASHMLA, ids=range(len(FLASHMLA)))
def test_flashmla_asks_for_queries_rows_and_outputs_at_once(keys, size):
    assert reserved(**keys)["sparse attention workspace"] == size


def test_the_sum_of_v32_on_eight_ranks_is_2_2_gib():
    assert FLASHMLA[0][1] == 2_369_781_760


@pytest.mark.parametrize(
    ("keys", "experts"),
    [
        # Triton keeps 8 × (7,168 + 7,168) values of every token; it all lies in FlashMLA's 2.21 GiB.
        ({**V32, "tp": 8}, 8_192 * 8 * 14_336 * 2),
        # With EP the output of the tokens of all replicas.
        ({**V32, "tp": 1, "dp": 8, "ep": 8}, 8 * 8_192 * 7_168 * 2),
        # Index keys are less than the experts' scratch: as much is shared.
        ({**V32, "kv_cache_dtype": "bfloat16", "tp": 8}, 40 * 163_840 * 132),
        # FlashMLA of 0.30.0 keeps its 1.02 GiB when the experts' 1.75 outgrow them.
        ({**V32, "tp": 8, "release": "0.30.0"}, 0),
        # Kernels that are not known, or that were not read.
        ({**V32, "tp": 8, "release": "0.27.1"}, 0),
        ({**V32, "tp": 8, "gpu": "b200", "max_num_batched_tokens": 8_192}, 0),
        ({"spec": "glm-5.2-nvfp4", "tp": 8}, 0),
    ],
    ids=range(7),
)
def test_experts_and_attention_take_one_buffer_in_turn(keys, experts):
    assert reserved(**keys)["activations"] == activations(8_192) - experts


def test_activations_may_lie_outside_the_shared_buffer():
    plan = plan_of(**V32, tp=8)
    budget = plan.launched.budget
    # Visible memory ±, communication 0.4 to 1.3 GiB, activations, graphs 1.2 to 5.5; activations 0.6 to 1.5 as logged.
    shared = 8_192 * 8 * 14_336 * 2
    width = (int(0.9 * GIB) - int(0.4 * GIB)) * 0.92 + 0.9 * GIB + 0.9 * activations(8_192) + shared + 4.3 * GIB
    assert budget.kv_bytes.high - budget.kv_bytes.low == pytest.approx(width, abs=16)


GLM_MTP = {"spec": "glm-5.2-fp8", "tp": 8, "max_running_requests": 1_024, "draft_layers": 1,
           "num_speculative_tokens": 3}  # fmt: skip
INDEX_GROUPS = [
    # 61 layers and the MTP layer, each with 1,024 × 4 rows of 2,048, a spare row, and counts.
    ({**GLM_MTP, "spec": "deepseek-v3.2-fp8"}, 62 * (4_097 * 2_048 * 4 + 4_097 * 4)),
    ({**GLM_MTP, "spec": "deepseek-v3.2-fp8", "draft_layers": 0, "num_speculative_tokens": 0}, 61 * 1_025 * 2_049 * 4),
    # 21 layers of GLM-5.2 compute top-k; no more rows than batched tokens.
    (GLM_MTP, 22 * 4_097 * 2_049 * 4),
    ({**GLM_MTP, "max_num_batched_tokens": 2_048}, 22 * 2_049 * 2_049 * 4),
    ({**GLM_MTP, "offload": {}}, 22 * 4_097 * 2_049 * 4),
    # Until 0.30.0 ids of requests beside them.
    ({**GLM_MTP, "release": "0.30.0"}, 22 * (4_097 * 2_049 + 4_096) * 4),
]


@pytest.mark.parametrize(("keys", "size"), INDEX_GROUPS, ids=range(len(INDEX_GROUPS)))
def test_every_layer_that_computes_top_k_has_a_table_of_rows(keys, size):
    assert reserved(**keys)["index group tables"] == size


def test_the_tables_of_v32_with_drafts_are_two_gib_and_there_were_none_before_030():
    assert INDEX_GROUPS[0][1] == 2_081_898_744
    assert "index group tables" not in reserved(**GLM_MTP, release="0.29.0")
    assert "index group tables" not in reserved("deepseek-v3-fp8", tp=8)


def test_a_stage_that_starts_between_two_owners_has_a_table_of_its_own():
    # Layers 0 to 2 and every fourth from 6 on compute top-k: of 16 to 19 only 18 does.
    assert reserved("glm-5.2-fp8", tp=8, layer_range=[16, 20])["index group tables"] == 2 * 129 * 2_049 * 4
    assert reserved("glm-5.2-fp8", tp=8, layer_range=[18, 22])["index group tables"] == 1 * 129 * 2_049 * 4


def late(spec, **keys):
    """Bytes of the lines after the pool, and what is left over."""
    plan = plan_of(spec, **keys)
    return {line.name: line.bytes for line in plan.launched.pools.lines}, plan.launched.capacity.headroom_bytes


V32_DCP = {"spec": "deepseek-v3.2-fp8", "gpu": "b200", "tp": 8, "dcp": 8, "kv_cache_dtype": "fp8_e4m3"}
FLASHINFER = [
    # All 128 heads of the DCP group, 256 slots of 8 B a token, 1 MiB and the 394 MiB that there are without DCP.
    ({"max_num_batched_tokens": 32_768}, 8 * 128 * 32_768 * 256 + 395 * MIB),
    ({"release": "0.30.0", "dcp": 2}, 8 * 32 * 16_384 * 256 + 395 * MIB),
    # GLM has 64 heads.
    ({"spec": "glm-5.2-fp8"}, 8 * 64 * 16_384 * 256 + 395 * MIB),
    # Without DCP, and until 0.29.0, the first step takes it, which the estimate of the graphs runs.
    ({"dcp": 1}, None),
    ({"release": "0.29.0"}, None),
    ({"dcp": 1, "cuda_graph_max_bs": 0}, 394 * MIB),
    ({"gpu": "h200"}, None),
]


@pytest.mark.parametrize(("keys", "size"), FLASHINFER, ids=range(len(FLASHINFER)))
def test_flashinfer_takes_its_workspace_of_what_is_left_over(keys, size):
    assert late(**{**V32_DCP, **keys})[0].get("FlashInfer workspace") == size


def test_the_workspace_of_eight_dcp_ranks_is_8_4_gib_and_lowers_the_headroom_by_itself():
    assert FLASHINFER[0][1] == 9_004_122_112
    keys = {**V32_DCP, "max_num_batched_tokens": 32_768, "kv_budget": "20GiB"}
    with_it, without = late(**keys)[1], late(**{**keys, "release": "0.29.0"})[1]
    assert without - with_it == 9_004_122_112


PRO = {"spec": "deepseek-v4-pro", "gpu": "b200", "tp": 8}


def test_drafts_of_deepseek_v4_are_made_from_hidden_states_of_all_hyper_connections():
    # 4 × 7,168 values of 16,384 tokens, beside the last layer and at the drafter.
    assert reserved(**PRO, draft_layers=1)["inputs of drafts"] == 2 * 939_524_096 == 2 * 16_384 * 4 * 7_168 * 2
    assert GIB // 2 == 2 * 8_192 * 4 * 4_096 * 2
    assert reserved("deepseek-v4-flash", tp=8, draft_layers=1)["inputs of drafts"] == GIB // 2
    assert "inputs of drafts" not in reserved(**PRO)
    # DSpark's drafter keeps one of 4,096 values a token.
    assert reserved("deepseek-v4-flash", tp=8, draft_layers=3)["inputs of drafts"] == 8_192 * (4 + 1) * 4_096 * 2


def test_only_the_last_stage_has_inputs_of_drafts():
    keys = {"spec": "deepseek-v4-flash", "tp": 4, "pp": 2, "draft_layers": 1}
    first, last = plan_of(**keys).launch.plan.stages
    launch = plan_of(**keys).launch
    names = [{part.name for part in kind_of(launch.model).reserve(launch, stage)} for stage in (first, last)]
    assert ["inputs of drafts" in found for found in names] == [False, True]


DP8 = {**V32, "tp": 1, "dp": 8, "ep": 8}
OTHER_REPLICAS = [
    # Seven times 8,192 tokens: bf16 inputs of 7,168 values, and outputs as large.
    (DP8, 7 * 8_192 * 7_168 * 4, 7 * 8_192 * 7_168 * 4),
    # Without EP Triton's two intermediates of 8 experts; an eighth of 2,048 is less than 7,168.
    ({**DP8, "ep": 1}, 7 * 8_192 * 7_168 * 2 * (1 + 8 * 2), 7 * 8_192 * 7_168 * 2 * (1 + 8 * 2)),
    # Kernels that are not known: inputs in fp4 at least.
    ({**DP8, "gpu": "b200"}, 7 * 16_384 * 7_168 * 5 // 2, 7 * 16_384 * 7_168 * 4),
    ({"spec": "glm-5.2-nvfp4", "tp": 4, "dp": 2, "ep": 8}, 8_192 * 6_144 * 5 // 2, 8_192 * 6_144 * 4),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "low", "best"), OTHER_REPLICAS, ids=range(len(OTHER_REPLICAS)))
def test_every_rank_gathers_the_tokens_of_all_replicas(keys, low, best):
    assert reserved(**keys)["MoE inputs of other replicas"] == best
    found = {part.name: part.bytes for part in profiled(plan_of(**keys).launch, 0)}["MoE inputs of other replicas"]
    assert (found.low, found.best) == (low, best)


def test_the_range_is_wider_with_replicas_than_with_tp():
    def width(**keys):
        budget = plan_of(**V32, **keys).launched.budget.kv_bytes
        return budget.high - budget.low

    # 8 chosen experts, before and after them, of 57,344 tokens more; less that FlashMLA holds of the experts' scratch.
    rows = 7 * 8_192 * 7_168 * 4 * 8
    shared = 8 * 8_192 * 7_168 * 2 - 8_192 * 8 * 14_336 * 2
    assert width(tp=1, dp=8, ep=8) - width(tp=8) == rows + shared
    assert not plan_of(**V32, tp=8).launch.not_modelled
    assert plan_of(**DP8).launch.not_modelled == (
        "buffers of all-to-all libraries, beyond the range of the MoE inputs of other replicas",
    )
    assert "MoE inputs of other replicas" not in reserved(**V32, tp=8)


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({"tp": 1}, 16_384 * 4 * 8_192 * 4),
        ({"tp": 4}, GIB // 2),
        ({"tp": 8}, GIB // 2),
        ({"tp": 4, "gpu": "h200"}, None),
        ({"tp": 4, "release": "0.28.0", "max_num_batched_tokens": 8_192}, GIB // 4),
        ({"tp": 4, "release": "0.27.1"}, None),
    ],
)
def test_scores_of_minimax_m3_on_blackwell_come_out_of_what_is_left_over(keys, size):
    given = {"gpu": "b200", "gpus": keys["tp"], "kv_budget": "20GiB", "max_model_len": 65_536, **keys}
    lines, headroom = late("minimax-m3-bf16", **given)
    assert lines.get("block scores") == size
    selected = {"model": {**load_spec("minimax-m3-bf16", {}).spec.model}, "deployment": {"gpu": "b200"}}
    selected["model"]["sparse_attention_config"] = {
        **selected["model"]["sparse_attention_config"], "sparse_topk_blocks": 32
    }  # fmt: skip
    assert late(selected, **given)[1] - headroom == (size or 0)
