"""MiniMax-M3's pools on one rank as ledger lines and as tensors; sources as in block_sparse.py."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Buffer, Launch, Layout, Line
from hsplan.engines.sglang.buffers import map_buffer, table_buffers
from hsplan.engines.sglang.hisparse import SwapTables, host_line, host_pool, table_lines
from hsplan.families import BlockSparse


def pool_lines(
    launch: Launch, layout: Layout, index_bytes: int, tokens: int, logical: int, *, offload: bool
) -> Iterator[Line]:
    """K and V of dense and sparse layers, and the index; under offload dense layers and index span all tokens."""
    row, page = layout.row.bytes, layout.row.page_tokens
    sparse = launch.plan.owners_in(*layout.stage)
    dense = layout.stage[1] - layout.stage[0] - sparse
    if offload and dense:
        yield _line("dense KV rows", logical, page, row, dense)
    yield _line("KV rows", tokens, page, row, sparse if offload else dense + sparse)
    vectors = index_vectors(launch, layout.stage)
    if vectors:
        yield _line("index-K", logical, page, index_bytes, vectors)


def _line(name: str, tokens: int, page: int, size: int, layers: int) -> Line:
    formula = f"({tokens:,} + {page}) tokens × {size} B × {layers} layers"
    return Line(name=name, bytes=(tokens + page) * size * layers, formula=formula, evidence="engine_code")


def index_vectors(launch: Launch, stage: tuple[int, int]) -> int:
    """Index keys, and index values where they are kept."""
    kv, (first, end) = launch.model.kv, stage
    assert isinstance(kv, BlockSparse)  # noqa: S101
    return launch.plan.owners_in(first, end) + sum(first <= layer < end for layer in kv.index_values)


def pool_buffers(
    launch: Launch, layout: Layout, index_bytes: int, tokens: int, logical: int, *, offload: bool
) -> Iterator[Buffer]:
    """A tensor of K and one of V a layer, a page to spare; one of index keys a sparse layer, and its values."""
    page, half = layout.row.page_tokens, layout.row.bytes // 2
    kinds = launch.plan.pattern[slice(*layout.stage)]
    own = {"F": tokens, "D": logical if offload else tokens}
    for letter, line in (("D", "dense KV rows" if offload else "KV rows"), ("F", "KV rows")):
        yield Buffer(line=line, shape=(own[letter] + page, half), count=2 * kinds.count(letter))
    yield Buffer(line="index-K", shape=(logical + page, index_bytes), count=index_vectors(launch, layout.stage))


def swap_lines(layout: Layout, swap: SwapTables) -> list[Line]:
    """Tables on the GPU, and K and V of the sparse layers in host memory."""
    host_tokens, host_bytes = host_pool(swap.logical, swap.buffer.page_tokens, layout.row.bytes, swap.layers)
    return [*table_lines(swap), host_line(host_tokens, host_bytes, layout.row.bytes, swap.layers)]


def swap_buffers(layout: Layout, swap: SwapTables) -> tuple[Buffer, ...]:
    """The same by shape; K and V lie apart in host memory."""
    slots, page = swap.buffer.slots, swap.buffer.page_tokens
    rows = (swap.logical // page + 1) * page
    return (
        *table_buffers(swap.layers, swap.rows, slots, page, top_k=swap.top_k, output=swap.output, columns=swap.columns),
        map_buffer(swap.logical, page),
        Buffer(line="host KV pool", shape=(rows, layout.row.bytes // 2), count=2 * swap.layers, place="host"),
    )
