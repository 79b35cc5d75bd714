"""config.json fields of published models, and the smallest way to make a spec of them."""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]

FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "ignore": [
        "lm_head",
        "model.embed_tokens",
        "model.layers.*.self_attn*",
        "model.layers.*.mlp.shared_experts*",
        "model.layers.0.*",
        "model.layers.1.*",
        "model.layers.2.*",
        "model.layers.78*",
    ],
}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "actorder": None, "dynamic": False, "group_size": 32, "num_bits": 4,
                "observer": "minmax", "strategy": "group", "symmetric": True, "type": "int",
            },
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}  # fmt: skip

DEEPSEEK_V3: Fields = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": FP8,
}

DEEPSEEK_V3_2: Fields = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}

KIMI_K2: Fields = {
    **DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "num_nextn_predict_layers": 0,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}

KIMI_K2_5: Fields = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**KIMI_K2, "max_position_embeddings": 262144, "quantization_config": INT4},
}

# GLM-5.1 has the same fields.
GLM_5: Fields = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_head_dim": 256,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "indexer_rope_interleave": True,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 12288,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
    "moe_layer_freq": 1,
    "dtype": "bfloat16",
}

# F computes top-k, S shares it: 0, 1, 2, 6, 10, ..., 74 are full.
GLM_5_2_TYPES = "FFFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSS"

# GLM-5.3 (not the Flash one) has the same fields.
GLM_5_2: Fields = {
    **GLM_5,
    "head_dim": 192,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "index_topk_pattern": None,
    "indexer_types": [{"F": "full", "S": "shared"}[letter] for letter in GLM_5_2_TYPES],
    "index_share_for_mtp_iteration": True,
    "max_position_embeddings": 1048576,
}

DEEPSEEK_V4_FLASH: Fields = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "num_nextn_predict_layers": 1,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_topk": 512,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "num_hash_layers": 3,
    "hc_mult": 4,
    "expert_dtype": "fp4",
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
    "sliding_window": 128,
    # Two layers of windows, then 4 and 128 in turn; the last entry is the MTP layer's.
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "quantization_config": {**FP8, "scale_fmt": "ue8m0"},
}

DEEPSEEK_V4_PRO: Fields = {
    **DEEPSEEK_V4_FLASH,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}

DEEPSEEK_V4_1_FLASH: Fields = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "num_hidden_layers": 40,
    "num_nextn_predict_layers": 3,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_groups": 8,
    "index_topk": 512,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "max_position_embeddings": 1048576,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
}

MINIMAX_M3: Fields = {
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "num_hidden_layers": 60,
    "num_mtp_modules": 1,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_local_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "shared_intermediate_size": 3072,
    "dense_intermediate_size": 12288,
    "intermediate_size": 3072,
    "vocab_size": 200064,
    "max_position_embeddings": 1048576,
    "sparse_attention_config": {
        "use_sparse_attention": True,
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
        "sparse_block_size": 128,
        "sparse_disable_index_value": [0] * 3 + [1] * 57,
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_attention_freq": [0] * 3 + [1] * 57,
    },
    "moe_layer_freq": [0] * 3 + [1] * 57,
    "dtype": "bfloat16",
}

LONGCAT_FLASH: Fields = {
    "architectures": ["LongcatFlashForCausalLM"],
    "model_type": "longcat_flash",
    "num_layers": 28,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "moe_topk": 12,
    "expert_ffn_hidden_size": 2048,
    "ffn_hidden_size": 12288,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}

LONGCAT_FLASH_LITE_SPARSE: Fields = {
    "architectures": ["LongcatCausalLM"],
    "attention_method": "LSA",
    "num_layers": 14,
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "index_k_norm_type": "rms",
    "cli_factor": 2,
    "index_init_tokens": 16,
    "index_local_tokens": 1024,
    "n_routed_experts": 256,
    "zero_expert_num": 128,
    "moe_topk": 12,
    "expert_ffn_hidden_size": 1024,
    "ffn_hidden_size": 6144,
    "oe_vocab_size_ratio": 78,
    "oe_neighbor_num": 4,
    "oe_split_num": 4,
    "mtp_num_layers": 1,
    "vocab_size": 131072,
    "max_position_embeddings": 983040,
}


def spec_of(model: Fields, **keys: Any) -> dict[str, Any]:
    """A spec of `model`; keys named like a section are sections, all others stand under `deployment`."""
    sections = {name: keys.pop(name) for name in ("weights", "offload", "workload") if name in keys}
    return {"model": model, "deployment": {"gpu": "h200", "tp": 8, **keys}, **sections}
