"""
MLA, with or without the DSA top-k indexer, and mixture of experts: DeepSeek-V3, R1, V3.1, V3.2, Kimi-K2, GLM-5.x.

The tensor inventory closes on the published parameter counts to the element (tests/unit/test_inventory.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.families.base import Inventory, Model, Tensor
from hsplan.families.fields import Dim, Freq, Layers, Small, Tokens, read_fields
from hsplan.spec import Loaded

NAME = "deepseek"
# Architectures whose models may carry the indexer (`is_deepseek_dsa`, SGLang 0.5.17 to 0.5.23).
DSA = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
MULTIMODAL = ("KimiK25ForConditionalGeneration",)
ARCHITECTURES = (*DSA, *MULTIMODAL)
SCHEDULE = ("indexer_types", "cli_factor", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
WEIGHT_FIELDS = (
    "hidden_size", "num_attention_heads", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "first_k_dense_replace",
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "intermediate_size", "vocab_size",
)  # fmt: skip
INVENTORY_FIELDS = (
    *WEIGHT_FIELDS, "num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim", "num_nextn_predict_layers",
    "index_head_dim", "index_n_heads",
)  # fmt: skip
MAX_CACHED = 256
_INVENTORIES: dict[tuple[object, ...], Inventory] = {}
# DeepSeek's own checkpoints repeat embedding and head in the MTP layer; GLM's do not.
MTP_COPIES = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The config.json fields that this family reads."""

    architectures: list[str]
    num_hidden_layers: Layers
    kv_lora_rank: Dim
    qk_rope_head_dim: Dim
    index_topk: Dim | None = None
    index_head_dim: Dim | None = None
    index_n_heads: Dim | None = None
    indexer_types: Annotated[list[str], Meta(max_length=4096)] | None = None
    cli_factor: Freq | None = None
    index_topk_pattern: Annotated[str, Meta(max_length=4096)] | None = None
    index_topk_freq: Freq | None = None
    index_skip_topk_offset: Freq | None = None
    indexer_rope_interleave: bool | None = None
    max_position_embeddings: Tokens | None = None
    num_nextn_predict_layers: Small | None = None
    hidden_size: Dim | None = None
    num_attention_heads: Dim | None = None
    q_lora_rank: Dim | None = None
    qk_nope_head_dim: Dim | None = None
    v_head_dim: Dim | None = None
    first_k_dense_replace: Small | None = None
    n_routed_experts: Dim | None = None
    n_shared_experts: Small | None = None
    num_experts_per_tok: Dim | None = None
    moe_intermediate_size: Dim | None = None
    intermediate_size: Dim | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=2**26)] | None = None
    moe_layer_freq: Any = 1


def read(model: Mapping[str, Any], architecture: str, loaded: Loaded) -> Model:
    """The model behind the config fields; raises InputError or UnsupportedError for fields it cannot take."""
    fields, ignored = read_fields(Fields, model, loaded)
    is_dsa = architecture in DSA and fields.index_topk is not None
    needed = [*WEIGHT_FIELDS, "index_head_dim", "index_n_heads"] if is_dsa else WEIGHT_FIELDS
    missing = tuple(name for name in needed if getattr(fields, name) is None)
    if fields.moe_layer_freq != 1:
        missing = (*missing, "moe_layer_freq (only 1 is known)")
    heads = fields.num_attention_heads or 0
    interleaved = bool(fields.indexer_rope_interleave)
    return Model(
        family=NAME,
        architecture=architecture,
        num_attention_layers=fields.num_hidden_layers,
        kv_lora_rank=fields.kv_lora_rank,
        qk_rope_head_dim=fields.qk_rope_head_dim,
        index_topk=fields.index_topk if is_dsa else None,
        index_head_dim=fields.index_head_dim,
        schedule={name: getattr(fields, name) for name in SCHEDULE},
        max_position_embeddings=fields.max_position_embeddings,
        num_attention_heads=fields.num_attention_heads,
        mtp_layers=fields.num_nextn_predict_layers or 0,
        multimodal=architecture in MULTIMODAL,
        indexer_fused=is_dsa and interleaved,
        absorbed_elements=heads * ((fields.qk_nope_head_dim or 0) + (fields.v_head_dim or 0)) * fields.kv_lora_rank,
        experts_per_token=fields.num_experts_per_tok,
        rope_rows=rope_rows(model, fields.max_position_embeddings or 0),
        # The indexer rotates the other way round than the attention unless it is interleaved too.
        rope_caches=2 if is_dsa and not interleaved else 1,
        inventory=None if missing else _cached_inventory(fields, is_dsa=is_dsa, architecture=architecture),
        missing=missing,
        quantization=model.get("quantization_config"),
        ignored_fields=ignored,
    )


def rope_rows(model: Mapping[str, Any], max_positions: int) -> int:
    """Positions of the cos/sin cache: a yarn config covers factor × original positions."""
    scaling = model.get("rope_scaling") or model.get("rope_parameters")
    if isinstance(scaling, Mapping):
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and isinstance(original, int):
            sane = 0 < original < 2**31 and 0 < factor < 2**20
            return min(int(factor * original), 2**31) if sane else max_positions
    return max_positions


def attention_tensors(fields: Any) -> list[Tensor]:
    """The MLA projections and norms of one attention layer (needs all weight fields)."""
    h, q, c = fields.hidden_size, fields.q_lora_rank, fields.kv_lora_rank
    heads, rope, nope, v = (
        fields.num_attention_heads, fields.qk_rope_head_dim, fields.qk_nope_head_dim, fields.v_head_dim,
    )  # fmt: skip
    return [
        Tensor("self_attn.q_a_proj", q, h, "layer"),
        Tensor("self_attn.kv_a_proj_with_mqa", c + rope, h, "layer"),
        Tensor("self_attn.q_b_proj", heads * (nope + rope), q, "layer", "attention"),
        Tensor("self_attn.kv_b_proj", heads * (nope + v), c, "layer", "attention"),
        Tensor("self_attn.o_proj", h, heads * v, "layer", "attention", "cols"),
        Tensor("norms", 2 * h + q + c, 1, "layer", dtype="bf16"),
    ]


def indexer_tensors(fields: Any, *, k_norm_vectors: int) -> list[Tensor]:
    """The top-k indexer of one owner layer; `k_norm_vectors` is 2 for LayerNorm, 1 for RMSNorm."""
    heads, dim = fields.index_n_heads, fields.index_head_dim
    return [
        Tensor("self_attn.indexer.wq_b", heads * dim, fields.q_lora_rank, "owner"),
        Tensor("self_attn.indexer.wk", dim, fields.hidden_size, "owner"),
        Tensor("self_attn.indexer.weights_proj", heads, fields.hidden_size, "owner", dtype="bf16"),
        Tensor("self_attn.indexer.k_norm", k_norm_vectors * dim, 1, "owner", dtype="bf16"),
    ]


def _mlp(prefix: str, h: int, width: int, unit: str, shard: str, count: int = 1) -> list[Tensor]:
    """Gate and up together, and down."""
    return [
        Tensor(f"{prefix}.gate_proj", width, h, unit, shard, "rows", "linear", 2 * count),  # type: ignore[arg-type]
        Tensor(f"{prefix}.down_proj", h, width, unit, shard, "cols", "linear", count),  # type: ignore[arg-type]
    ]


def _moe(fields: Fields) -> list[Tensor]:
    h, experts, width = fields.hidden_size, fields.n_routed_experts, fields.moe_intermediate_size
    shared = fields.n_shared_experts
    assert h is not None and experts is not None and width is not None and shared is not None  # noqa: PT018, S101
    return [
        Tensor("mlp.gate", experts, h, "moe", dtype="bf16"),
        Tensor("mlp.gate.e_score_correction_bias", experts, 1, "moe", dtype="fp32"),
        *_mlp("mlp.experts.0", h, width, "moe", "expert", experts),
        *(_mlp("mlp.shared_experts", h, shared * width, "moe", "shared") if shared else []),
    ]


def _cached_inventory(fields: Fields, *, is_dsa: bool, architecture: str) -> Inventory:
    """The inventory, built once for each set of the fields that it is made of."""
    key = (is_dsa, architecture, *(getattr(fields, name) for name in INVENTORY_FIELDS))
    if key not in _INVENTORIES:
        if len(_INVENTORIES) >= MAX_CACHED:
            _INVENTORIES.clear()
        _INVENTORIES[key] = _inventory(fields, is_dsa=is_dsa, architecture=architecture)
    return _INVENTORIES[key]


def _inventory(fields: Fields, *, is_dsa: bool, architecture: str) -> Inventory:
    h, vocab, dense_width = fields.hidden_size, fields.vocab_size, fields.intermediate_size
    assert h is not None and vocab is not None and dense_width is not None  # noqa: PT018, S101
    embed = Tensor("model.embed_tokens", vocab, h, "first", "embed", dtype="bf16")
    head = Tensor("lm_head", vocab, h, "last", "head", dtype="bf16")
    layer = attention_tensors(fields)
    indexer = indexer_tensors(fields, k_norm_vectors=2) if is_dsa else []
    moe = _moe(fields)
    mtp = [
        *(msgspec.structs.replace(tensor, unit="mtp") for tensor in (*layer, *indexer, *moe)),
        Tensor("norms", 3 * h, 1, "mtp", dtype="bf16"),
        Tensor("eh_proj", h, 2 * h, "mtp", dtype="bf16"),
    ]
    if architecture in MTP_COPIES:
        mtp += [msgspec.structs.replace(tensor, unit="mtp_copy") for tensor in (embed, head)]
    dense = _mlp("mlp", h, dense_width, "dense", "dense")
    final_norm = Tensor("model.norm", h, 1, "last", dtype="bf16")
    return Inventory(
        tensors=(embed, *layer, *indexer, *dense, *moe, final_norm, head, *mtp),
        dense_layers=min(fields.first_k_dense_replace or 0, fields.num_hidden_layers),
        mtp_layers=fields.num_nextn_predict_layers or 0,
    )
