"""
Pages and groups: what one block of the pool holds, without HiSparse and with it.

Sources: kv_cache_planning.py and hisparse/layout.py of 0.33.0; the same sums stand in 0.24.0 to 0.32.0.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from hsplan.engines.base import Row
from hsplan.units import ceil_div


class Layers(msgspec.Struct, frozen=True, gc=False):
    """Layers that hold KV rows on one stage, draft layers included, and which of them own an indexer (`leaders`)."""

    leaders: tuple[bool, ...]
    has_indexer: bool

    @property
    def rows(self) -> int:
        """Layers with KV rows."""
        return len(self.leaders)

    @property
    def index(self) -> int:
        """Layers with index-K."""
        return sum(self.leaders) if self.has_indexer else 0


class Packing(msgspec.Struct, frozen=True, gc=False):
    """
    The GPU pool under HiSparse: one block size for the indexer group, and for a hot and a resident group each.

    `hot` lists the layers of each hot group; `index_page` and `block` are bytes.
    """

    hot: tuple[int, ...]
    index_page: int
    block: int

    @property
    def device_groups(self) -> int:
        """Groups that share the pool: the indexer's, and two for each set of layers."""
        return 1 + 2 * len(self.hot)


def plain_page(row: Row, index_row: int, layers: Layers) -> int:
    """Bytes of one block without HiSparse: all MLA and indexer pages are one group, its page is their sum."""
    return row.page_tokens * (layers.rows * row.bytes + layers.index * index_row)


@lru_cache(maxsize=1024)
def packing(page_tokens: int, row_bytes: int, index_row: int, layers: Layers) -> Packing:
    """
    Layers packed into hot groups, in order and by whole index groups, as long as a group is no larger than the indexer.

    A block holds the largest group and is a whole number of one layer's pages.
    """
    layer_page = page_tokens * row_bytes
    index_page = page_tokens * layers.index * index_row
    groups: list[int] = []
    for unit in _units(layers.leaders):
        if groups and (groups[-1] + unit) * layer_page <= index_page:
            groups[-1] += unit
        else:
            groups.append(unit)
    largest = max(index_page, max(groups) * layer_page)
    return Packing(tuple(groups), index_page, ceil_div(largest, layer_page) * layer_page)


def _units(leaders: tuple[bool, ...]) -> list[int]:
    """Layers of each index group: an owner and those that reuse its top-k."""
    units: list[int] = []
    for leader in leaders:
        if leader or not units:
            units.append(0)
        units[-1] += 1
    return units
