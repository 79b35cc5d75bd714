"""
The tensors behind the ledger of one rank, by the shapes in which SGLang allocates them.

Sources: memory_pool.py (MLATokenToKVPool, DSATokenToKVPool), hisparse_coordinator.py, allocator/hisparse.py and
pool_host/base.py of 0.5.17 to 0.5.23.
"""

from __future__ import annotations

from hsplan.engines.base import Buffer, Launch, Layout, Scenario
from hsplan.engines.sglang.cell import INDEX_BYTES, splits_layers
from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.requests import Requests
from hsplan.units import ceil_div


def pool_buffers(launch: Launch, scenario: Scenario, layout: Layout, tokens: int, ratio: float) -> tuple[Buffer, ...]:
    """KV rows and index-K of the layers of a rank, and of its draft layers; elided layers keep tensors of zero rows."""
    row, deployment, release = layout.row, launch.loaded.spec.deployment, launch.release
    first, end = layout.stage
    page, drafts = row.page_tokens, deployment.draft_layers
    split = splits_layers(release, deployment, launch.plan, offload=scenario.offload)
    held = ceil_div(end - first, deployment.cp) + 1 if split else end - first
    found = [Buffer(line="KV rows", shape=(tokens + page, 1, row.bytes), count=held)]
    copies = deployment.dcp if launch.plan.has_indexer and release.has("dsa_dcp") else 1
    index_pages = (int(tokens * ratio) * copies + page + 1) // page
    if launch.plan.has_indexer:
        found.append(Buffer(line="index-K", shape=(index_pages, page * INDEX_BYTES), count=layout.index_layers))
        if held > layout.index_layers:
            found.append(Buffer(line="index-K", shape=(0, page * INDEX_BYTES), count=held - layout.index_layers))
    if drafts:
        grows = scenario.offload and release.has("draft_times_ratio")
        rows = ((int(tokens * ratio) if grows else tokens) + page) * deployment.dcp
        found.append(Buffer(line="draft KV pool", shape=(rows, 1, row.bytes), count=drafts))
        if launch.plan.has_indexer:
            pages = index_pages if scenario.offload else rows // page
            found.append(Buffer(line="draft KV pool", shape=(pages, page * INDEX_BYTES), count=drafts))
    return tuple(found)


def request_buffers(requests: Requests) -> tuple[Buffer, ...]:
    """The table of every request's tokens."""
    return (Buffer(line="request to token table", shape=(requests.rows, requests.cols), dtype="int32"),)


def offload_buffers(
    launch: Launch, layout: Layout, requests: Requests, slots: int, logical_tokens: int
) -> tuple[Buffer, ...]:
    """HiSparse: maps, LRU order and miss plan of each request row, and the host pool; `slots` of one hot buffer."""
    page, top_k, rows = layout.row.page_tokens, launch.model.index_topk or 0, requests.rows
    layers = layout.stage[1] - layout.stage[0]
    host_pages = logical_tokens // page + 1
    return (
        *table_buffers(layers, rows, slots, page, top_k=top_k, output=top_k, columns=requests.cols + page),
        *_prefetch_buffers(launch, layers, rows, top_k),
        map_buffer(logical_tokens, page),
        *_swap_buffers(launch, layers, rows, top_k, slots),
        Buffer(line="host KV pool", shape=(host_pages * page, layout.row.bytes), count=layers, place="host"),
    )


def table_buffers(
    layers: int, rows: int, slots: int, page: int, *, top_k: int, output: int, columns: int
) -> tuple[Buffer, ...]:
    """The request tables of HiSparse for `layers` of swapped rows; pages of `page` slots."""
    line = "HiSparse request tables"
    return (
        Buffer(line=line, shape=(rows, slots + page), dtype="int64"),  # request to device buffer
        Buffer(line=line, shape=(rows, columns), dtype="int64"),  # request to host pool
        Buffer(line=line, shape=(layers, rows, slots + page), dtype="int32", count=2),  # tokens, device rows
        Buffer(line=line, shape=(layers, rows, slots), dtype="int16"),  # LRU order
        Buffer(line=line, shape=(rows, output), dtype="int32"),  # device rows
        Buffer(line=line, shape=(rows, top_k), dtype="int32"),  # raw indices
        Buffer(line=line, shape=(slots,), dtype="int32"),  # initial tokens
        Buffer(line=line, shape=(slots,), dtype="int16"),  # initial order
        Buffer(line=line, shape=(1,), dtype="int32"),  # real requests
    )


def map_buffer(logical: int, page: int) -> Buffer:
    """Device slots of logical ones."""
    return Buffer(line="logical to device map", shape=(logical + page + 1,), dtype="int64")


def _prefetch_buffers(launch: Launch, layers: int, rows: int, top_k: int) -> tuple[Buffer, ...]:
    """The miss plan that skip layers replay (#34329): off with pipeline stages, and with drafts before 0.5.22."""
    plan, release, deployment = launch.plan, launch.release, launch.loaded.spec.deployment
    drafts = draft_tokens(deployment)
    if not release.has("hisparse_prefetch") or plan.skip_layers == 0 or layers != len(plan.pattern):
        return ()
    if drafts > 1 and not release.has("draft_times_ratio"):
        return ()
    line = "HiSparse request tables"
    return (
        Buffer(line=line, shape=(rows, top_k * drafts), dtype="int64"),  # host rows
        Buffer(line=line, shape=(rows, top_k * drafts), dtype="int32"),  # device rows
        Buffer(line=line, shape=(rows,), dtype="int32"),  # misses
    )


def _swap_buffers(launch: Launch, layers: int, rows: int, top_k: int, slots: int) -> tuple[Buffer, ...]:
    """State of the multi-step swap-in under speculation, from 0.5.22 on (#32162)."""
    drafts = draft_tokens(launch.loaded.spec.deployment)
    if drafts == 1 or not launch.release.has("draft_times_ratio"):
        return ()
    line, width = "HiSparse speculative swap state", drafts * top_k
    hashed = 1 << max(1, (2 * slots - 1).bit_length())
    return (
        Buffer(line=line, shape=(layers, rows, 2, hashed), dtype="int64"),
        Buffer(line=line, shape=(layers, rows + 1, slots), dtype="int32"),
        Buffer(line=line, shape=(rows + 1, max(4 * rows, 5 * width)), dtype="int32"),
        Buffer(line=line, shape=(layers, rows, min(width, max(1024, width - slots))), dtype="int32"),
        Buffer(line=line, shape=(rows, width), dtype="int32"),
        Buffer(line=line, shape=(2, slots), dtype="int64"),
    )
