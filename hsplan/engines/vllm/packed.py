"""
The groups of DeepSeek-V4 and V4.1 and the bytes of a block, by release.

Five kinds of caches have three sizes of blocks, so layers are cut into groups of about as many layers, and the groups
lie over each other in one slab. Sources: kv_cache_utils.py of 0.24.0 to 0.32.0 and kv_cache_planning.py of 0.33.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from hsplan.engines.vllm.groups import INDEX, BlockPool, Group, Part
from hsplan.engines.vllm.releases import Release
from hsplan.units import ceil_div

SLAB = "compressed KV, windows and state"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """
    Caches with the same block and window over the whole model: a page for each of `pages` and the layers that have it.

    `window` is None for full attention; a `ring` is one block a request. A page is written as a Part of one layer.
    """

    block_tokens: int
    window: int | None = None
    ring: bool = False
    pages: tuple[tuple[Part, tuple[int, ...]], ...]

    @property
    def repeats(self) -> int:
        """Layers of the page that most layers have."""
        return max(len(layers) for _, layers in self.pages)

    @property
    def balanced(self) -> bool:
        """Whether every page has as many layers, so that the layers can be cut into groups that are alike."""
        return len({len(layers) for _, layers in self.pages}) == 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its page sizes, each once."""
        return tuple(sorted({part.page_bytes for part, _ in self.pages}))


def packed_pool(kinds: Sequence[Kind], release: Release, held: Collection[int]) -> BlockPool:
    """The pool of a rank that holds the layers `held`; the first of `kinds` is full attention."""
    packed = release.has("v4_packed")
    full, *windows = kinds
    most = _layers_per_group(kinds, release)
    if not packed:
        windows = [_padded(kind, full.sizes) for kind in windows]
    cut = [full, *(part for kind in windows for part in _cut(kind, most))]
    groups = tuple(_group(kind, held) for kind in cut)
    block = max(group.page_bytes for group in groups) if packed else _slots(groups)
    # Before 0.29.0 the check counts whole tuples of the pages of full attention, as many as the largest group has.
    tuples = max(kind.repeats for kind in map(_merged, cut)) * sum(full.sizes)
    return BlockPool(
        groups=groups,
        block_bytes=block,
        check_bytes=block if release.has("null_block_reserved") else tuples,
        index_layers=sum(part.layers for part in groups[0].parts if part.name == INDEX),
        by_bytes=not packed,
        slab=SLAB,
    )


def sourced_pool(kinds: Sequence[Kind], release: Release, held: Collection[int], whole: int) -> BlockPool:
    """
    The pool of DeepSeek-V4.1: full attention whole, windows and rings cut to what a block of it holds.

    Windows are cut as V4's where the pages of full attention alternate, that is with sources of one ratio only, or as
    many of either. Bytes of a block are a multiple of `whole`. `_get_packed_kv_cache_groups` of 0.30.0 to 0.33.0.
    """
    full, *others = kinds
    most = _layers_per_group(kinds, release) if full.balanced else None
    cut, free = [full], [kind for kind in others if kind.ring or most is None]
    if most is not None:
        cut += [group for kind in others if not kind.ring for group in _cut(kind, most)]
    # `free` are cut by what a block holds; one that is larger than all else widens it.
    room = max(*(_whole_bytes(kind) for kind in cut), *(kind.sizes[0] for kind in free), 0)
    for kind in free:
        least = ceil_div(kind.repeats, most) if most else 1
        groups = max(least, ceil_div(kind.repeats, max(room // kind.sizes[0], 1)))
        cut += _dealt(kind, groups)
    found = tuple(_group(kind, held) for kind in cut)
    block = ceil_div(max(group.page_bytes for group in found), whole) * whole
    index = sum(part.layers for part in found[0].parts if part.name == INDEX)
    return BlockPool(groups=found, block_bytes=block, check_bytes=block, index_layers=index, slab=SLAB)


def _whole_bytes(kind: Kind) -> int:
    """Bytes of the pages of all its layers."""
    return sum(part.page_bytes * len(layers) for part, layers in kind.pages)


def _layers_per_group(kinds: Sequence[Kind], release: Release) -> int:
    """Layers of a group, so that cutting every kind into groups pads least (`_approximate_gcd`); ties take more."""
    full, *windows = kinds
    if release.has("null_block_reserved"):
        # 0.29.0: kinds whose pages do not alternate stay whole and say nothing.
        counts = [kind.repeats for kind in kinds if kind.balanced]
        least = max(kind.repeats for kind in kinds if kind.balanced and len(kind.sizes) > 1)
    else:
        counts, least = [kind.repeats for kind in (full, *windows)], full.repeats
    sizes = range(least, max(least, *counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


def _padded(kind: Kind, sizes: tuple[int, ...]) -> Kind:
    """Pages as large as the next larger one of full attention (before #48993)."""

    def pad(part: Part) -> Part:
        size = min(size for size in sizes if size >= part.page_bytes)
        return msgspec.structs.replace(part, padding=part.padding + size - part.page_bytes)

    return msgspec.structs.replace(kind, pages=tuple((pad(part), layers) for part, layers in kind.pages))


def _merged(kind: Kind) -> Kind:
    """The same with one entry a page size: pages that were padded alike are alike."""
    by_size: dict[int, tuple[Part, list[int]]] = {}
    for part, layers in kind.pages:
        by_size.setdefault(part.page_bytes, (part, []))[1].extend(layers)
    return msgspec.structs.replace(kind, pages=tuple((part, tuple(layers)) for part, layers in by_size.values()))


def _cut(kind: Kind, most: int) -> list[Kind]:
    """The kind in groups of at most `most` layers a page size, layers dealt in turn; whole if they do not alternate."""
    merged = _merged(kind)
    return _dealt(merged, ceil_div(merged.repeats, most) if merged.balanced else 1)


def _dealt(kind: Kind, groups: int) -> list[Kind]:
    """The kind in `groups` groups, layers dealt in turn."""
    return [
        msgspec.structs.replace(kind, pages=tuple((part, layers[i::groups]) for part, layers in kind.pages))
        for i in range(groups)
    ]


def _group(kind: Kind, held: Collection[int]) -> Group:
    """Its layers on a rank."""
    parts = (
        msgspec.structs.replace(part, layers=sum(layer in held for layer in layers)) for part, layers in kind.pages
    )
    return Group(parts=tuple(parts), block_tokens=kind.block_tokens, window=kind.window, ring=kind.ring)


def _slots(groups: Sequence[Group]) -> int:
    """Before #48993: a slot for each layer of the group that has most, page size by page size."""
    slots: Counter[int] = Counter()
    for group in groups:
        held: Counter[int] = Counter()
        for part in group.parts:
            held[part.page_bytes] += part.layers
        slots |= held  # the larger count of each page size
    return sum(size * count for size, count in slots.items())
