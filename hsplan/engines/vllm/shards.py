"""By what vLLM divides the weights of a model; sources beside each rule."""

from __future__ import annotations

import msgspec

from hsplan.engines.loading import Shards
from hsplan.engines.vllm.launch import Ranks
from hsplan.engines.vllm.releases import Release
from hsplan.families import BlockSparse, Compressed, Model, deepseek, deepseek_v4
from hsplan.spec import Deployment

# Served by models/deepseek_v32 from 0.29.0 on; other names of the family by deepseek_v2.py.
SPARSE_MODULE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


def shards_of(deployment: Deployment, ranks: Ranks, model: Model, release: Release) -> Shards:
    """
    Experts are spread over all of tp × dp × pcp, everything else over tp; ranks beyond the KV heads hold copies.

    Where the tokens of a replica are spread over its TP ranks, each holds whole shared experts, and whole dense MLPs.
    """
    tp = ranks.tp
    return Shards(
        tp=tp,
        attention=tp,
        kv=min(tp, model.kv.kv_heads) if isinstance(model.kv, BlockSparse) else None,
        ep=ranks.ep,
        moe_tp=ranks.moe // ranks.ep,
        embed=tp,
        head=tp,
        shared=1 if _whole_shared_experts(deployment, ranks, model, release) else tp,
        dense=1 if _whole_dense_mlps(deployment, ranks, model, release) else None,
        # A draft shares its target's head; its embedding stands on the first stage (eagle/utils.py, read in 0.28.0).
        draft_owns=("embed",) if deployment.pp > 1 else (),
    )


def with_ropes(model: Model, stage: tuple[int, int], *, drafts: bool) -> Model:
    """
    DeepSeek-V4 with the rope caches of a stage: one of layers that compress, one of windows, where it has such.

    An MTP layer is a window; it brings its cache where no layer has one (models/deepseek_v4/common/rope.py).
    """
    if not isinstance(model.kv, Compressed):
        return model
    kinds = {ratio > 0 for ratio in model.kv.ratios[slice(*stage)]}
    return msgspec.structs.replace(model, rope_caches=len(kinds), draft_rope_caches=int(drafts and False not in kinds))


def _spreads_tokens(deployment: Deployment, ranks: Ranks) -> bool:
    """`use_sequence_parallel_moe` of the default all-to-all backend."""
    return ranks.ep > 1 and ranks.tp > 1 and deployment.dp > 1


def _whole_shared_experts(deployment: Deployment, ranks: Ranks, model: Model, release: Release) -> bool:
    """`is_sequence_parallel` of deepseek_v2.py, whatever pp is, and of models/deepseek_v4, without pp only."""
    if not _spreads_tokens(deployment, ranks):
        return False
    if model.family == deepseek_v4.NAME:
        return deployment.pp == 1 and release.has("v4_sequence_parallel")
    return model.family == deepseek.NAME


def _whole_dense_mlps(deployment: Deployment, ranks: Ranks, model: Model, release: Release) -> bool:
    """`use_sequence_parallel` of models/deepseek_v32/nvidia/model.py."""
    sparse = model.architecture in SPARSE_MODULE and release.has("sparse_module")
    return sparse and deployment.pp == 1 and _spreads_tokens(deployment, ranks)
