"""Which kind of cache a family has: a family of a known kind is one line here."""

from __future__ import annotations

from hsplan.engines.sglang.block_sparse.cache import BlockSparseCache
from hsplan.engines.sglang.cache import Cache
from hsplan.engines.sglang.compressed.cache import CompressedCache
from hsplan.engines.sglang.latent import LatentCache

CACHES: dict[str, Cache] = {
    "deepseek": LatentCache(),
    "longcat": LatentCache(),
    "deepseek_v4": CompressedCache(),
    "minimax_m3": BlockSparseCache(),
}
