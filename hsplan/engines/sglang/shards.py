"""By what SGLang divides the weights of a model; sources as in `engines.loading`."""

from __future__ import annotations

from hsplan.engines.loading import Shards
from hsplan.engines.sglang.launch import Ranks
from hsplan.families import BlockSparse, Model
from hsplan.spec import Deployment


def shards_of(deployment: Deployment, ranks: Ranks, model: Model) -> Shards:
    """Group sizes: attention TP is what DP attention and context parallelism leave of TP; KV heads have copies."""
    tp, attention = ranks.tp, ranks.attention_tp
    return Shards(
        tp=tp,
        attention=attention,
        ep=ranks.ep,
        moe_tp=tp // ranks.ep,
        embed=attention if deployment.dp_attention > 1 else tp,
        head=attention if deployment.enable_dp_lm_head else tp,
        shared=tp if deployment.moe_a2a_backend == "none" else 1,
        kv=min(attention, model.kv.kv_heads) if isinstance(model.kv, BlockSparse) else None,
    )
