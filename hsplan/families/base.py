"""What a model family tells the rest: a `Model`, its layer plan and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Shard = Literal["replicated", "attention", "dense", "expert", "shared", "embed", "head"]
# Where a tensor stands: in every attention layer, in layers that own an indexer, in dense or in MoE layers, at the
# start or at the end of the model, in an MTP layer, or in the checkpoint of an MTP layer only.
Unit = Literal["layer", "owner", "dense", "moe", "first", "last", "mtp", "mtp_copy"]


class Tensor(msgspec.Struct, frozen=True):
    """
    One weight of a module: `count` matrices of `rows` × `cols` (out × in features) in each `unit`.

    `shard` says by what the engine divides it, `split` along which axis. `dtype` is that of the checkpoint;
    "linear" follows the checkpoint's number format. `module` is the name that quantisation lists use.
    """

    module: str
    rows: int
    cols: int
    unit: Unit
    shard: Shard = "replicated"
    split: Literal["rows", "cols"] = "rows"
    dtype: Literal["linear", "bf16", "fp32"] = "linear"
    count: int = 1

    @property
    def elements(self) -> int:
        """Parameters in one unit."""
        return self.rows * self.cols * self.count


class Inventory(msgspec.Struct, frozen=True, eq=False):
    """
    All tensors of a model, and how many dense and MTP layers its whole stack has.

    Compared by identity: families cache it by the fields it is made of, so that weights can be cached by it.
    """

    tensors: tuple[Tensor, ...]
    dense_layers: int
    mtp_layers: int

    def parameters(self, units: Mapping[Unit, int]) -> int:
        """Parameters in the given units: the whole model, or a part of it."""
        return sum(tensor.elements * units.get(tensor.unit, 0) for tensor in self.tensors)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """
    A model as its family reads it.

    `num_attention_layers` counts layers that hold KV rows, draft layers excluded, `sub_layers` those in one block of
    the checkpoint. `index_topk` is None when the model has no top-k indexer. `quantization` is the raw
    quantization_config. `missing` names the fields that the tensor inventory would need; with any of them absent
    `inventory` is None.
    """

    family: str
    architecture: str
    num_attention_layers: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    index_topk: int | None
    index_head_dim: int | None
    schedule: Mapping[str, Any]
    max_position_embeddings: int | None
    num_attention_heads: int | None
    sub_layers: int = 1
    mtp_layers: int
    multimodal: bool
    indexer_fused: bool
    absorbed_elements: int
    rope_rows: int
    rope_caches: int
    inventory: Inventory | None
    missing: tuple[str, ...]
    quantization: Mapping[str, Any] | None
    ignored_fields: tuple[str, ...]
    notes: tuple[str, ...] = ()


class LayerPlan(msgspec.Struct, frozen=True):
    """Which layers compute top-k (`owners`, one flag a layer, global ids) and the stages of the pipeline."""

    owners: tuple[bool, ...]
    has_indexer: bool
    stages: tuple[tuple[int, int], ...]

    @property
    def owner_ids(self) -> list[int]:
        """Global ids of the layers that own an index-K cache."""
        return [i for i, owner in enumerate(self.owners) if owner] if self.has_indexer else []

    @property
    def skip_layers(self) -> int:
        """Layers of the whole model that reuse another layer's top-k."""
        return self.owners.count(False)

    @property
    def pattern(self) -> str:
        """One letter a layer: F computes top-k, S shares it, M is plain MLA without an indexer."""
        return "".join("FS"[not owner] for owner in self.owners) if self.has_indexer else "M" * len(self.owners)

    def owners_in(self, first: int, end: int) -> int:
        """Owner layers among the global ids [first, end)."""
        return sum(self.owners[first:end]) if self.has_indexer else 0
