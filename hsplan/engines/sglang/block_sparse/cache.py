"""
MiniMax-M3 as a kind of cache: backend and row, what is refused, and the pools.

Sources: minimax_m3.py (model_overrides), memory_hook.py, MiniMaxSparseKVPool (memory_pool.py) and
hisparse_coordinator.py of 0.5.17 to 0.5.23.
"""

from __future__ import annotations

from typing import Literal

from hsplan.engines.base import Budget, Buffer, Launch, Layout, Pools, Refusal, Row, Scenario, Step
from hsplan.engines.sglang.block_sparse.pools import pool_buffers, pool_lines, swap_buffers, swap_lines
from hsplan.engines.sglang.block_sparse.rates import kv_of, rank_widths, rate_steps, stage_rates, widths_of
from hsplan.engines.sglang.buffers import request_buffers
from hsplan.engines.sglang.hisparse import (
    HOST_RESERVE_BYTES,
    HotBuffer,
    Offloaded,
    SwapTables,
    host_pool,
    hot_buffer,
    longest_held,
    offload_notes,
)
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.memory import TRTLLM_MHA_WORKSPACE_BYTES, WORKSPACE_BYTES, after_pool_lines
from hsplan.engines.sglang.pools import ratio_of, tokens_of
from hsplan.engines.sglang.releases import FIRST_RELEASE, Release
from hsplan.engines.sglang.requests import Requests, requests_of
from hsplan.engines.sglang.rows import checkpoint_dtype
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

BACKENDS = ("fa3", "fa4", "flashinfer", "triton")
BLOCK = 128  # tokens of a block of the model
SM100 = (100, 103)
TRTLLM_MHA_PAGES = (16, 32, 64, 128)
WORKSPACES = {"flashinfer": WORKSPACE_BYTES, "trtllm_mha": WORKSPACE_BYTES + TRTLLM_MHA_WORKSPACE_BYTES}
PREFILL_SIZES = (
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
)  # fmt: skip


class BlockSparseCache:
    """MiniMax-M3: dense layers, sparse layers, and the index of sparse layers."""

    def check(self, loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> list[str]:
        """Raise UnsupportedError for what cannot run; return notes."""
        problem = _unsupported(loaded, model, gpu, release)
        if problem is not None:
            raise UnsupportedError(problem)
        deployment = loaded.spec.deployment
        row, page = self.row(model, gpu, release, deployment, ranks, offload=False), deployment.page_size
        if isinstance(row, Row) and page not in ("auto", row.page_tokens):
            return [f"page_size {page}: SGLang forces {row.page_tokens} with {row.attention_backend}"]
        return []

    def row(
        self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, ranks: Ranks, *, offload: bool
    ) -> Row | str:
        """K and V of the heads of one rank, or why the engine does not start with HiSparse."""
        dtype = deployment.kv_cache_dtype
        if dtype == "auto":
            dtype = checkpoint_dtype(release, model.quantization)
        given = deployment.attention_backend
        backend = _backend(gpu, dtype) if given == "auto" else given
        if offload and not release.has("m3_hisparse"):
            return f"SGLang {release.name} has no HiSparse for MiniMax-M3 (from 0.5.21 on)"
        if offload and deployment.hierarchical_cache:
            return "HiSparse needs the radix cache off, HiCache needs it on"
        stored = rank_widths(model, gpu, release, dtype, backend, ranks.attention_tp).row
        return Row(
            format="kv_fp8" if dtype == "fp8_e4m3" else "kv_bf16",
            bytes=stored,
            charged_bytes=stored,
            attention_backend=backend,
            kv_cache_dtype=dtype,
            page_tokens=_page(gpu, backend, deployment.page_size),
        )

    def prefill_graph_mib(self, model: Model, release: Release, deployment: Deployment, chunk_tokens: int) -> int:  # noqa: ARG002
        """8 MiB for each captured size, up to the prefill chunk."""
        if not release.has("mla_prefill_graph"):
            return 0
        sizes = (*PREFILL_SIZES, *range(4608, chunk_tokens + 1, 512))
        return 8 * len([size for size in sizes if size <= chunk_tokens])

    def layout(self, launch: Launch, scenario: Scenario, row: Row) -> Layout | Problem:
        """Rates of the stage that charges most, or what is wrong with the hot buffer."""
        if scenario.offload:
            buffer = hot_buffer(launch, row.page_tokens)
            if isinstance(buffer, Problem):
                return buffer
            if not all(launch.plan.owners_in(*stage) for stage in launch.plan.stages):
                where = launch.loaded.where("deployment.layer_range")
                return Problem(where=where, what="a stage without sparse layers has nothing for HiSparse to move")
        ratio = ratio_of(launch, scenario)
        found = {stage: stage_rates(launch, row, stage, ratio) for stage in launch.plan.stages}
        stage = max(found, key=lambda one: found[one].charged)
        return Layout(
            row=row,
            rates=found[stage],
            stage=stage,
            index_layers=launch.plan.owners_in(*stage),
            explain=lambda: rate_steps(launch, row, stage, ratio, found[stage]),
        )

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens and everything that is allocated for them."""
        row, deployment, rates = layout.row, launch.loaded.spec.deployment, layout.token_rates
        page, ratio = row.page_tokens, ratio_of(launch, scenario)
        tokens = budget.kv_bytes.map(lambda b: tokens_of(b, rates, page, deployment.max_total_tokens))
        logical = int(tokens.best * ratio)
        requests = requests_of(
            deployment, launch.release, tokens=tokens.best, context_len=launch.context_len, page_tokens=page
        )
        widths = widths_of(launch, row)
        offloaded = _offloaded(launch, layout, requests, logical, ratio) if scenario.offload else Offloaded()
        workspace = WORKSPACES.get(row.attention_backend, 0)

        def buffers() -> tuple[Buffer, ...]:
            pool = pool_buffers(launch, layout, widths.index, tokens.best, logical, offload=scenario.offload)
            swapped = swap_buffers(layout, _swap(launch, layout, requests, logical)) if scenario.offload else ()
            return (*pool, *swapped, *request_buffers(requests))

        return Pools(
            tokens=tokens,
            logical_tokens=logical,
            request_cap=requests.cap,
            max_request_tokens=longest_held(tokens.best, logical, launch.context_len, offload=scenario.offload),
            page_tokens=page,
            host_tokens=offloaded.host_tokens,
            host_bytes=offloaded.host_bytes,
            host_reserve_bytes=HOST_RESERVE_BYTES if scenario.offload else 0,
            hot_buffer_tokens=offloaded.hot_tokens,
            hot_pool_tokens=tokens.best if scenario.offload else 0,
            prompt_tokens_a_slot=int(deployment.disaggregation is None),
            refusal=_refusal(launch) if scenario.offload else None,
            lines=(
                *pool_lines(launch, layout, widths.index, tokens.best, logical, offload=scenario.offload),
                *offloaded.lines,
                *after_pool_lines(launch, requests, layout, scenario, workspace=workspace),
            ),
            buffers=buffers,
            explain=lambda: _token_steps(launch, layout, budget, requests, tokens.best, logical),
            notes=offloaded.notes,
        )


def _unsupported(loaded: Loaded, model: Model, gpu: Gpu, release: Release) -> Problem | None:
    deployment = loaded.spec.deployment
    if release.date < FIRST_RELEASE:
        what = f"how SGLang {release.name} sizes MiniMax-M3 is not known"
        return Problem(where=loaded.where("deployment.release"), what=what, remedy="known: 0.5.17 to 0.5.23")
    if kv_of(model).packed and gpu.capability >= 100:
        what = "NVFP4 checkpoints of MiniMax-M3 keep packed pages on Blackwell, which hsplan does not know"
        return Problem(where=loaded.where("model.quantization_config"), what=what)
    if deployment.attention_backend not in ("auto", *BACKENDS):
        where, what = loaded.where("deployment.attention_backend"), f"{deployment.attention_backend} with MiniMax-M3"
        return Problem(where=where, what=f"{what} is not modelled", remedy="known: " + ", ".join(BACKENDS))
    if deployment.draft_layers or deployment.num_speculative_tokens:
        what = "the published MiniMax-M3 has no draft layers; a draft model of its own is not modelled"
        return Problem(where=loaded.where("deployment.draft_layers"), what=what, remedy="leave it out")
    for key in ("cp", "dcp"):
        if getattr(deployment, key) > 1:
            return Problem(where=loaded.where(f"deployment.{key}"), what=f"{key} with MiniMax-M3 is not modelled")
    return None


def _backend(gpu: Gpu, dtype: str) -> str:
    """fp8 attention on SM100 needs trtllm_mha; where the model has no rule of its own, the default is flashinfer."""
    if gpu.capability in SM100:
        return "trtllm_mha" if dtype == "fp8_e4m3" else "fa4"
    if gpu.rocm:
        return "triton"
    return "fa3" if gpu.capability == 90 else "flashinfer"


def _page(gpu: Gpu, backend: str, wanted: int | Literal["auto"]) -> int:
    """fa4 on SM100 takes the model's blocks only; three backends take them when no page is given (minimax_m3.py)."""
    if gpu.capability in SM100 and backend == "fa4":
        return BLOCK
    if wanted == "auto":
        blocks = (gpu.capability == 90 and backend == "fa3") or backend == "trtllm_mha"
        return BLOCK if blocks else 1
    return 64 if backend == "trtllm_mha" and wanted not in TRTLLM_MHA_PAGES else wanted


def _refusal(launch: Launch) -> Refusal | None:
    """HiSparse moves one KV head."""
    heads = kv_of(launch.model).kv_heads
    held = heads // launch.extra.attention_tp
    if held <= 1:
        return None
    why = f"SGLang asserts one KV head a rank under HiSparse, and a rank has {held}"
    return Refusal(why, f"attention TP of {heads}")


def _swap(launch: Launch, layout: Layout, requests: Requests, logical: int) -> SwapTables:
    buffer = hot_buffer(launch, layout.row.page_tokens)
    assert isinstance(buffer, HotBuffer)  # noqa: S101 - the layout was refused otherwise
    return SwapTables(
        layers=launch.plan.owners_in(*layout.stage),
        rows=requests.rows,
        buffer=buffer,
        top_k=launch.model.index_topk or 0,
        output=buffer.slots,  # blocks are selected: any slot of the hot buffer can be one
        columns=requests.cols + buffer.page_tokens,
        logical=logical,
    )


def _offloaded(launch: Launch, layout: Layout, requests: Requests, logical: int, ratio: float) -> Offloaded:
    """K and V of the sparse layers in host memory; dense layers and the index stay on the GPU."""
    swap = _swap(launch, layout, requests, logical)
    host_tokens, host_bytes = host_pool(logical, swap.buffer.page_tokens, layout.row.bytes, swap.layers)
    return Offloaded(
        hot_tokens=swap.buffer.tokens,
        host_tokens=host_tokens,
        host_bytes=host_bytes,
        lines=tuple(swap_lines(layout, swap)),
        notes=tuple(offload_notes(launch, ratio, host_bytes)),
    )


def _token_steps(
    launch: Launch, layout: Layout, budget: Budget, requests: Requests, tokens: int, logical: int
) -> tuple[Step, ...]:
    name, page = launch.release.name, layout.row.page_tokens
    found = f"{budget.kv_bytes.best:,} B // {layout.token_rates.charged:,} B in pages of {page} = {tokens:,}"
    steps = [Step("device tokens", found, f"SGLang {name}: config_from_budget")]
    if logical != tokens:
        source = f"SGLang {name}: host_to_device_ratio"
        steps.append(Step("logical tokens", f"{logical:,} for {tokens:,} device tokens", source))
    return (*steps, Step("request cap of a rank", requests.formula, f"SGLang {name}: resolve_max_num_reqs"))
