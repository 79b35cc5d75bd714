"""
MiniMax-M3: grouped-query attention, block-sparse in most layers with a K-only index, and mixture of experts.

The tensor inventory closes on the 426,174,572,928 parameters of the language model (tests/unit/test_inventory.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem
from hsplan.families.base import BlockSparse, Inventory, Model, Tensor
from hsplan.families.fields import Dim, Layers, Small, Tokens, read_fields
from hsplan.spec import Loaded

NAME = "minimax_m3"
WITH_VISION = "MiniMaxM3SparseForConditionalGeneration"
ARCHITECTURES = ("MiniMaxM3SparseForCausalLM", WITH_VISION)
WEIGHT_FIELDS = (
    "hidden_size", "num_local_experts", "n_shared_experts", "shared_intermediate_size", "dense_intermediate_size",
    "intermediate_size", "vocab_size",
)  # fmt: skip
# M3's rotary part; the checkpoint's own field for it is not in every copy of the config.
ROTARY_DIM = 64
HARMLESS = frozenset(
    "num_mtp_modules partial_rotary_factor qk_norm_type rotary_dim swiglu_alpha swiglu_limit use_qk_norm".split()
)
Flags = Annotated[tuple[Annotated[int, Meta(ge=0, le=1)], ...], Meta(max_length=4096)]


class SparseFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of sparse_attention_config; flags are one a layer."""

    sparse_attention_freq: Flags
    sparse_index_dim: Dim
    sparse_num_index_heads: Dim
    sparse_topk_blocks: Dim
    sparse_block_size: Dim
    sparse_disable_index_value: Flags | None = None
    use_sparse_attention: bool = True
    sparse_score_type: str = "max"
    sparse_init_block: Small = 0
    sparse_local_block: Small = 0


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The config.json fields that this family reads."""

    architectures: tuple[str, ...]
    num_hidden_layers: Layers
    num_attention_heads: Dim
    num_key_value_heads: Dim
    head_dim: Dim
    sparse_attention_config: SparseFields
    moe_layer_freq: Flags | None = None
    max_position_embeddings: Tokens | None = None
    hidden_size: Dim | None = None
    num_local_experts: Dim | None = None
    n_shared_experts: Small | None = None
    num_experts_per_tok: Dim | None = None
    shared_intermediate_size: Small | None = None
    dense_intermediate_size: Dim | None = None
    intermediate_size: Dim | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=2**26)] | None = None


def read(model: Mapping[str, Any], architecture: str, loaded: Loaded) -> Model:
    """The model behind the config fields; raises InputError or UnsupportedError for fields it cannot take."""
    fields, ignored = read_fields(Fields, model, loaded, HARMLESS)
    sparse = fields.sparse_attention_config
    _check_lengths(fields, loaded)
    no_values = sparse.sparse_disable_index_value or (0,) * fields.num_hidden_layers
    layers = enumerate(zip(sparse.sparse_attention_freq, no_values, strict=True))
    missing = _missing(fields)
    quantization = model.get("quantization_config")
    return Model(
        family=NAME,
        architecture=architecture,
        num_attention_layers=fields.num_hidden_layers,
        qk_rope_head_dim=ROTARY_DIM,
        kv=BlockSparse(
            kv_heads=fields.num_key_value_heads,
            head_dim=fields.head_dim,
            index_dim=sparse.sparse_index_dim,
            index_heads=sparse.sparse_num_index_heads,
            index_values=frozenset(i for i, (is_sparse, no_value) in layers if is_sparse and not no_value),
            packed=isinstance(quantization, Mapping) and quantization.get("moe_quant_algo") == "NVFP4",
        ),
        pattern="".join("DF"[flag] for flag in sparse.sparse_attention_freq),
        index_topk=sparse.sparse_topk_blocks * sparse.sparse_block_size,
        index_head_dim=sparse.sparse_index_dim,
        max_position_embeddings=fields.max_position_embeddings,
        num_attention_heads=fields.num_attention_heads,
        mtp_layers=0,  # the published checkpoint closes without MTP weights
        multimodal=False,
        experts_per_token=fields.num_experts_per_tok,
        rope_rows=fields.max_position_embeddings or 0,
        rope_caches=1,
        inventory=None if missing else _inventory(fields),
        missing=missing,
        quantization=quantization,
        ignored_fields=ignored,
        notes=_notes(architecture),
    )


def _check_lengths(fields: Fields, loaded: Loaded) -> None:
    sparse = fields.sparse_attention_config
    for name in ("sparse_attention_freq", "sparse_disable_index_value"):
        flags = getattr(sparse, name)
        if flags is not None and len(flags) != fields.num_hidden_layers:
            what = f"{name} has {len(flags)} flags for {fields.num_hidden_layers} layers"
            where = loaded.where("model.sparse_attention_config")
            raise InputError(Problem(where=where, what=what, remedy="give one a layer, as in config.json"))


def _missing(fields: Fields) -> tuple[str, ...]:
    missing = tuple(name for name in WEIGHT_FIELDS if getattr(fields, name) is None)
    dense = _dense_layers(fields)
    freq = fields.moe_layer_freq
    if freq is None or freq != (0,) * dense + (1,) * (fields.num_hidden_layers - dense):
        missing = (*missing, "moe_layer_freq (dense layers first, one flag a layer)")
    return missing


def _dense_layers(fields: Fields) -> int:
    return (fields.moe_layer_freq or ()).count(0)


def _notes(architecture: str) -> tuple[str, ...]:
    if architecture != WITH_VISION:
        return ()
    return ("the vision tower (about 0.87 B parameters) and its share of mem_fraction are not counted",)


@lru_cache(maxsize=256)
def _inventory(fields: Fields) -> Inventory:
    f: Any = fields
    h, sparse, vocab = f.hidden_size, f.sparse_attention_config, f.vocab_size
    return Inventory(
        tensors=(
            Tensor("model.embed_tokens", vocab, h, "first", "embed", dtype="bf16"),
            *_attention(f),
            Tensor("self_attn.index_q_proj", sparse.sparse_num_index_heads * sparse.sparse_index_dim, h, "owner", "kv"),
            Tensor("self_attn.index_k_proj", sparse.sparse_index_dim, h, "owner"),
            Tensor("self_attn.index_norms", 2 * sparse.sparse_index_dim, 1, "owner", dtype="bf16"),
            Tensor("mlp.gate_proj", f.dense_intermediate_size, h, "dense", "dense", count=2),
            Tensor("mlp.down_proj", h, f.dense_intermediate_size, "dense", "dense", "cols"),
            *_moe(f),
            Tensor("model.norm", h, 1, "last", dtype="bf16"),
            Tensor("lm_head", vocab, h, "last", "head", dtype="bf16"),
        ),
        dense_layers=_dense_layers(fields),
        mtp_layers=0,
    )


def _attention(f: Any) -> list[Tensor]:
    """Queries and output by head; keys and values by KV head, a copy on ranks beyond those."""
    h, dim = f.hidden_size, f.head_dim
    return [
        Tensor("self_attn.q_proj", f.num_attention_heads * dim, h, "layer", "attention"),
        Tensor("self_attn.kv_proj", f.num_key_value_heads * dim, h, "layer", "kv", count=2),
        Tensor("self_attn.o_proj", h, f.num_attention_heads * dim, "layer", "attention", "cols"),
        Tensor("norms", 2 * h + 2 * dim, 1, "layer", dtype="bf16"),
    ]


def _moe(f: Any) -> list[Tensor]:
    h, experts, width = f.hidden_size, f.num_local_experts, f.intermediate_size
    shared = f.n_shared_experts * f.shared_intermediate_size
    return [
        Tensor("mlp.gate", experts, h, "moe", dtype="fp32"),
        Tensor("mlp.gate.e_score_correction_bias", experts, 1, "moe", dtype="fp32"),
        Tensor("mlp.experts.0.gate_proj", width, h, "moe", "expert", count=2 * experts),
        Tensor("mlp.experts.0.down_proj", h, width, "moe", "expert", "cols", count=experts),
        Tensor("mlp.shared_experts.gate_proj", shared, h, "moe", "shared", count=2),
        Tensor("mlp.shared_experts.down_proj", h, shared, "moe", "shared", "cols"),
    ]
