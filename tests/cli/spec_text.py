"""A GLM-5.2 spec written out, as a user would write it."""

GLM_5_2 = """\
# GLM-5.2 as its config.json has it.
# unverified: nothing, this line tests the remark
name: my-glm
model:
  architectures: [GlmMoeDsaForCausalLM]
  num_hidden_layers: 78
  num_nextn_predict_layers: 1
  hidden_size: 6144
  num_attention_heads: 64
  q_lora_rank: 2048
  kv_lora_rank: 512
  qk_nope_head_dim: 192
  qk_rope_head_dim: 64
  v_head_dim: 256
  index_topk: 2048
  index_head_dim: 128
  index_n_heads: 32
  index_topk_freq: 4
  index_skip_topk_offset: 3
  indexer_rope_interleave: true
  first_k_dense_replace: 3
  n_routed_experts: 256
  n_shared_experts: 1
  moe_intermediate_size: 2048
  intermediate_size: 12288
  vocab_size: 154880
  max_position_embeddings: 1048576
weights: {checkpoint: nvfp4}
deployment:
  gpu: h200
  tp: 8
  max_running_requests: 128
"""
