"""The tensors of DeepSeek-V4's pools, by the shapes that SGLang allocates; sources as in lines.py."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Buffer, CompressedPools, Launch
from hsplan.engines.sglang.buffers import map_buffer, table_buffers
from hsplan.engines.sglang.compressed.sizing import Sizing
from hsplan.engines.sglang.requests import Requests
from hsplan.units import ceil_div


def compressed_buffers(
    launch: Launch, sizing: Sizing, found: CompressedPools, requests: Requests, tokens: int
) -> Iterator[Buffer]:
    """Pages of every pool, a tensor a layer; state in fp32."""
    shape, drafts = sizing.shape, launch.loaded.spec.deployment.draft_layers
    padded = sizing.padded
    windows = _pages(found.swa_tokens, 256, padded=padded)
    yield _kv("window KV", windows, sizing.main.page_bytes(256), shape.layers)
    yield _kv("draft window KV", windows, sizing.main.page_bytes(256), drafts)
    yield _kv("ratio-4 KV", _pages(found.c4_tokens, 64, padded=padded), sizing.main.page_bytes(64), shape.c4)
    yield _kv("ratio-128 KV", _pages(found.c128_tokens, 2, padded=padded), sizing.main.page_bytes(2), shape.c128)
    yield _kv("ratio-2 KV", _pages(tokens // 2, 128, padded=padded), sizing.low.page_bytes(128), shape.c2)
    yield _kv("ratio-1 KV", _pages(tokens, 256, padded=padded), sizing.low.page_bytes(256), shape.c1)
    yield _kv("index-K", _pages(found.c128_tokens * 32, 64, padded=sizing.index_padded), 64 * 132, shape.c4)
    yield _kv("index-K, ratio 2", ceil_div((tokens + 256) // 2 + 64, 64), 64 * 68, shape.c2)
    yield _kv("index-K, ratio 1", ceil_div(tokens + 256 + 64, 64), 64 * 68, shape.c1)
    yield from _state(sizing, found, requests)
    yield Buffer(line="token to window map", shape=(tokens + 256 + 1,), dtype="int64")


def _pages(slots: int, page: int, *, padded: bool) -> int:
    return ceil_div(slots + 256, page) if padded else (slots + page + 1) // page


def _kv(line: str, pages: int, page_bytes: int, layers: int) -> Buffer:
    return Buffer(line=line, shape=(pages, page_bytes), count=layers)


def _state(sizing: Sizing, found: CompressedPools, requests: Requests) -> Iterator[Buffer]:
    """Values and scores of the tokens that are not compressed yet; ratio 4 overlaps, so twice as wide."""
    shape, rings, dim = sizing.shape, sizing.rings, sizing.head_dim
    rows = ceil_div(found.c4_state + rings.c4 + 1, 4) * 4
    yield Buffer(line="ratio-4 state", shape=(rows, 4 * dim), dtype="float32", count=shape.c4)
    yield Buffer(line="ratio-4 state", shape=(rows, 4 * 128), dtype="float32", count=shape.c4)
    slots = found.swa_tokens // sizing.window if sizing.by_token else requests.rows
    for ratio, ring, layers in ((128, rings.c128, shape.c128), (2, rings.c2, shape.c2)):
        rows = ceil_div(slots * ring + ring + 1, ratio) * ratio
        yield Buffer(line=f"ratio-{ratio} state", shape=(rows, 2 * dim), dtype="float32", count=layers)


def swap_buffers(launch: Launch, sizing: Sizing, slots: int, requests: Requests, tokens: int) -> tuple[Buffer, ...]:
    """HiSparse on entries of ratio 4, in pages of 64: tables on the GPU, pages in host memory."""
    layers, top_k = sizing.shape.c4, launch.model.index_topk or 0
    columns = ceil_div(requests.cols, 4) + 64
    host_pages = ceil_div(tokens // 4, 64)
    return (
        *table_buffers(layers, requests.rows, slots, 64, top_k=top_k, output=top_k, columns=columns),
        map_buffer(tokens // 128 * 32, 64),
        Buffer(line="host KV pool", shape=(host_pages, sizing.main.page_bytes(64)), count=layers, place="host"),
    )
