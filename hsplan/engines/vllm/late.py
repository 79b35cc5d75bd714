"""What is allocated after the pool and was not measured before it: it comes out of the memory left over."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Launch, Line
from hsplan.engines.vllm.launch import Scheduler
from hsplan.families import BlockSparse
from hsplan.spec import Deployment
from hsplan.units import GIB, MIB

# trtllm-gen's workspace, and under DCP two fp32 a head and slot of a token (flashinfer_mla_sparse.py).
WORKSPACE_BYTES, GUARD_BYTES, STATISTIC_BYTES, TOKEN_SLOTS = 394 * MIB, MIB, 8, 256
SCORED_BLOCKS, SCORED_TOPK = 8192, 16 * 128  # MiniMax-M3 on SM10x: 1 Mi tokens; its kernel selects 16 blocks


def after_pool(launch: Launch) -> tuple[Line, ...]:
    """The lines of a rank, without or with offload."""
    return (*_rejection(launch), *_graphs(launch), *_flashinfer(launch), *_scores(launch))


def rejection_bytes(launch: Launch) -> int:
    """Logits of the rejection sampler, which no profiling run sees; 0 without speculation or vocabulary."""
    inventory = launch.model.inventory
    scheduler: Scheduler = launch.extra.scheduler
    if scheduler.decode_query_len == 1 or inventory is None:
        return 0
    vocabulary = next((tensor.rows for tensor in inventory.tensors if tensor.shard == "head"), 0)
    return scheduler.max_num_seqs * scheduler.decode_query_len * vocabulary * 4


def graphs_taken(deployment: Deployment) -> int:
    """Bytes of the graphs where no estimate is left out for them; the logs of `graphs_estimated`."""
    return int((2.4 if deployment.draft_layers else 1.2) * GIB)


def _rejection(launch: Launch) -> Iterator[Line]:
    size = rejection_bytes(launch)
    if size:
        formula = "max_num_seqs × (1 + drafted tokens) × vocabulary × 4 B"
        yield Line(name="rejection sampler logits", bytes=size, formula=formula, evidence="derived")


def _graphs(launch: Launch) -> Iterator[Line]:
    deployment = launch.loaded.spec.deployment
    if deployment.cuda_graph_max_bs != 0 and not launch.release.has("graphs_estimated"):
        formula = "taken by GLM-5.1 TP8; the budget leaves nothing out for them"
        yield Line(name="CUDA graphs", bytes=graphs_taken(deployment), formula=formula, evidence="engine_log")


def _scores(launch: Launch) -> Iterator[Line]:
    """MiniMax-M3's scores of all sparse blocks on SM10x, with the builder of its metadata (indexer_msa.py)."""
    kv, tokens = launch.model.kv, launch.extra.scheduler.max_num_batched_tokens
    if not isinstance(kv, BlockSparse) or launch.gpu.capability // 10 != 10 or launch.model.index_topk != SCORED_TOPK:
        return
    if not launch.release.has("block_scores"):
        return
    heads = max(1, kv.index_heads // launch.tp)
    formula = f"{tokens:,} tokens × {heads} index heads × {SCORED_BLOCKS:,} × 4 B"
    size = tokens * heads * SCORED_BLOCKS * 4
    yield Line(name="block scores", bytes=size, formula=formula, evidence="engine_code")


def _flashinfer(launch: Launch) -> Iterator[Line]:
    """
    FlashInfer's workspace on SM10x: with the first step, or from 0.30.0 on under DCP with the builder of its metadata.

    The first step is one of those that the estimate of the graphs runs: there it is part of that.
    """
    deployment = launch.loaded.spec.deployment
    if launch.extra.row.attention_backend != "flashinfer_mla_sparse":
        return
    size, formula = WORKSPACE_BYTES, "394 MiB"
    if deployment.dcp > 1 and launch.release.has("dcp_statistics"):
        heads = (launch.model.num_attention_heads or 0) // launch.tp * deployment.dcp
        tokens = launch.extra.scheduler.max_num_batched_tokens
        size += heads * tokens * TOKEN_SLOTS * STATISTIC_BYTES + GUARD_BYTES
        formula += f" + 1 MiB + {heads} heads × {tokens:,} tokens × {TOKEN_SLOTS} × {STATISTIC_BYTES} B"
    elif deployment.cuda_graph_max_bs != 0 and launch.release.has("graphs_estimated"):
        return
    yield Line(name="FlashInfer workspace", bytes=size, formula=formula, evidence="engine_code")
