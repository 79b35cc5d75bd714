"""
The ledger of DeepSeek-V4's pools on one rank, and of HiSparse on its entries of ratio 4.

Sources: deepseek_v4_memory_pool.py, deepseek_v4_compress_state.py, allocator/swa.py and hisparse_coordinator.py of
0.5.17 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import CompressedPools, Launch, Line
from hsplan.engines.sglang.cell import INDEX_BYTES
from hsplan.engines.sglang.compressed.rates import (
    INDEX_VALUES,
    LOW_INDEX_BYTES,
    LOW_INDEX_PAGE,
    STATE_VALUE_BYTES,
    low_index_pages,
    state_rows,
)
from hsplan.engines.sglang.compressed.sizing import PAGE, Entry, Sizing
from hsplan.engines.sglang.hisparse import HotBuffer, SwapTables, host_line, table_lines
from hsplan.engines.sglang.requests import Requests
from hsplan.units import ceil_div


def pool_pages(slots: int, page: int, *, padded: bool) -> int:
    """Pages of a pool: a whole logical page of 256 slots to spare where it is padded, else one slot."""
    return ceil_div(slots + PAGE, page) if padded else (slots + page + 1) // page


def compressed_lines(
    launch: Launch, sizing: Sizing, found: CompressedPools, requests: Requests, tokens: int
) -> Iterator[Line]:
    """Every pool of the stage, its draft's windows, and the map from tokens to windows."""
    shape, main, drafts = sizing.shape, sizing.main, launch.loaded.spec.deployment.draft_layers
    yield _pages("window KV", sizing, found.swa_tokens, PAGE, main, shape.layers)
    if drafts:
        yield _pages("draft window KV", sizing, found.swa_tokens, PAGE, main, drafts)
    if shape.c4:
        yield _pages("ratio-4 KV", sizing, found.c4_tokens, PAGE // 4, main, shape.c4)
    if shape.c128:
        yield _pages("ratio-128 KV", sizing, found.c128_tokens, PAGE // 128, main, shape.c128)
    for ratio, layers in ((2, shape.c2), (1, shape.c1)):
        if layers:
            yield _pages(f"ratio-{ratio} KV", sizing, tokens // ratio, PAGE // ratio, sizing.low, layers)
    yield from _index_lines(sizing, found, tokens)
    yield from _state_lines(sizing, found, requests)
    slots = tokens + PAGE + 1
    yield Line(name="token to window map", bytes=8 * slots, formula=f"8 B × {slots:,} tokens", evidence="engine_code")


def _pages(name: str, sizing: Sizing, slots: int, page: int, entry: Entry, layers: int) -> Line:
    pages, size = pool_pages(slots, page, padded=sizing.padded), entry.page_bytes(page)
    formula = f"{pages:,} pages of {page} × {size:,} B × {layers} layers"
    return Line(name=name, bytes=pages * size * layers, formula=formula, evidence="engine_code")


def _index_lines(sizing: Sizing, found: CompressedPools, tokens: int) -> Iterator[Line]:
    """Keys of every logical entry of ratio 4 stay on the GPU; those of ratio 1 and 2 lie with their sources."""
    shape = sizing.shape
    if shape.c4:
        pages = pool_pages(found.c128_tokens * 32, PAGE // 4, padded=sizing.index_padded)
        size = PAGE // 4 * INDEX_BYTES
        formula = f"{pages:,} pages × {size:,} B × {shape.c4} layers"
        yield Line(name="index-K", bytes=pages * size * shape.c4, formula=formula, evidence="engine_code")
    for ratio, layers in ((2, shape.c2), (1, shape.c1)):
        if layers:
            pages, size = low_index_pages(tokens, ratio), LOW_INDEX_PAGE * LOW_INDEX_BYTES
            yield Line(
                name=f"index-K, ratio {ratio}",
                bytes=pages * size * layers,
                formula=f"{pages:,} pages × {size:,} B × {layers} source layers",
                evidence="engine_code",
            )


def _state_lines(sizing: Sizing, found: CompressedPools, requests: Requests) -> Iterator[Line]:
    """Running state of the compressors, fp32: by window page for ratio 4, by request for the others."""
    shape, rings, width = sizing.shape, sizing.rings, sizing.head_dim * STATE_VALUE_BYTES
    if shape.c4:
        rows = ceil_div(found.c4_state + rings.c4 + 1, 4) * 4
        size = 4 * (sizing.head_dim + INDEX_VALUES) * STATE_VALUE_BYTES
        formula = f"{rows:,} rows × {size:,} B × {shape.c4} layers"
        yield Line(name="ratio-4 state", bytes=rows * size * shape.c4, formula=formula, evidence="engine_code")
    for ratio, ring, layers in ((128, rings.c128, shape.c128), (2, rings.c2, shape.c2)):
        if layers:
            rows = state_rows(ring, _state_slots(sizing, found, requests), ratio)
            formula = f"{rows:,} rows × {2 * width:,} B × {layers} layers"
            size = rows * 2 * width * layers
            yield Line(name=f"ratio-{ratio} state", bytes=size, formula=formula, evidence="engine_code")


def _state_slots(sizing: Sizing, found: CompressedPools, requests: Requests) -> int:
    """Rings of state: one a request row; builds of May 2026 one a window."""
    return found.swa_tokens // sizing.window if sizing.by_token else requests.rows


def swap_of(launch: Launch, sizing: Sizing, slots: int, requests: Requests, tokens: int) -> SwapTables:
    """HiSparse's tables: entries of ratio 4, so a quarter of the tokens."""
    buffer, top_k = HotBuffer(slots, PAGE // 4), launch.model.index_topk or 0
    return SwapTables(
        layers=sizing.shape.c4,
        rows=requests.rows,
        buffer=buffer,
        top_k=top_k,
        output=top_k,
        columns=ceil_div(requests.cols, 4) + buffer.page_tokens,
        logical=tokens // 128 * 32,
    )


def swap_lines(sizing: Sizing, swap: SwapTables, tokens: int) -> list[Line]:
    """Tables on the GPU and the host pool."""
    host_tokens, host_bytes = host_pool(sizing, tokens)
    entry_bytes = host_bytes // (host_tokens // 4 * sizing.shape.c4) if host_tokens else 0
    return [*table_lines(swap), host_line(host_tokens // 4, host_bytes, entry_bytes, sizing.shape.c4)]


def host_pool(sizing: Sizing, tokens: int) -> tuple[int, int]:
    """Tokens that the host pool of one rank holds, and its bytes: whole pages of entries of ratio 4."""
    pages = ceil_div(tokens // 4, PAGE // 4)
    return pages * PAGE, pages * sizing.main.page_bytes(PAGE // 4) * sizing.shape.c4
