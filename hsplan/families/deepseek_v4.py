"""
DeepSeek-V4 and V4.1: one latent entry for several tokens, a window in every layer, and an indexer in some.

V4 layers are of ratio 4 (with an indexer), 128 or 0 (window only); V4.1 layers of ratio 1 and 2 read the entries of
the source layer before them. The tensor inventory of V4 closes on the published checkpoints to the byte
(tests/unit/test_inventory.py); of V4.1 not all shapes are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hsplan.errors import Problem, UnsupportedError
from hsplan.families.base import Compressed, Inventory, Model, Tensor, Unit
from hsplan.families.deepseek import rope_rows
from hsplan.families.fields import Dim, Layers, Small, Tokens, read_fields
from hsplan.spec import Loaded

NAME = "deepseek_v4"
V4, V41 = "DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM"
ARCHITECTURES = (V4, V41)
LETTER_OF_RATIO = {0: "W", 4: "F", 128: "H"}
WEIGHT_FIELDS = (
    "hidden_size", "num_attention_heads", "q_lora_rank", "o_groups", "o_lora_rank", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "num_hash_layers", "hc_mult", "vocab_size",
    "index_head_dim", "index_n_heads",
)  # fmt: skip
# What V4.1 adds beyond the fields read here changes weights and compute, not the cache.
HARMLESS = frozenset(
    """
    candidate_block_size candidate_source_layer_id candidate_topk_blocks compress_rope_theta dspark_block_size
    dspark_markov_rank dspark_noise_token_id dspark_target_layer_ids engram_compressed_vocab_size engram_head_dim
    engram_layer_ids engram_max_ngram_size engram_n_heads engram_num_embeddings engram_pad_token_id engram_vocab_size
    first_k_dense_replace hc_eps hc_pre_from_prev_sublayer hc_sinkhorn_iters intermediate_size kv_lora_rank
    norm_eps q_head_norm qk_nope_head_dim swiglu_limit v_head_dim weight_block_size
    """.split()
)
Ids = Annotated[tuple[Annotated[int, Meta(ge=0, le=4095)], ...], Meta(max_length=4096)]


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The config.json fields that this family reads."""

    architectures: tuple[str, ...]
    num_hidden_layers: Layers
    compress_ratios: Annotated[tuple[Literal[0, 1, 2, 4, 128], ...], Meta(max_length=4160)]
    sliding_window: Tokens
    head_dim: Dim
    qk_rope_head_dim: Dim
    index_topk: Dim
    kv_source_layer_ids: Ids = ()
    index_source_layer_ids: Ids = ()
    index_head_dim: Dim | None = None
    index_n_heads: Dim | None = None
    max_position_embeddings: Tokens | None = None
    num_nextn_predict_layers: Small | None = None
    hidden_size: Dim | None = None
    num_attention_heads: Dim | None = None
    q_lora_rank: Dim | None = None
    o_groups: Dim | None = None
    o_lora_rank: Dim | None = None
    n_routed_experts: Dim | None = None
    n_shared_experts: Small | None = None
    num_experts_per_tok: Dim | None = None
    moe_intermediate_size: Dim | None = None
    num_hash_layers: Small | None = None
    hc_mult: Small | None = None
    expert_dtype: Literal["fp4", "fp8"] = "fp8"
    vocab_size: Annotated[int, Meta(ge=1, le=2**26)] | None = None


def read(model: Mapping[str, Any], architecture: str, loaded: Loaded) -> Model:
    """The model behind the config fields; raises InputError or UnsupportedError for fields it cannot take."""
    fields, ignored = read_fields(Fields, model, loaded, HARMLESS)
    ratios = _ratios(fields, loaded)
    missing = _missing(fields, architecture)
    quantization = model.get("quantization_config")
    if isinstance(quantization, Mapping):
        quantization = {**quantization, "expert_dtype": fields.expert_dtype}
    return Model(
        family=NAME,
        architecture=architecture,
        num_attention_layers=fields.num_hidden_layers,
        qk_rope_head_dim=fields.qk_rope_head_dim,
        kv=Compressed(
            ratios=ratios,
            entries=len(fields.compress_ratios),
            window=fields.sliding_window,
            head_dim=fields.head_dim,
            sources=tuple(sorted(i for i in fields.kv_source_layer_ids if i < len(ratios))),
            groups=fields.o_groups,
        ),
        pattern="".join(_letter(i, ratio, fields) for i, ratio in enumerate(ratios)),
        shares_keys=any(ratio in {1, 2} for ratio in ratios),
        index_topk=fields.index_topk,
        index_head_dim=fields.index_head_dim,
        max_position_embeddings=fields.max_position_embeddings,
        num_attention_heads=fields.num_attention_heads,
        mtp_layers=fields.num_nextn_predict_layers or 0,
        multimodal=False,
        experts_per_token=fields.num_experts_per_tok,
        rope_rows=rope_rows(model, fields.max_position_embeddings or 0),
        # Layers that compress rotate with a base of their own.
        rope_caches=len({ratio > 0 for ratio in ratios}),
        inventory=None if missing else _inventory(fields),
        missing=missing,
        quantization=quantization,
        ignored_fields=ignored,
    )


def _ratios(fields: Fields, loaded: Loaded) -> tuple[int, ...]:
    """One ratio a layer: entries past num_hidden_layers are those of draft layers."""
    layers, given = fields.num_hidden_layers, fields.compress_ratios
    where = loaded.where("model.compress_ratios")
    if len(given) < layers:
        what = f"{len(given)} compress_ratios for {layers} layers"
        raise UnsupportedError(Problem(where=where, what=what, remedy="give one a layer, as in config.json"))
    ratios = tuple(given[:layers])
    for i, ratio in enumerate(ratios):
        sources = [s for s in fields.kv_source_layer_ids if s <= i and s < layers and ratios[s] == ratio]
        if ratio in {1, 2} and not sources:
            what = f"layer {i} of ratio {ratio} has no layer in kv_source_layer_ids to read from"
            raise UnsupportedError(Problem(where=where, what=what))
    return ratios


def _letter(layer: int, ratio: int, fields: Fields) -> str:
    """Ratio 4 always has an indexer; layers of ratio 1 and 2 only where they are index sources."""
    if ratio in {1, 2}:
        return "FS"[layer not in fields.index_source_layer_ids]
    return LETTER_OF_RATIO[ratio]


def _missing(fields: Fields, architecture: str) -> tuple[str, ...]:
    if architecture == V41:
        return ("the shapes of V4.1's compressors, Engram tables, vision tower and DSpark stages",)
    return tuple(name for name in WEIGHT_FIELDS if getattr(fields, name) is None)


@lru_cache(maxsize=256)
def _inventory(fields: Fields) -> Inventory:
    f: Any = fields
    h, layers = f.hidden_size, range(f.num_hidden_layers)
    stack = [*_attention(f), *_moe(f), *_hyper_connections(f)]
    mtp = [
        *(msgspec.structs.replace(t, unit="mtp") for t in (*stack, *_mixing_head(f)) if t.unit != "hash"),
        Tensor("e_proj", h, h, "mtp", count=2),
        Tensor("norms", 3 * h, 1, "mtp", dtype="bf16"),
    ]
    where: dict[Unit, tuple[int, ...]] = {
        "ratio4": tuple(i for i in layers if f.compress_ratios[i] == 4),
        "ratio128": tuple(i for i in layers if f.compress_ratios[i] == 128),
        "hash": tuple(i for i in layers if i < f.num_hash_layers),
        "unhashed": tuple(i for i in layers if i >= f.num_hash_layers),
    }
    return Inventory(
        tensors=(
            Tensor("model.embed_tokens", f.vocab_size, h, "first", "embed", dtype="bf16"),
            *stack,
            *_compressors(f),
            *_mixing_head(f),
            Tensor("model.norm", h, 1, "last", dtype="bf16"),
            Tensor("lm_head", f.vocab_size, h, "last", "head", dtype="bf16"),
            *mtp,
        ),
        dense_layers=0,
        mtp_layers=f.num_nextn_predict_layers or 0,
        where=where,
    )


def _attention(f: Any) -> list[Tensor]:
    """Low-rank queries, one shared latent, a grouped low-rank output, and a sink for each head."""
    h, q, width = f.hidden_size, f.q_lora_rank, f.num_attention_heads * f.head_dim
    output = f.o_groups * f.o_lora_rank
    return [
        Tensor("self_attn.wq_a", q, h, "layer"),
        Tensor("self_attn.wkv", f.head_dim, h, "layer"),
        Tensor("self_attn.wq_b", width, q, "layer", "attention"),
        Tensor("self_attn.wo_a", output, width // f.o_groups, "layer", "attention"),
        Tensor("self_attn.wo_b", h, output, "layer", "attention", "cols"),
        Tensor("norms", q + f.head_dim + 2 * h, 1, "layer", dtype="bf16"),
        Tensor("self_attn.attn_sink", f.num_attention_heads, 1, "layer", dtype="fp32"),
    ]


def _moe(f: Any) -> list[Tensor]:
    """The first layers route by a table of token ids, the others have a bias."""
    h, experts, width = f.hidden_size, f.n_routed_experts, f.moe_intermediate_size
    shared = f.n_shared_experts * width
    return [
        Tensor("mlp.gate", experts, h, "moe", dtype="bf16"),
        Tensor("mlp.gate.e_score_correction_bias", experts, 1, "unhashed", dtype="fp32"),
        Tensor("mlp.gate.tid2eid", f.vocab_size, f.num_experts_per_tok, "hash", dtype="int64"),
        Tensor("mlp.experts.0.gate_proj", width, h, "moe", "expert", count=2 * experts),
        Tensor("mlp.experts.0.down_proj", h, width, "moe", "expert", "cols", count=experts),
        Tensor("mlp.shared_experts.gate_proj", shared, h, "moe", "shared", count=2),
        Tensor("mlp.shared_experts.down_proj", h, shared, "moe", "shared", "cols"),
    ]


def _hyper_connections(f: Any) -> list[Tensor]:
    """Manifold-constrained hyper-connections around attention and experts: hc·(hc + 2) mixing rows each."""
    mix = f.hc_mult * (f.hc_mult + 2)
    return [
        Tensor("hc.fn", mix, f.hc_mult * f.hidden_size, "layer", dtype="fp32", count=2),
        Tensor("hc.base", mix + 3, 1, "layer", dtype="fp32", count=2),
    ]


def _mixing_head(f: Any) -> list[Tensor]:
    return [
        Tensor("hc_head.fn", f.hc_mult, f.hc_mult * f.hidden_size, "last", dtype="fp32"),
        Tensor("hc_head.base", f.hc_mult + 1, 1, "last", dtype="fp32"),
    ]


def _compressors(f: Any) -> list[Tensor]:
    """Keys and gates of both ratios (4 overlaps, so twice as wide), and the indexer with a compressor of its own."""
    h, dim, key = f.hidden_size, f.head_dim, f.index_head_dim
    return [
        Tensor("self_attn.compressor.wkv", 2 * dim, h, "ratio4", dtype="bf16", count=2),
        Tensor("self_attn.compressor.ape", 4, 2 * dim, "ratio4", dtype="fp32"),
        Tensor("self_attn.compressor.norm", dim, 1, "ratio4", dtype="bf16"),
        Tensor("self_attn.compressor.wkv", dim, h, "ratio128", dtype="bf16", count=2),
        Tensor("self_attn.compressor.ape", 128, dim, "ratio128", dtype="fp32"),
        Tensor("self_attn.compressor.norm", dim, 1, "ratio128", dtype="bf16"),
        Tensor("self_attn.indexer.wq_b", f.index_n_heads * key, f.q_lora_rank, "owner"),
        Tensor("self_attn.indexer.weights_proj", f.index_n_heads, h, "owner", dtype="bf16"),
        Tensor("self_attn.indexer.compressor.wkv", 2 * key, h, "owner", dtype="bf16", count=2),
        Tensor("self_attn.indexer.compressor.ape", 4, 2 * key, "owner", dtype="fp32"),
        Tensor("self_attn.indexer.compressor.norm", key, 1, "owner", dtype="bf16"),
    ]
