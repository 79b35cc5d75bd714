"""
Memory that no rule of the engine states: what is gone before weights, on loading, and beside the pool.

Ranges come from the logs named here. Constants of the engine carry their source.
"""

from __future__ import annotations

from hsplan.engines.base import Evidence, Interval, Launch, Layout, Line, Row, Scenario
from hsplan.engines.sglang.fraction import MemorySettings, draft_tokens
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.requests import Requests, is_speculative
from hsplan.hardware import Gpu
from hsplan.spec import Deployment
from hsplan.units import GIB, MIB, ceil_div

# Cards whose free memory after the distributed init is in a log.
LOGGED_GPUS = ("h200", "h20", "gb300", "rtx-pro-6000", "mi355x")
WORKSPACE_BYTES = 384 * MIB  # SGLANG_FLASHINFER_WORKSPACE_SIZE, dsa_backend.py
TRTLLM_MLA_WORKSPACE_BYTES = 150 * MIB  # trtllm_mla_backend.py, beside the one above
TRTLLM_MHA_WORKSPACE_BYTES = 512 * MIB  # trtllm_mha_backend.py, beside it too
# Decode graphs of GLM-5.1 on 8 × H200, max_bs 512, took 2.73 GiB.
GRAPH_BYTES_PER_BATCH = int(2.73 * GIB) // 512


def before_weights(gpu: Gpu, deployment: Deployment, ranks: Ranks) -> Interval:
    """
    Free bytes after the distributed init: the reported total less context, driver and communication buffers.

    Logged, GiB below the total: H200 2.40 (a fit of 12 runs), H20 2.00, RTX PRO 6000 2.29, GB300 2.66 to 2.81
    (implied), MI355X 4.36 to 4.50. One GPU alone needs no communication buffers.
    """
    if ranks.tp * deployment.pp == 1:
        low, best, high = 0.6, 1.1, 1.6
    elif gpu.rocm:
        low, best, high = 4.2, 4.45, 4.9
    elif gpu.capability in (100, 103):
        low, best, high = 1.95, 2.75, 3.6
    else:
        low, best, high = 1.95, 2.4, 2.95
    if deployment.nodes > 1 or deployment.moe_a2a_backend != "none":
        best, high = best + 0.5, high + 1.5
    total = gpu.reported_bytes
    return Interval(total - int(high * GIB), total - int(best * GIB), total - int(low * GIB))


def before_weights_evidence(gpu: str) -> Evidence:
    """Whether a log of this card pins its free memory before weights."""
    return "engine_log" if gpu in LOGGED_GPUS else "assumed"


def loading_overhead(gpu: Gpu, *, exact: bool) -> Interval:
    """
    Bytes gone on loading beyond the sum of the tensors: allocator segments and kernels.

    Logged less computed, GiB: GLM-5.2-NVFP4 0.19 and 0.18, GLM-5.1-FP8 0.22, Kimi-K2.5 on ROCm 0.3, GLM-5-FP8 on ROCm
    0.68. A given figure already holds the segments.
    """
    if exact:
        low, best, high = 0.0, 0.05, 0.15
    elif gpu.rocm:
        low, best, high = 0.1, 0.4, 0.9
    else:
        low, best, high = 0.1, 0.22, 0.36
    return Interval(int(low * GIB), int(best * GIB), int(high * GIB))


def after_pool_lines(
    launch: Launch, requests: Requests, layout: Layout, scenario: Scenario, *, workspace: int
) -> list[Line]:
    """Request table, workspace of the backend, graphs and activations: what must still fit beside the pool."""
    deployment, settings = launch.loaded.spec.deployment, launch.extra.memory
    table = requests.rows * requests.cols * 4
    lines = [
        Line(
            name="request to token table",
            bytes=table,
            formula=f"{requests.rows:,} requests × {requests.cols:,} tokens × 4 B",
            evidence="engine_code",
        )
    ]
    if workspace:
        name = layout.row.attention_backend
        lines.append(
            Line(name="attention workspace", bytes=workspace, formula=f"backend {name}", evidence="engine_code")
        )
    if deployment.disaggregation != "prefill" and settings.max_bs:
        lines.append(_graph_line(launch, requests, layout, scenario, settings))
    chunk = settings.chunk_tokens // deployment.dp_attention
    activations = GIB if deployment.disaggregation == "decode" else GIB + chunk * MIB // 8
    formula = "1 GiB" if deployment.disaggregation == "decode" else f"1 GiB + {chunk:,} prefill tokens × 128 KiB"
    lines.append(Line(name="activations", bytes=activations, formula=formula, evidence="assumed"))
    return lines


def workspace_bytes(launch: Launch, row: Row) -> int:
    """Workspaces of the MLA and DSA backends; that of trtllm is for the queries of all DCP ranks."""
    backend = row.attention_backend
    if launch.model.index_topk is None:
        if backend == "trtllm_mla":
            return WORKSPACE_BYTES + TRTLLM_MLA_WORKSPACE_BYTES
        return WORKSPACE_BYTES if backend == "flashinfer" else 0
    if "flashinfer" in backend:
        return WORKSPACE_BYTES
    wide = launch.gpu.capability >= 100 or "trtllm" in backend
    return WORKSPACE_BYTES * launch.loaded.spec.deployment.dcp if wide else 0


def _graph_line(
    launch: Launch, requests: Requests, layout: Layout, scenario: Scenario, settings: MemorySettings
) -> Line:
    """Captured decode graphs, and the page tables that they keep: one entry a token where pages are not enough."""
    deployment = launch.loaded.spec.deployment
    batch = max(min(settings.max_bs, requests.cap), 1)
    drafts = draft_tokens(deployment)
    graphs = batch * GRAPH_BYTES_PER_BATCH
    if deployment.dp_attention > 1:
        graphs += 3 * MIB * batch * deployment.dp_attention
    wide = scenario.offload or is_speculative(deployment) or bool(launch.gpu.rocm)
    columns = requests.cols if wide else ceil_div(requests.cols, layout.row.page_tokens)
    tables = batch * drafts * columns * 4 if launch.model.index_topk is not None else 0
    return Line(
        name="decode graphs",
        bytes=graphs + tables,
        formula=f"{batch} requests × {graphs // batch:,} B + page tables {tables:,} B",
        evidence="engine_log",
    )
