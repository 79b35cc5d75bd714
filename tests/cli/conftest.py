"""The two ways to run the command, in this process and as its own, and a spec file to give it."""

import os
import subprocess
import sys

import pytest
from spec_text import GLM_5_2

from hsplan.cli import main

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
