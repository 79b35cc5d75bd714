"""
DeepSeek-V4 and V4.1 as a kind of cache: the entry that is stored, the stage that binds, and the pools.

Sources: deepseek_v4_memory_pool.py, kv_cache_configurator.py and hisparse_coordinator.py of 0.5.17 to 0.5.23.
"""

from __future__ import annotations

from hsplan.engines.base import (
    Budget,
    Buffer,
    CompressedPools,
    Interval,
    Launch,
    Layout,
    Pools,
    Refusal,
    Row,
    Scenario,
)
from hsplan.engines.sglang.budget import budget_of
from hsplan.engines.sglang.buffers import request_buffers
from hsplan.engines.sglang.compressed.buffers import compressed_buffers, swap_buffers
from hsplan.engines.sglang.compressed.lines import compressed_lines, host_pool, swap_lines, swap_of
from hsplan.engines.sglang.compressed.rates import pools_of_tokens, requests_priced, tokens_of
from hsplan.engines.sglang.compressed.rules import (
    backend_of,
    hisparse_refused,
    launcher_notes,
    stage_refused,
    unsupported,
)
from hsplan.engines.sglang.compressed.sizing import ENTRIES, LAUNCHER_REQUESTS, PAGE, Sizing, sizing_of
from hsplan.engines.sglang.compressed.steps import rate_steps, token_steps
from hsplan.engines.sglang.hisparse import (
    HOST_RESERVE_BYTES,
    HotBuffer,
    Offloaded,
    hot_buffer,
    offload_notes,
)
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.memory import WORKSPACE_BYTES, after_pool_lines
from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.requests import Requests, requests_of
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Compressed, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded
from hsplan.units import ceil_div, floor_to

SWAP_RATIO = 4  # tokens of an entry that is swapped
SWAP_PAGE = PAGE // SWAP_RATIO


class CompressedCache:
    """DeepSeek-V4: pools of windows, of entries by ratio, of index keys and of compressor state."""

    def check(self, loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> list[str]:
        """Raise InputError or UnsupportedError for what cannot run; return notes."""
        problem = unsupported(loaded, model, gpu, release, ranks)
        if problem is not None:
            raise UnsupportedError(problem)
        deployment = loaded.spec.deployment
        if deployment.page_size not in ("auto", PAGE):
            what = f"page_size {deployment.page_size}: SGLang asserts pages of {PAGE} for DeepSeek-V4"
            raise InputError(Problem(where=loaded.where("deployment.page_size"), what=what, remedy="leave it to auto"))
        return launcher_notes(loaded, model, release)

    def row(
        self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, ranks: Ranks, *, offload: bool
    ) -> Row | str:
        """The entry that is stored, or why the engine does not start with HiSparse."""
        assert isinstance(model.kv, Compressed)  # noqa: S101
        given = deployment.attention_backend
        backend = backend_of(model.kv, gpu, deployment, ranks.attention_tp) if given == "auto" else given
        reason = hisparse_refused(model.kv, deployment, backend) if offload else None
        kind = {"trtllm": "v4_uniform", "flashmla_mega": "v41"}.get(backend, "v4_packed")
        stored = ENTRIES[kind].bytes
        charged = stored if release.has("v4_window_cap") else ENTRIES["v4_packed"].bytes
        return reason or Row(
            format=kind,
            bytes=stored,
            charged_bytes=charged,
            attention_backend=backend,
            kv_cache_dtype="fp8_e4m3",
            page_tokens=PAGE,
        )

    def prefill_graph_mib(self, model: Model, release: Release, deployment: Deployment, chunk_tokens: int) -> int:  # noqa: ARG002
        """None: SGLang switches prefill graphs off for DeepSeek-V4."""
        return 0

    def layout(self, launch: Launch, scenario: Scenario, row: Row) -> Layout | Problem:
        """The stage that holds the fewest tokens; there is no one rate a token."""
        if scenario.offload:
            buffer = hot_buffer(launch, SWAP_PAGE)
            if isinstance(buffer, Problem):
                return buffer
        for stage in launch.plan.stages:
            problem = stage_refused(launch, stage, offload=scenario.offload)
            if problem is not None:
                return problem
        best = budget_of(launch, scenario).kv_bytes.best
        sizings = {stage: sizing_of(launch, scenario, row, stage) for stage in launch.plan.stages}
        stage = min(sizings, key=lambda found: tokens_of(sizings[found], best))
        shape = sizings[stage].shape
        return Layout(
            row=row,
            rates=None,
            stage=stage,
            index_layers=shape.c4 + shape.c2 + shape.c1,
            explain=lambda: rate_steps(launch, sizings[stage]),
        )

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens of the stage with the fewest, and the pools of that stage."""
        deployment, release = launch.loaded.spec.deployment, launch.release
        sizings = [sizing_of(launch, scenario, layout.row, stage) for stage in launch.plan.stages]
        tokens = _tokens(sizings, budget.kv_bytes, deployment.max_total_tokens)
        sizing = sizing_of(launch, scenario, layout.row, layout.stage)
        priced = requests_priced(sizing, budget.kv_bytes.best)
        found = pools_of_tokens(sizing, tokens.best, priced)
        requests = requests_of(
            deployment,
            release,
            tokens=tokens.best,
            context_len=launch.context_len,
            page_tokens=PAGE,
            with_drafts=LAUNCHER_REQUESTS,
        )
        offloaded = _offloaded(launch, sizing, requests, tokens.best) if scenario.offload else Offloaded()
        workspace = WORKSPACE_BYTES if layout.row.attention_backend == "trtllm" else 0
        requests_held = _gpu_requests(launch, sizing, found, tokens.best)

        def buffers() -> tuple[Buffer, ...]:
            pool = compressed_buffers(launch, sizing, found, requests, tokens.best)
            swapped = swap_buffers(launch, sizing, _slots(launch), requests, tokens.best) if scenario.offload else ()
            return (*pool, *swapped, *request_buffers(requests))

        return Pools(
            tokens=tokens,
            logical_tokens=tokens.best,
            request_cap=requests.cap,
            max_request_tokens=min(tokens.best, launch.context_len),
            page_tokens=PAGE,
            host_tokens=offloaded.host_tokens,
            host_bytes=offloaded.host_bytes,
            host_reserve_bytes=HOST_RESERVE_BYTES if scenario.offload else 0,
            hot_buffer_tokens=offloaded.hot_tokens,
            hot_pool_tokens=found.c4_tokens if scenario.offload else 0,
            prompt_tokens_a_slot=SWAP_RATIO if deployment.disaggregation is None else 0,
            gpu_requests=requests_held,
            refusal=_refusal(sizing, found, tokens.best, budget.kv_bytes.best),
            compressed=found,
            lines=(
                *compressed_lines(launch, sizing, found, requests, tokens.best),
                *offloaded.lines,
                *after_pool_lines(launch, requests, layout, scenario, workspace=workspace),
            ),
            buffers=buffers,
            explain=lambda: token_steps(launch, sizing, found, budget, requests, tokens.best, priced, requests_held),
            notes=(*offloaded.notes, *_notes(launch, found, priced)),
        )


def _slots(launch: Launch) -> int:
    buffer = hot_buffer(launch, SWAP_PAGE)
    assert isinstance(buffer, HotBuffer)  # noqa: S101 - the layout was refused otherwise
    return buffer.slots


def _tokens(sizings: list[Sizing], budget: Interval, most: int | None) -> Interval:
    """Tokens of the stage with the fewest; more budget can mean more requests to keep state for, so ends may cross."""

    def of(budget_bytes: int) -> int:
        tokens = min(tokens_of(sizing, budget_bytes) for sizing in sizings)
        return tokens if most is None else floor_to(min(tokens, most), PAGE)

    low, best, high = of(budget.low), of(budget.best), of(budget.high)
    return Interval(min(low, best, high), best, max(low, best, high))


def _offloaded(launch: Launch, sizing: Sizing, requests: Requests, tokens: int) -> Offloaded:
    """Entries of ratio 4 in host memory, hot buffers and tables on the GPU."""
    swap = swap_of(launch, sizing, _slots(launch), requests, tokens)
    host_tokens, host_bytes = host_pool(sizing, tokens)
    return Offloaded(
        hot_tokens=swap.buffer.tokens,
        host_tokens=host_tokens,
        host_bytes=host_bytes,
        lines=tuple(swap_lines(sizing, swap, tokens)),
        notes=tuple(offload_notes(launch, sizing.shrink, host_bytes)),
    )


def _gpu_requests(launch: Launch, sizing: Sizing, found: CompressedPools, tokens: int) -> int | None:
    """The least of tokens and of windows where these grow with tokens: one is admitted with its window and a page."""
    if sizing.cap_slots is not None:
        return None
    context = launch.loaded.spec.workload.context
    return min(tokens // (ceil_div(context, PAGE) * PAGE), found.swa_tokens // (min(sizing.window, context) + PAGE))


def _refusal(sizing: Sizing, found: CompressedPools, tokens: int, budget_bytes: int) -> Refusal | None:
    """Why the engine does not start with these pools, and what would help."""
    fixed = found.fixed_c128_state_bytes + found.fixed_c2_state_bytes + int(found.swa_fixed_bytes)
    if tokens == 0 and 0 < budget_bytes <= fixed:
        reason = f"windows and state of the requests take {fixed:,} B, all of the {budget_bytes:,} B for the cache"
        return Refusal(reason, "a lower max_running_requests")
    if tokens and sizing.cap_slots is None and sizing.window + PAGE >= found.swa_tokens:
        reason = f"a window pool of {found.swa_tokens:,} slots cannot admit one request (window and a page)"
        return Refusal(reason, "a higher swa_full_tokens_ratio")
    return None


def _notes(launch: Launch, found: CompressedPools, priced: int) -> list[str]:
    if launch.loaded.spec.deployment.max_running_requests != "auto" or not found.fixed_c128_state_bytes:
        return []
    state = f"{found.fixed_c128_state_bytes / 10**9:,.1f} GB"
    return [f"max_running_requests is not given: the state of {priced:,} requests takes {state} before tokens"]
