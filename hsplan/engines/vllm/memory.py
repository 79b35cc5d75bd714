"""
The reserve: what is gone before the pool is sized, line by line.

The workspaces follow from the engine's code; activations, graphs and what CUDA keeps to itself are ranges from the
logs named here.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Evidence, Interval, Launch, Row
from hsplan.engines.vllm.experts import gathered_range, gathered_rows, shared_bytes
from hsplan.engines.vllm.launch import Scheduler
from hsplan.engines.vllm.scenarios import drafts_on
from hsplan.engines.vllm.workspace import Scratch, attention_scratch, index_keys, whole
from hsplan.hardware import Gpu
from hsplan.spec import Deployment
from hsplan.units import GIB, KIB, MIB, ceil_div

WORKSPACE = "sparse attention workspace"
LOGITS_BYTES = 512 * MIB  # VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
# DeepSeek-V4: requests of a prefill chunk, an entry in bf16, columns of what a token selects come in whole ones.
PREFILL_CHUNK, ENTRY_BYTES, SELECTED = 4, 1024, 128


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the reserve."""

    name: str
    bytes: Interval
    formula: str
    evidence: Evidence


def visible_bytes(gpu: Gpu) -> Interval:
    """
    Memory that CUDA gives out: below what nvidia-smi reports.

    Logged, GiB below: H100 0.47 (79.18 of 79.65), RTX PRO 6000 0.59 (95.0 of 95.59).
    """
    return _less(gpu.reported_bytes, 0.4, 0.6, 0.9)


def context_bytes(ranks: int) -> int:
    """CUDA context and the first communication buffers, which the engine counts to nobody."""
    return int((0.6 if ranks == 1 else 1.1) * GIB)


def sparse_reserve(launch: Launch, row: Row, scheduler: Scheduler, stage: tuple[int, int]) -> list[Reserved]:
    """Workspaces of DSA models, which grow with max_model_len and max_num_batched_tokens, and their index groups."""
    top_k = launch.model.index_topk
    if top_k is None:
        return []
    scratch = attention_scratch(launch, row)
    tokens = scheduler.max_num_batched_tokens
    buffer = tokens * top_k * 4
    return [
        _exact(WORKSPACE, scratch.bytes, scratch.formula),
        _exact("indexer logits scratch", LOGITS_BYTES, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = 512"),
        _exact("top-k buffer", buffer, f"{tokens:,} tokens × {top_k:,} × 4 B"),
        *([_index_groups(launch, scheduler, stage, top_k)] if launch.release.has("index_groups") else []),
    ]


def _index_groups(launch: Launch, scheduler: Scheduler, stage: tuple[int, int], top_k: int) -> Reserved:
    """
    A table of rows for every layer that computes top-k, every MTP layer, and a stage that starts between them.

    Each has a spare row, and counts; ids of requests too until 0.30.0 (v1/attention/backends/mla/index_group.py).
    """
    groups = launch.plan.owners_in(*stage) + (launch.plan.pattern[stage[0]] == "S") + drafts_on(launch, stage)
    rows, ids = scheduler.decode_rows, 0 if launch.release.has("index_groups_of_rows") else scheduler.decode_rows
    formula = f"{groups} groups × ({rows + 1:,} rows × ({top_k:,} + 1) × 4 B" + (f" + {ids:,} × 4 B)" if ids else ")")
    return _exact("index group tables", groups * ((rows + 1) * (top_k + 1) + ids) * 4, formula)


def compressed_reserve(launch: Launch, scheduler: Scheduler, window: int, ratio: int) -> list[Reserved]:
    """
    Workspaces of DeepSeek-V4: of a prefill's entries of `ratio` tokens in bf16 and of what selects them, or of their
    index keys, the larger one. FlashInfer's backends read entries as they are.

    Of index keys a log shows the growth: 0.69 GB less for the cache at max_model_len 786,432 than at 262,144 (4090).
    """
    tokens, entries, top_k = scheduler.max_num_batched_tokens, launch.context_len // ratio, launch.model.index_topk or 0
    keys = index_keys(launch.release, launch.context_len, entries)
    read = launch.extra.row.attention_backend.startswith("flashinfer")
    scratch = keys if read else max(_chunk(launch, window, ratio, top_k), keys, key=lambda scratch: scratch.bytes)
    return [
        _exact(WORKSPACE, scratch.bytes, scratch.formula),
        _exact("indexer logits scratch", LOGITS_BYTES, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = 512"),
        _exact("top-k buffer", tokens * top_k * 4, f"{tokens:,} tokens × {top_k:,} × 4 B"),
    ]


def _chunk(launch: Launch, window: int, ratio: int, top_k: int) -> Scratch:
    """Entries and windows of a prefill chunk, and what each token selects of them, with its count (`flashmla.py`)."""
    tokens, entries = launch.extra.scheduler.max_num_batched_tokens, ceil_div(launch.context_len, ratio)
    selected = ceil_div(top_k + window, SELECTED) * SELECTED
    size = whole(PREFILL_CHUNK * (entries + window + tokens) * ENTRY_BYTES)
    size += whole(tokens * selected * 4) + whole(tokens * 4)
    formula = f"{PREFILL_CHUNK} × ({entries:,} + {window} + {tokens:,}) × {ENTRY_BYTES} B"
    return Scratch(size, f"{formula} + {tokens:,} × ({selected:,} + 1) × 4 B")


def draft_inputs(launch: Launch, drafts: int) -> list[Reserved]:
    """
    DeepSeek-V4: hidden states of all tokens for a draft, one for each hyper-connection, beside the last layer.

    The drafter has as many again; that of DSpark, whose layers are more than the model's MTP layers, one a token.
    Read in 0.28.0 to 0.33.0 (models/deepseek_v4/nvidia/model.py, v1/worker/gpu/spec_decode).
    """
    inventory = launch.model.inventory
    mixing = [] if inventory is None else [tensor for tensor in inventory.tensors if tensor.module == "hc_head.fn"]
    if not drafts or not mixing:
        return []
    tokens, copies, width = launch.extra.scheduler.max_num_batched_tokens, mixing[0].rows, mixing[0].cols
    drafter = width if drafts <= launch.model.mtp_layers else width // copies
    formula = f"{tokens:,} tokens × ({width:,} + {drafter:,}) × 2 B"
    return [_exact("inputs of drafts", tokens * (width + drafter) * 2, formula)]


def profiled(launch: Launch, workspace: int) -> list[Reserved]:
    """
    What the profiling run measures beside weights and the `workspace` bytes of attention.

    Activations, with the experts' scratch in them: 5.4 GiB of a 6.96 GiB reserve at 8,192 batched tokens (GLM-5.1,
    8 × RTX PRO 6000); communication 0.13 GiB on one GPU, 0.55 on two (H100).
    """
    release, deployment, ranks = launch.release, launch.loaded.spec.deployment, launch.extra.world
    found = [
        Reserved(
            name="communication",
            bytes=_gib(0.1, 0.13, 0.3) if ranks == 1 else _gib(0.4, 0.6, 1.3),
            formula="NCCL and custom all-reduce, by logs",
            evidence="engine_log",
        ),
        _activations(launch, workspace),
        *_of_other_replicas(launch),
    ]
    if deployment.cuda_graph_max_bs != 0 and release.has("graphs_estimated"):
        found.append(graphs_estimated(deployment))
    return found


def _activations(launch: Launch, workspace: int) -> Reserved:
    """As logged, less what of the experts' scratch lies in attention's; all of it may lie elsewhere at the most."""
    tokens = launch.extra.scheduler.max_num_batched_tokens
    logged = int(2.6 * GIB) + tokens * 352 * KIB
    shared = shared_bytes(launch, workspace)
    formula = f"2.6 GiB + {tokens:,} tokens × 352 KiB"
    return Reserved(
        name="activations",
        bytes=Interval(max(int(logged * 0.6) - shared, 0), max(logged - shared, 0), int(logged * 1.5)),
        formula=formula + (f" − {shared:,} B of experts in the {WORKSPACE}" if shared else ""),
        evidence="assumed",
    )


def _of_other_replicas(launch: Launch) -> list[Reserved]:
    """The range grows with dp: that of kernels that spread tokens over chosen experts, and of those that do not."""
    found = gathered_rows(launch)
    if found is None:
        return []
    low, high = gathered_range(launch, found.bytes)
    size = Interval(low, found.bytes, high)
    return [Reserved(name="MoE inputs of other replicas", bytes=size, formula=found.formula, evidence="derived")]


def graphs_estimated(deployment: Deployment) -> Reserved:
    """
    The estimate of CUDA graphs that the budget leaves out.

    Logged for GLM-5.1 TP8, GiB: 4.77 estimated and 1.22 taken, with MTP 6.84 and 2.4.
    """
    speculative = deployment.draft_layers > 0
    size = _gib(2.4, 6.8, 7.5) if speculative else _gib(1.2, 4.8, 5.5)
    formula = "estimates and actual sizes of GLM-5.1 TP8" + (" with MTP" if speculative else "")
    return Reserved(name="CUDA graphs", bytes=size, formula=formula, evidence="engine_log")


def _exact(name: str, size: int, formula: str) -> Reserved:
    return Reserved(name=name, bytes=Interval(size, size, size), formula=formula, evidence="engine_code")


def _gib(low: float, best: float, high: float) -> Interval:
    return Interval(int(low * GIB), int(best * GIB), int(high * GIB))


def _less(total: int, low: float, best: float, high: float) -> Interval:
    return Interval(total - int(high * GIB), total - int(best * GIB), total - int(low * GIB))
