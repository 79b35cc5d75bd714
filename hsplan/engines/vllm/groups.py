"""
What a block of vLLM's pool holds without HiSparse: groups of layers, each with a table of blocks of its own.

MLA, DSA and MiniMax-M3 are one group; DeepSeek-V4 has several, and a block is given to one of them at a time.
Sources: kv_cache_utils.py and kv_cache_interface.py of 0.24.0 to 0.33.0.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Rates
from hsplan.units import ceil_div

KV, INDEX, DRAFT = "KV rows", "index-K", "draft KV pool"


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`layers` that keep the same page in a block: `rows` of `row_bytes`, and what the page is padded by."""

    name: str
    rows: int
    row_bytes: int
    layers: int
    padding: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer's page."""
        return self.rows * self.row_bytes + self.padding


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    Layers that share a table of blocks of `block_tokens`; with a `window` blocks that it left are free again.

    A `ring` is one block of a request, written over and over.
    """

    parts: tuple[Part, ...]
    block_tokens: int
    window: int | None = None
    ring: bool = False

    @property
    def page_bytes(self) -> int:
        """Bytes of the pages of all its layers."""
        return sum(part.page_bytes * part.layers for part in self.parts)

    def blocks(self, tokens: int, in_flight: int) -> int:
        """
        Blocks of one request of `tokens` with `in_flight` of them scheduled and not settled.

        A window may start inside a block, hence one block more (`max_admission_blocks_per_request`).
        """
        if self.ring:
            return 1
        if self.window is None:
            return ceil_div(tokens, self.block_tokens)
        return ceil_div(min(self.window - 1 + in_flight, tokens), self.block_tokens) + 1


class BlockPool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    The pool of one stage: its groups, the first one that of full attention, and bytes from one block to the next.

    The start-up check counts `check_bytes` for a block. `by_bytes`: a request is printed as its bytes in blocks of the
    first group (before #48317), not as the blocks of all groups. `slab` names the pool where groups lie over each
    other; without it every part is a tensor of its own.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    check_bytes: int
    index_layers: int
    by_bytes: bool = False
    slab: str = ""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of full attention."""
        return self.groups[0].block_tokens

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks that one request of `tokens` takes of the pool."""
        return sum(group.blocks(tokens, in_flight) for group in self.groups)

    def printed_blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks of a request as `get_max_concurrency_for_kv_cache_config` counts them."""
        if not self.by_bytes:
            return self.blocks(tokens, in_flight)
        total = sum(group.blocks(tokens, in_flight) * group.page_bytes for group in self.groups)
        return ceil_div(total, self.groups[0].page_bytes)

    def longest(self, usable_bytes: int, most: int, in_flight: int) -> int:
        """The longest request of at most `most` tokens that the start-up check lets pass; 0 when none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(middle, in_flight) * self.check_bytes <= usable_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def one_group(parts: tuple[Part, ...], block_tokens: int) -> BlockPool:
    """The pool of a model whose layers all keep all tokens: a block holds the pages of all of them."""
    parts = tuple(part for part in parts if part.layers)
    group = Group(parts=parts, block_tokens=block_tokens)
    index = sum(part.layers for part in parts if part.name == INDEX)
    return BlockPool(groups=(group,), block_bytes=group.page_bytes, check_bytes=group.page_bytes, index_layers=index)


def rates_of(pool: BlockPool) -> Rates | None:
    """Bytes per token of one group by its parts; None where groups lie over each other: no one rate exists."""
    if pool.slab:
        return None
    stored = {part.name: part.row_bytes * part.layers for part in pool.groups[0].parts}
    return Rates(
        charged=sum(stored.values()),
        draft=stored.get(DRAFT, 0),
        stored_kv=stored.get(KV, 0),
        stored_index=stored.get(INDEX, 0),
        stored_draft=stored.get(DRAFT, 0),
    )
