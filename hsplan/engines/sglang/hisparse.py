"""
HiSparse: hot buffers and their tables on the GPU, the host pool, and what the engine refuses.

Sources: hisparse_coordinator.py, sparsity/factory.py, pool_host/base.py and allocator/hisparse.py of 0.5.17 to 0.5.23;
PRs #20343, #28753, #31992, #34329.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Launch, Layout, Line, Refusal
from hsplan.engines.loads import swap_in_of
from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.requests import Requests, is_speculative
from hsplan.errors import Problem
from hsplan.families import LayerPlan, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded, Offload
from hsplan.swapin import SwapIn
from hsplan.units import GIB, TIB, ceil_div, floor_to

HOST_RESERVE_BYTES = 10 * GIB
INPUT_RESERVE = 6  # tokens of the pool that the longest input leaves free
DEFAULT_SLOTS = 4096  # of hisparse_config: twice its own top_k of 2048, whatever the model's
LRU_MAX_SLOTS = 2**15  # their numbers are int16, from 0 on
MOST_STEPS = 4  # that a call of the speculative swap reads, the drafts and the token before them
LEAST_TOP_K = 1024  # of models whose drafts are swapped in
MOST_IDS = 8192  # steps × top-k of a call
LEAST_SCRATCH = 1024
PIN_BYTES_PER_S = 10**9  # about 12 minutes for 700 GB in one call, TensorRT-LLM #17773


class HotBuffer(msgspec.Struct, frozen=True):
    """Slots a request keeps on the GPU: `slots` of the buffer and one page for new tokens."""

    slots: int
    page_tokens: int

    @property
    def tokens(self) -> int:
        """Device tokens that one running request holds."""
        return self.slots + self.page_tokens


def hot_buffer(launch: Launch, page_tokens: int) -> HotBuffer | Problem:
    """The buffer as given, or the engine's own; or what the engine refuses about it, or cannot swap into."""
    release, top_k = launch.release, launch.model.index_topk or 0
    given = (launch.loaded.spec.offload or Offload()).device_buffer_size
    slots = DEFAULT_SLOTS if given == "auto" else given
    where = launch.loaded.where("offload.device_buffer_size")
    if slots < top_k:
        what = f"a hot buffer of {slots} is smaller than index_topk {top_k}"
        return Problem(where=where, what=what, remedy=f"give at least {top_k}")
    if slots > LRU_MAX_SLOTS:
        what = f"a hot buffer of {slots} does not fit the engine's 16-bit slot numbers"
        return Problem(where=where, what=what, remedy=f"give at most {LRU_MAX_SLOTS}")
    if release.has("hot_buffer_in_pages") and slots % page_tokens:
        what = f"SGLang {release.name} takes whole pages of {page_tokens} tokens, not {slots}"
        return Problem(where=where, what=what, remedy=f"give {max(slots // page_tokens, 1) * page_tokens}")
    needed, there = swap_in_bytes(slots, top_k, launch.gpu), launch.gpu.shared_bytes
    if needed > there and not _swaps_drafts(launch.loaded.spec.deployment, release):
        smaller = range(floor_to(slots, page_tokens), 0, -page_tokens)
        most = next((size for size in smaller if swap_in_bytes(size, top_k, launch.gpu) <= there), 0)
        if most < top_k:
            what = f"the {launch.gpu.name} has {there:,} B of shared memory, too few to swap in a top-k of {top_k:,}"
            return Problem(where=launch.loaded.where("deployment.gpu"), what=what, remedy="another GPU, or no offload")
        what = f"swapping into {slots} slots takes {needed:,} B of shared memory, the {launch.gpu.name} has {there:,} B"
        return Problem(where=where, what=what, remedy=f"give at most {most}")
    return HotBuffer(slots, page_tokens)


def swap_in_bytes(slots: int, top_k: int, gpu: Gpu) -> int:
    """Shared memory of one block of the swap-in kernel (SmemLayout of hisparse.cuh, the same in all releases)."""
    ids, chunks = top_k + 2 * top_k + 2, ceil_div(slots, gpu.warp_lanes) + 1
    return 4 * (ids + 2 * chunks) + 2 * (slots + 2 * top_k)


def _swaps_drafts(deployment: Deployment, release: Release) -> bool:
    """Whether the kernel of several steps swaps rows in, from 0.5.22 on: it keeps its tables in global memory."""
    return draft_tokens(deployment) > 1 and release.has("draft_times_ratio")


class SwapTables(msgspec.Struct, frozen=True, kw_only=True):
    """
    Sizes behind the tables of HiSparse: `layers` whose rows are swapped, `rows` of requests, one hot `buffer` each.

    `output` is the width of the swapped locations, `columns` that of a request's host map, spare page included,
    `logical` the slots that map to device slots.
    """

    layers: int
    rows: int
    buffer: HotBuffer
    top_k: int
    output: int
    columns: int
    logical: int


class Offloaded(msgspec.Struct, frozen=True, kw_only=True):
    """
    What offload adds: device tokens that a request keeps, the host pool of one rank, ledger lines and notes.

    `hot_tokens` are the hot buffer and a page, `scratch_tokens` what drafts take beside it.
    """

    hot_tokens: int = 0
    scratch_tokens: int = 0
    host_tokens: int = 0
    host_bytes: int = 0
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()


def longest_held(tokens: int, logical_tokens: int, context_len: int, *, offload: bool) -> int:
    """
    The longest request, tokens: under HiSparse no longer than the device pool less 6, whatever host memory holds.

    The worker derives the longest input from the device pool (`TpModelWorker.get_worker_info` of 0.5.17, 0.5.20,
    0.5.22 and 0.5.23; logged: 181,946 of 181,952). #28753 lifted a check of PD decode alone; #34345 was to lift this.
    """
    held = tokens - INPUT_RESERVE if offload else logical_tokens
    return max(min(held, context_len), 0)


def host_line(host_tokens: int, host_bytes: int, row_bytes: int, layers: int) -> Line:
    """The pinned pool of one rank."""
    return Line(
        name="host KV pool",
        bytes=host_bytes,
        place="host",
        formula=f"{host_tokens:,} tokens × {row_bytes} B × {layers} layers, pinned, a copy on every rank",
        evidence="engine_code",
    )


def swap_of(launch: Launch, layout: Layout, requests: Requests, logical_tokens: int) -> SwapTables:
    """The tables of an MLA pool with an indexer: every layer is swapped."""
    buffer = hot_buffer(launch, layout.row.page_tokens)
    assert isinstance(buffer, HotBuffer)  # noqa: S101 - the layout was refused otherwise
    top_k = launch.model.index_topk or 0
    return SwapTables(
        layers=layout.stage[1] - layout.stage[0],
        rows=requests.rows,
        buffer=buffer,
        top_k=top_k,
        output=top_k,
        columns=requests.cols + buffer.page_tokens,
        logical=logical_tokens,
    )


def speculation_refused(loaded: Loaded, model: Model, release: Release) -> Problem | None:
    """What HiSparseSpecSwapManager refuses whatever the requests, from 0.5.22 on."""
    steps, top_k = draft_tokens(loaded.spec.deployment), model.index_topk or 0
    if steps == 1 or not release.has("draft_times_ratio"):
        return None
    where = loaded.where("deployment.num_speculative_tokens")
    if steps > MOST_STEPS:
        what = f"HiSparse verifies at most {MOST_STEPS} tokens a step, not {steps}"
        return Problem(where=where, what=what, remedy=f"draft at most {MOST_STEPS - 1}")
    if top_k < LEAST_TOP_K or steps * top_k > MOST_IDS:
        what = f"HiSparse with drafts takes a top-k from {LEAST_TOP_K} on and {MOST_IDS} ids a step"
        return Problem(where=where, what=f"{what}, not {steps} × {top_k}", remedy="draft no tokens")
    return None


def speculation_refusal(launch: Launch, requests: Requests, slots: int) -> Refusal | None:
    """HiSparseSpecSwapManager wants no more rows of requests than `slots` of a hot buffer, from 0.5.22 on."""
    single = draft_tokens(launch.loaded.spec.deployment) == 1
    if single or not launch.release.has("draft_times_ratio") or requests.rows <= slots:
        return None
    rows = f"{requests.rows:,} rows of requests are more than the {slots:,} slots of a hot buffer"
    most = (slots - (requests.rows - requests.cap)) * launch.cap_ranks
    return Refusal(f"SGLang does not start with drafts: {rows}", f"max_running_requests {most:,} or fewer")


def loads_of(launch: Launch, layout: Layout, *, slots: int) -> SwapIn | str:
    """What a step loads, or why that is not modelled: before 0.5.22 no swap-in reads several steps at once."""
    steps, release = draft_tokens(launch.loaded.spec.deployment), launch.release
    if steps > 1 and not release.has("draft_times_ratio"):
        return f"swap-in with drafts: SGLang {release.name} has none that reads several steps (from 0.5.22 on)"
    return swap_in_of(launch, layout, slots=slots, steps=steps)


def offload_of(launch: Launch, layout: Layout, requests: Requests, logical_tokens: int, ratio: float) -> Offloaded:
    """Host pool and tables of a layout that HiSparse takes."""
    row_bytes, swap = layout.row.bytes, swap_of(launch, layout, requests, logical_tokens)
    host_tokens, host_bytes = host_pool(logical_tokens, layout.row.page_tokens, row_bytes, swap.layers)
    prefetch = _prefetch_bytes(launch.plan, swap.layers, launch.release, launch.loaded.spec.deployment, swap.top_k)
    return Offloaded(
        hot_tokens=swap.buffer.tokens,
        scratch_tokens=scratch_slots(launch.release, launch.loaded.spec.deployment, swap.top_k, swap.buffer.slots),
        host_tokens=host_tokens,
        host_bytes=host_bytes,
        lines=(
            *table_lines(swap, prefetch),
            *_speculative_lines(launch, swap),
            host_line(host_tokens, host_bytes, row_bytes, swap.layers),
        ),
        notes=tuple(offload_notes(launch, ratio, host_bytes)),
    )


def table_lines(swap: SwapTables, prefetch: int = 0) -> list[Line]:
    """Request tables, index buffers and the logical-to-device map: none of it is in the budget."""
    buffer, layers, rows = swap.buffer, swap.layers, swap.rows
    per_layer = 8 * buffer.tokens + 2 * buffer.slots
    shared = 8 * buffer.tokens + 8 * swap.columns + 4 * swap.top_k + 4 * swap.output + prefetch
    fixed = 6 * buffer.slots + 4
    return [
        Line(
            name="HiSparse request tables",
            bytes=rows * (layers * per_layer + shared) + fixed,
            formula=f"{rows:,} requests × ({layers} layers × {per_layer:,} B + {shared:,} B) + {fixed:,} B",
            evidence="engine_code",
        ),
        Line(
            name="logical to device map",
            bytes=8 * (swap.logical + buffer.page_tokens + 1),
            formula=f"8 B × ({swap.logical:,} logical tokens + {buffer.page_tokens + 1})",
            evidence="engine_code",
        ),
    ]


def _speculative_lines(launch: Launch, swap: SwapTables) -> list[Line]:
    parts = _speculative_swap(
        launch.release, launch.loaded.spec.deployment, swap.layers, swap.top_k, swap.rows, swap.buffer
    )
    if not parts:
        return []
    formula = " + ".join(f"{name} {size:,} B" for name, size in parts.items())
    name = "HiSparse speculative swap state"
    return [Line(name=name, bytes=sum(parts.values()), formula=formula, evidence="engine_code")]


def _prefetch_bytes(plan: LayerPlan, layers: int, release: Release, deployment: Deployment, top_k: int) -> int:
    """The miss plan that skip layers replay, per request."""
    if not release.has("hisparse_prefetch") or plan.skip_layers == 0 or layers != len(plan.pattern):
        return 0
    drafts = draft_tokens(deployment)
    if drafts > 1 and not release.has("draft_times_ratio"):
        return 0
    return 12 * top_k * drafts + 4


def _speculative_swap(
    release: Release, deployment: Deployment, layers: int, top_k: int, rows: int, buffer: HotBuffer
) -> dict[str, int]:
    """Parts of HiSparseSpecSwapManager, from 0.5.22 on; empty without speculation."""
    drafts = draft_tokens(deployment)
    if drafts == 1 or not release.has("draft_times_ratio"):
        return {}
    width, scratch = drafts * top_k, scratch_slots(release, deployment, top_k, buffer.slots)
    hashed = 1 << max(1, (2 * buffer.slots - 1).bit_length())
    return {
        "cache index": layers * rows * 2 * hashed * 8,
        "policy": layers * (rows + 1) * buffer.slots * 4,
        "scratch": (rows + 1) * max(4 * rows, 5 * width) * 4 + layers * rows * scratch * 4,
        "locations": rows * width * 4,
        "hash": 16 * buffer.slots,
    }


def scratch_slots(release: Release, deployment: Deployment, top_k: int, slots: int) -> int:
    """
    Device slots that a request with drafts keeps beside its hot buffer, for missed rows that this has no room for.

    With them any buffer holds all that a step verifies (`allocate_scratch`, from 0.5.22 on).
    """
    drafts = draft_tokens(deployment)
    if drafts == 1 or not release.has("draft_times_ratio"):
        return 0
    return min(drafts * top_k, max(LEAST_SCRATCH, drafts * top_k - slots))


def host_pool(logical_tokens: int, page_tokens: int, row_bytes: int, layers: int) -> tuple[int, int]:
    """Host tokens and bytes of one rank: every KV row, no index-K, with one spare page."""
    tokens = (logical_tokens // page_tokens + 1) * page_tokens
    return tokens, tokens * row_bytes * layers


def offload_notes(launch: Launch, ratio: float, host_bytes: int) -> list[str]:
    """What a user should know of a HiSparse plan that is no error; `host_bytes` of one rank."""
    release, deployment = launch.release, launch.loaded.spec.deployment
    host_bytes_per_node = host_bytes * launch.ranks_per_node
    found = []
    if deployment.pp > 1 or deployment.layer_range is not None:
        found.append(
            "HiSparse with pipeline parallelism: a stage's host pool mixes global and local layer ids (#36331, open)"
        )
    if deployment.draft_layers and not release.has("draft_times_ratio"):
        found.append(
            f"HiSparse with draft layers: SGLang {release.name} builds a second coordinator and host pool for the "
            "draft; neither is in this plan"
        )
    elif is_speculative(deployment):
        found.append("HiSparse with drafts takes one chain of them: --speculative-eagle-topk 1")
    if ratio != int(ratio):
        found.append(f"SGLang takes whole host_to_device_ratio only; {ratio:g} is a what-if, D·r is floored")
    if host_bytes_per_node > TIB // 2:
        minutes = host_bytes_per_node / PIN_BYTES_PER_S / 60
        found.append(
            f"pinning {host_bytes_per_node / 10**9:,.0f} GB of host memory takes up to {minutes:,.0f} min at 1 GB/s"
        )
    return found
