"""Which kind of cache a family has in vLLM: a family of a known kind is one line here."""

from __future__ import annotations

from hsplan.engines.vllm.block_sparse import BlockSparseCache
from hsplan.engines.vllm.cache import Cache
from hsplan.engines.vllm.compressed import CompressedCache
from hsplan.engines.vllm.latent import LatentCache
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import FAMILIES, Model, deepseek_v4
from hsplan.spec import Loaded

CACHES: dict[str, Cache] = {
    "deepseek": LatentCache(),
    "deepseek_v4": CompressedCache(),
    "minimax_m3": BlockSparseCache(),
}
# V4.1 is refused by its kind.
ARCHITECTURES = tuple(
    name for family in FAMILIES if family.NAME in CACHES for name in family.ARCHITECTURES if name != deepseek_v4.V41
)


def cache_of(loaded: Loaded, model: Model) -> Cache:
    """The kind of a model; raises UnsupportedError, with the known architectures, for one that vLLM's side lacks."""
    cache = CACHES.get(model.family)
    if cache is None:
        what = f"hsplan does not know how vLLM sizes {model.architecture}"
        remedy = "known for vLLM: " + ", ".join(ARCHITECTURES)
        raise UnsupportedError(Problem(where=loaded.where("model.architectures"), what=what, remedy=remedy))
    return cache
