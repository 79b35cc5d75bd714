"""
LongCat: blocks of two MLA sub-layers, shortcut MoE with zero experts, and the indexer shared by `cli_factor`.

Layer ids count attention sub-layers: 2·block + i. Sizes of LongcatFlashForCausalLM follow SGLang 0.5.17 to 0.5.23;
LongcatCausalLM, the architecture of the sparse checkpoints, is registered by none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem
from hsplan.families.base import Inventory, Model, Tensor
from hsplan.families.deepseek import SCHEDULE, attention_tensors, indexer_tensors, rope_rows
from hsplan.families.fields import Dim, Freq, Layers, Small, Tokens, read_fields
from hsplan.spec import Loaded

NAME = "longcat"
REGISTERED = "LongcatFlashForCausalLM"
ARCHITECTURES = (REGISTERED, "LongcatCausalLM")
WEIGHT_FIELDS = (
    "hidden_size", "num_attention_heads", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "n_routed_experts",
    "zero_expert_num", "expert_ffn_hidden_size", "ffn_hidden_size", "vocab_size",
)  # fmt: skip


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The config.json fields that this family reads; `num_layers` counts blocks."""

    architectures: list[str]
    num_layers: Annotated[int, Meta(ge=1, le=2048)] | None = None
    num_hidden_layers: Layers | None = None
    kv_lora_rank: Dim
    qk_rope_head_dim: Dim
    index_topk: Dim | None = None
    index_head_dim: Dim | None = None
    index_n_heads: Dim | None = None
    index_k_norm_type: str | None = None
    index_init_tokens: Small | None = None
    index_local_tokens: Small | None = None
    indexer_types: Annotated[list[str], Meta(max_length=4096)] | None = None
    cli_factor: Freq | None = None
    index_topk_pattern: Annotated[str, Meta(max_length=4096)] | None = None
    index_topk_freq: Freq | None = None
    index_skip_topk_offset: Freq | None = None
    max_position_embeddings: Tokens | None = None
    num_nextn_predict_layers: Small | None = None
    hidden_size: Dim | None = None
    num_attention_heads: Dim | None = None
    q_lora_rank: Dim | None = None
    qk_nope_head_dim: Dim | None = None
    v_head_dim: Dim | None = None
    n_routed_experts: Dim | None = None
    zero_expert_num: Small | None = None
    expert_ffn_hidden_size: Dim | None = None
    ffn_hidden_size: Dim | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=2**26)] | None = None
    oe_vocab_size_ratio: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    oe_neighbor_num: Annotated[int, Meta(ge=2, le=64)] | None = None
    oe_split_num: Annotated[int, Meta(ge=1, le=64)] | None = None


def read(model: Mapping[str, Any], architecture: str, loaded: Loaded) -> Model:
    """The model behind the config fields; raises InputError or UnsupportedError for fields it cannot take."""
    fields, ignored = read_fields(Fields, model, loaded)
    layers = _attention_layers(fields, loaded)
    is_dsa = fields.index_topk is not None
    needed = [*WEIGHT_FIELDS, "index_head_dim", "index_n_heads"] if is_dsa else WEIGHT_FIELDS
    missing = tuple(name for name in needed if getattr(fields, name) is None)
    heads = fields.num_attention_heads or 0
    return Model(
        family=NAME,
        architecture=architecture,
        num_attention_layers=layers,
        kv_lora_rank=fields.kv_lora_rank,
        qk_rope_head_dim=fields.qk_rope_head_dim,
        index_topk=fields.index_topk,
        index_head_dim=fields.index_head_dim,
        schedule={name: getattr(fields, name) for name in SCHEDULE},
        max_position_embeddings=fields.max_position_embeddings,
        num_attention_heads=fields.num_attention_heads,
        sub_layers=2,
        mtp_layers=fields.num_nextn_predict_layers or 0,
        multimodal=False,
        indexer_fused=False,
        absorbed_elements=heads * ((fields.qk_nope_head_dim or 0) + (fields.v_head_dim or 0)) * fields.kv_lora_rank,
        rope_rows=rope_rows(model, fields.max_position_embeddings or 0),
        rope_caches=2 if is_dsa else 1,
        inventory=None if missing else _inventory(fields, layers, is_dsa=is_dsa),
        missing=missing,
        quantization=model.get("quantization_config"),
        ignored_fields=ignored,
        notes=_notes(fields),
    )


def _attention_layers(fields: Fields, loaded: Loaded) -> int:
    """Attention sub-layers: twice `num_layers`; configs without it count sub-layers in `num_hidden_layers`."""
    layers = fields.num_layers * 2 if fields.num_layers is not None else fields.num_hidden_layers
    if layers is None:
        remedy = "give num_layers (blocks) as in config.json"
        raise InputError(Problem(where=loaded.where("model"), what="`model.num_layers` is missing", remedy=remedy))
    return layers


def _notes(fields: Fields) -> tuple[str, ...]:
    if fields.oe_neighbor_num is not None and fields.oe_vocab_size_ratio is None:
        return ("the n-gram tables are not counted: oe_vocab_size_ratio is not in the config",)
    return ()


def _inventory(fields: Fields, layers: int, *, is_dsa: bool) -> Inventory:
    f: Any = fields
    blocks, h, expert_width = layers // 2, f.hidden_size, f.expert_ffn_hidden_size
    choices = f.n_routed_experts + f.zero_expert_num
    norms = 1 if fields.index_k_norm_type == "rms" else 2
    block = [
        Tensor("mlp.router.classifier", choices, h, "moe", dtype="fp32"),
        Tensor("mlp.router.e_score_correction_bias", choices, 1, "moe", dtype="fp32"),
        Tensor("mlp.experts.0.gate_proj", expert_width, h, "moe", "expert", count=2 * f.n_routed_experts),
        Tensor("mlp.experts.0.down_proj", h, expert_width, "moe", "expert", "cols", count=f.n_routed_experts),
        Tensor("mlps.0.gate_proj", f.ffn_hidden_size, h, "layer", "dense", count=2),
        Tensor("mlps.0.down_proj", h, f.ffn_hidden_size, "layer", "dense", "cols"),
    ]
    return Inventory(
        tensors=(
            Tensor("model.embed_tokens", f.vocab_size, h, "first", "embed", dtype="bf16"),
            *_ngram_tables(fields),
            *attention_tensors(fields),
            *(indexer_tensors(fields, k_norm_vectors=norms) if is_dsa else []),
            *block,
            Tensor("model.norm", h, 1, "last", dtype="bf16"),
            Tensor("lm_head", f.vocab_size, h, "last", "head", dtype="bf16"),
        ),
        # `moe` units are blocks here, so the sub-layers without one count as dense.
        dense_layers=layers - blocks,
        mtp_layers=0,
    )


def _ngram_tables(fields: Fields) -> list[Tensor]:
    """
    N-gram embedding: table i has ratio·vocab + 2i + 1 rows of hidden/tables columns, with a projection each.

    Closes on 31,406,985,216 table parameters of LongCat-Flash-Lite-Sparse.
    """
    f: Any = fields
    if f.oe_vocab_size_ratio is None or f.oe_neighbor_num is None or f.oe_split_num is None:
        return []
    tables = f.oe_split_num * (f.oe_neighbor_num - 1)
    rows = sum(int(f.oe_vocab_size_ratio * f.vocab_size) + 2 * i + 1 for i in range(tables))
    width = f.hidden_size // tables
    return [
        Tensor("model.ngram_embeddings", rows, width, "first", "embed", dtype="bf16"),
        Tensor("model.ngram_projections", f.hidden_size, width, "first", dtype="bf16", count=tables),
    ]
