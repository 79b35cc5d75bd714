"""A GLM-5.2 spec written out, and the two ways to run the command: in this process, and as its own."""

import os
import subprocess
import sys

import pytest

from hsplan.cli import main

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
LONGCAT = """\
model:
  architectures: [LongcatCausalLM]
  num_layers: 14
  hidden_size: 3072
  num_attention_heads: 32
  q_lora_rank: 1536
  kv_lora_rank: 512
  qk_nope_head_dim: 128
  qk_rope_head_dim: 64
  v_head_dim: 128
  index_topk: 2048
  index_head_dim: 128
  index_n_heads: 16
  index_k_norm_type: rms
  cli_factor: 2
  n_routed_experts: 256
  zero_expert_num: 128
  expert_ffn_hidden_size: 1024
  ffn_hidden_size: 6144
  vocab_size: 131072
  max_position_embeddings: 983040
deployment: {gpu: h200, tp: 2}
"""


@pytest.fixture
def glm(tmp_path):
    """The path of the GLM-5.2 spec, as a text."""
    path = tmp_path / "my_model.yaml"
    path.write_text(GLM_5_2)
    return str(path)


@pytest.fixture
def longcat(tmp_path):
    """The path of a spec whose architecture no engine loads."""
    path = tmp_path / "longcat.yaml"
    path.write_text(LONGCAT)
    return str(path)


@pytest.fixture
def run(capsys):
    """main() in this process: exit code, stdout, stderr."""

    def call(*args):
        code = main(list(args))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def process(tmp_path):
    """The real command in a process of its own, in another folder: the finished process, with bytes."""

    def call(*args, **options):
        env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path)} | options.pop("env", {})
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, "timeout": 60} | options
        command = [sys.executable, "-m", "hsplan", *args]
        return subprocess.run(command, env=env, check=False, **options)

    return call
