"""
The reserve: what is gone before the pool is sized, line by line.

The workspaces follow from the engine's code; activations, graphs and what CUDA keeps to itself are ranges from the
logs named here.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Evidence, Interval, Launch, Row
from hsplan.engines.vllm.launch import Scheduler
from hsplan.engines.vllm.releases import Release
from hsplan.hardware import Gpu
from hsplan.spec import Deployment
from hsplan.units import GIB, KIB, MIB

LOGITS_BYTES = 512 * MIB  # VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
GATHER_ROW_BYTES = 132  # index keys of a prefill, gathered
UPCAST_ROW_BYTES = 1152  # packed rows of a prefill, in bf16
GATHERED_FOR_EACH_UPCAST = UPCAST_ROW_BYTES // GATHER_ROW_BYTES
SHORT_LENGTH = 256 * 1024
PREFILL_CHUNK, ENTRY_BYTES = 4, 1024  # DeepSeek-V4: requests of a prefill chunk, an entry in bf16


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


def workspace_bytes(release: Release, row: Row, length: int) -> tuple[int, str]:
    """
    The workspace that a prefill's indexer and its packed rows share, and its formula.

    factor × max_model_len rows of 1,152 B, or 8 × as many index keys: the larger one.
    """
    factor = _workspace_factor(release, length)
    keys = GATHERED_FOR_EACH_UPCAST * factor * length * GATHER_ROW_BYTES
    rows = factor * length * UPCAST_ROW_BYTES if row.format == "fp8_packed" else 0
    if rows > keys:
        return rows, f"{factor} × {length:,} tokens × {UPCAST_ROW_BYTES} B"
    return keys, f"{GATHERED_FOR_EACH_UPCAST * factor} × {length:,} tokens × {GATHER_ROW_BYTES} B"


def sparse_reserve(launch: Launch, row: Row, scheduler: Scheduler) -> list[Reserved]:
    """Workspaces of DSA models: they grow with max_model_len and max_num_batched_tokens."""
    top_k = launch.model.index_topk
    if top_k is None:
        return []
    size, formula = workspace_bytes(launch.release, row, launch.context_len)
    tokens = scheduler.max_num_batched_tokens
    buffer = tokens * top_k * 4
    return [
        _exact("sparse attention workspace", size, formula),
        _exact("indexer logits scratch", LOGITS_BYTES, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = 512"),
        _exact("top-k buffer", buffer, f"{tokens:,} tokens × {top_k:,} × 4 B"),
    ]


def compressed_reserve(launch: Launch, scheduler: Scheduler, window: int, ratio: int) -> list[Reserved]:
    """
    Workspaces of DeepSeek-V4: of a prefill's entries of `ratio` tokens in bf16, or of their index keys, the larger one.

    Of index keys a log shows the growth: 0.69 GB less for the cache at max_model_len 786,432 than at 262,144 (4090).
    """
    tokens, entries, top_k = scheduler.max_num_batched_tokens, launch.context_len // ratio, launch.model.index_topk or 0
    factor = _workspace_factor(launch.release, launch.context_len)
    keys = GATHERED_FOR_EACH_UPCAST * factor * entries * GATHER_ROW_BYTES
    rows = PREFILL_CHUNK * (entries + window + tokens) * ENTRY_BYTES
    formula = f"the larger of {GATHERED_FOR_EACH_UPCAST * factor} × {entries:,} entries × {GATHER_ROW_BYTES} B and "
    formula += f"{PREFILL_CHUNK} × ({entries:,} + {window} + {tokens:,}) × {ENTRY_BYTES} B"
    return [
        _exact("sparse attention workspace", max(keys, rows), formula),
        _exact("indexer logits scratch", LOGITS_BYTES, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = 512"),
        _exact("top-k buffer", tokens * top_k * 4, f"{tokens:,} tokens × {top_k:,} × 4 B"),
    ]


def _workspace_factor(release: Release, length: int) -> int:
    return 5 if not release.has("workspace_factor") or length <= SHORT_LENGTH else 2


def profiled(release: Release, deployment: Deployment, scheduler: Scheduler, ranks: int) -> list[Reserved]:
    """
    What the profiling run measures beside weights and workspaces.

    Activations: 5.3 GiB of a 6.96 GiB reserve at 8,192 batched tokens (GLM-5.1, 8 × RTX PRO 6000); communication
    0.13 GiB on one GPU, 0.55 on two (H100).
    """
    tokens = scheduler.max_num_batched_tokens
    per_token = int(2.5 * GIB) + tokens * 352 * KIB
    found = [
        Reserved(
            name="communication",
            bytes=_gib(0.1, 0.13, 0.3) if ranks == 1 else _gib(0.4, 0.6, 1.3),
            formula="NCCL and custom all-reduce, by logs",
            evidence="engine_log",
        ),
        Reserved(
            name="activations",
            bytes=Interval(int(per_token * 0.6), per_token, int(per_token * 1.5)),
            formula=f"2.5 GiB + {tokens:,} tokens × 352 KiB",
            evidence="assumed",
        ),
    ]
    if deployment.cuda_graph_max_bs != 0 and release.has("graphs_estimated"):
        found.append(graphs_estimated(deployment))
    return found


def graphs_estimated(deployment: Deployment) -> Reserved:
    """
    The estimate of CUDA graphs that the budget leaves out.

    Logged for GLM-5.1 TP8, GiB: 4.77 estimated and 1.22 taken, with MTP 6.84 and 2.4.
    """
    speculative = deployment.draft_layers > 0
    size = _gib(2.4, 6.8, 7.5) if speculative else _gib(1.2, 4.8, 5.5)
    formula = "estimates and actual sizes of GLM-5.1 TP8" + (" with MTP" if speculative else "")
    return Reserved(name="CUDA graphs", bytes=size, formula=formula, evidence="engine_log")


def graphs_taken(deployment: Deployment) -> int:
    """Bytes of the graphs where no estimate is left out for them; the logs of `graphs_estimated`."""
    return int((2.4 if deployment.draft_layers else 1.2) * GIB)


def rejection_bytes(launch: Launch, scheduler: Scheduler) -> int:
    """Logits of the rejection sampler, which no profiling run sees; 0 without speculation or vocabulary."""
    inventory = launch.model.inventory
    if scheduler.decode_query_len == 1 or inventory is None:
        return 0
    vocabulary = next((tensor.rows for tensor in inventory.tensors if tensor.shard == "head"), 0)
    return scheduler.max_num_seqs * scheduler.decode_query_len * vocabulary * 4


def _exact(name: str, size: int, formula: str) -> Reserved:
    return Reserved(name=name, bytes=Interval(size, size, size), formula=formula, evidence="engine_code")


def _gib(low: float, best: float, high: float) -> Interval:
    return Interval(int(low * GIB), int(best * GIB), int(high * GIB))


def _less(total: int, low: float, best: float, high: float) -> Interval:
    return Interval(total - int(high * GIB), total - int(best * GIB), total - int(low * GIB))
