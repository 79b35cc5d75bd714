"""Which kind of cache a family has in vLLM: a family of a known kind is one line here."""

from __future__ import annotations

from hsplan.engines.vllm.block_sparse import BlockSparseCache
from hsplan.engines.vllm.cache import Cache
from hsplan.engines.vllm.compressed import CompressedCache
from hsplan.engines.vllm.latent import LatentCache
from hsplan.engines.vllm.sourced import SourcedCache
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import FAMILIES, Model, deepseek_v4
from hsplan.spec import Loaded

CACHES: dict[str, Cache] = {
    "deepseek": LatentCache(),
    "deepseek_v4": CompressedCache(),
    "minimax_m3": BlockSparseCache(),
}
# An architecture whose cache is not that of its family.
OF_ARCHITECTURE: dict[str, Cache] = {deepseek_v4.V41: SourcedCache()}
ARCHITECTURES = tuple(name for family in FAMILIES if family.NAME in CACHES for name in family.ARCHITECTURES)


def kind_of(model: Model) -> Cache:
    """The kind of a model that `cache_of` let pass."""
    return OF_ARCHITECTURE.get(model.architecture) or CACHES[model.family]


def cache_of(loaded: Loaded, model: Model) -> Cache:
    """The kind of a model; raises UnsupportedError, with the known architectures, for one that vLLM's side lacks."""
    if model.family not in CACHES:
        what = f"hsplan does not know how vLLM sizes {model.architecture}"
        remedy = "known for vLLM: " + ", ".join(ARCHITECTURES)
        raise UnsupportedError(Problem(where=loaded.where("model.architectures"), what=what, remedy=remedy))
    return kind_of(model)
