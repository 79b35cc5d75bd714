"""What a model family tells the rest: a `Model`, its layer plan and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Shard = Literal["replicated", "attention", "kv", "dense", "expert", "shared", "embed", "head"]
# Where a tensor stands: in every attention layer, in layers that own an indexer, in dense or in MoE layers, at the
# start or at the end of the model, in an MTP layer, or in the checkpoint of an MTP layer only. The last ones stand in
# the layers that the inventory lists for them.
Unit = Literal[
    "layer", "owner", "dense", "moe", "first", "last", "mtp", "mtp_copy", "ratio4", "ratio128", "hash", "unhashed"
]
# What a letter of a layer pattern says of the layer.
LETTERS = {
    "F": "computes top-k",
    "S": "reuses it",
    "M": "has no indexer",
    "H": "compresses 128 tokens to one",
    "W": "sees the window only",
    "D": "sees all tokens",
}


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
    dtype: Literal["linear", "bf16", "fp32", "int64"] = "linear"
    count: int = 1

    @property
    def elements(self) -> int:
        """Parameters in one unit."""
        return self.rows * self.cols * self.count


class Inventory(msgspec.Struct, frozen=True, eq=False):
    """
    All tensors of a model, and how many dense and MTP layers its whole stack has.

    `where` lists the layers of units that are neither every layer nor a range. Compared by identity: families cache it
    by the fields it is made of, so that weights can be cached by it.
    """

    tensors: tuple[Tensor, ...]
    dense_layers: int
    mtp_layers: int
    where: Mapping[Unit, tuple[int, ...]] = {}

    def parameters(self, units: Mapping[Unit, int]) -> int:
        """Parameters in the given units: the whole model, or a part of it."""
        return sum(tensor.elements * units.get(tensor.unit, 0) for tensor in self.tensors)


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """
    Compressed KV, DeepSeek-V4: one latent entry of `head_dim` for each `ratios[layer]` tokens (0: none), and a window.

    `entries` is the length of compress_ratios as written, draft layers included. `sources` are the layers whose
    entries of ratio 1 and 2 the layers after them read; `groups` those of the output projection, None when not said.
    """

    ratios: tuple[int, ...]
    entries: int
    window: int
    head_dim: int
    sources: tuple[int, ...] = ()
    groups: int | None = None

    @property
    def words(self) -> str:
        """The layout for a reader."""
        return f"one entry of {self.head_dim} for 1 to 128 tokens, window {self.window}"


class BlockSparse(msgspec.Struct, frozen=True, kw_only=True):
    """
    K and V of grouped heads, and a K-only index beside sparse layers, MiniMax-M3.

    `index_values`: sparse layers whose index keeps values too. `packed`: a checkpoint that Blackwell serves from
    packed pages of its own.
    """

    kv_heads: int
    head_dim: int
    index_dim: int
    index_heads: int
    index_values: frozenset[int]
    packed: bool

    @property
    def words(self) -> str:
        """The layout for a reader."""
        return f"K and V of {self.kv_heads} heads × {self.head_dim}, index key {self.index_dim}"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """
    A model as its family reads it.

    `num_attention_layers` counts layers that hold KV rows, draft layers excluded, `sub_layers` those in one block of
    the checkpoint. `index_topk` is None when the model has no top-k indexer. `kv` says how KV lies where it is no MLA
    latent; `pattern` is given where the family knows its layers, `shares_keys` when layers that reuse top-k have no
    index key of their own. `quantization` is the quantization_config, with what the family adds to it. `missing` names
    the fields that the tensor inventory would need; with any of them absent `inventory` is None.
    `draft_rope_caches` are those that MTP layers need beside the model's own.
    """

    family: str
    architecture: str
    num_attention_layers: int
    kv_lora_rank: int = 0
    qk_rope_head_dim: int
    kv: Compressed | BlockSparse | None = None
    pattern: str = ""
    shares_keys: bool = False
    index_topk: int | None
    index_head_dim: int | None
    schedule: Mapping[str, Any] = {}
    max_position_embeddings: int | None
    num_attention_heads: int | None
    sub_layers: int = 1
    mtp_layers: int
    multimodal: bool
    indexer_fused: bool = False
    absorbed_elements: int = 0
    experts_per_token: int | None = None
    rope_rows: int
    rope_caches: int
    draft_rope_caches: int = 0
    inventory: Inventory | None
    missing: tuple[str, ...]
    quantization: Mapping[str, Any] | None
    ignored_fields: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def kv_words(self) -> str:
        """How KV lies, for a reader."""
        latent = f"kv_lora_rank {self.kv_lora_rank} + qk_rope_head_dim {self.qk_rope_head_dim}"
        return latent if self.kv is None else self.kv.words


class LayerPlan(msgspec.Struct, frozen=True):
    """
    Which layers compute top-k, and the stages of the pipeline.

    `pattern` has a letter of `LETTERS` a layer, by global id. `shares_keys`: layers that reuse top-k have no index
    key of their own, whatever an engine does.
    """

    pattern: str
    stages: tuple[tuple[int, int], ...]
    shares_keys: bool = False

    @property
    def owners(self) -> tuple[bool, ...]:
        """One flag a layer: False where it reuses the top-k of another."""
        return tuple(letter != "S" for letter in self.pattern)

    @property
    def has_indexer(self) -> bool:
        """Whether any layer computes top-k."""
        return "F" in self.pattern

    @property
    def owner_ids(self) -> list[int]:
        """Global ids of the layers that compute top-k."""
        return [i for i, letter in enumerate(self.pattern) if letter == "F"]

    @property
    def skip_layers(self) -> int:
        """Layers of the whole model that reuse another layer's top-k."""
        return self.pattern.count("S")

    @property
    def elidable(self) -> int:
        """Skip layers that hold an index key of their own unless an engine leaves it out."""
        return 0 if self.shares_keys else self.skip_layers

    def owners_in(self, first: int, end: int) -> int:
        """Owner layers among the global ids [first, end)."""
        return self.pattern.count("F", first, end)

    def indexed_in(self, first: int, end: int) -> int:
        """Owner and skip layers among the global ids [first, end)."""
        return self.owners_in(first, end) + self.pattern.count("S", first, end)
