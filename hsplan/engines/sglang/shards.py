"""By what SGLang divides the weights of a model; sources as in `engines.loading`."""

from __future__ import annotations

from hsplan.engines.loading import Shards, formats_of
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.releases import Release
from hsplan.families import BlockSparse, Model
from hsplan.hardware import Gpu
from hsplan.spec import Loaded

GLM = "GlmMoeDsaForCausalLM"
FUSES = ("DeepseekV3ForCausalLM", GLM)
FUSED_EXPERTS = 256  # 384 only with Quark, a format that is not known here


def shards_of(loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> Shards:
    """
    Group sizes: attention TP is what DP attention and context parallelism leave of TP; KV heads have copies.

    A fused shared expert is one more expert of every EP rank, so only MoE TP divides it.
    """
    deployment = loaded.spec.deployment
    tp, attention, moe_tp = ranks.tp, ranks.attention_tp, ranks.tp // ranks.ep
    shared = tp if deployment.moe_a2a_backend == "none" else 1
    fuses = fuses_under_ep(loaded, model, gpu, release)
    draft_fuses = fuses and (model.architecture != GLM or release.has("glm_draft_fuses"))
    return Shards(
        tp=tp,
        attention=attention,
        ep=ranks.ep,
        moe_tp=moe_tp,
        embed=attention if deployment.dp_attention > 1 else tp,
        head=attention if deployment.enable_dp_lm_head else tp,
        shared=moe_tp if fuses else shared,
        draft_shared=moe_tp if draft_fuses else shared,
        kv=min(attention, model.kv.kv_heads) if isinstance(model.kv, BlockSparse) else None,
    )


def fuses_under_ep(loaded: Loaded, model: Model, gpu: Gpu, release: Release) -> bool:
    """
    Whether the shared expert is fused into the routed ones even with expert parallelism: on ROCm, without all-to-all.

    `shared_experts_fusion_disable_reason` (deepseek_v2.py) wants 256 experts, one shared expert and one format.
    """
    allowed = gpu.rocm and release.has("rocm_fuses_under_ep") and loaded.spec.deployment.moe_a2a_backend == "none"
    formats = formats_of(loaded.spec, model)
    if not allowed or model.architecture not in FUSES or model.inventory is None or isinstance(formats, str):
        return False
    moe = {tensor.module: tensor for tensor in model.inventory.tensors if tensor.unit == "moe"}
    routed, shared = "mlp.experts.0.gate_proj", "mlp.shared_experts.gate_proj"
    if shared not in moe or moe["mlp.gate"].rows != FUSED_EXPERTS or moe[shared].rows != moe[routed].rows:
        return False
    layer = f"model.layers.{model.inventory.dense_layers}"
    return formats.default != "int4" and formats.of(f"{layer}.{shared}") == formats.of(f"{layer}.{routed}")
