"""`hsplan validate` on two ranks: on Triton's interpreter, whole and with a rank that is killed, and under torchrun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hsplan.cli import main

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")

TINY = """\
name: tiny
model:
  architectures: [GlmMoeDsaForCausalLM]
  num_hidden_layers: 2
  kv_lora_rank: 512
  qk_rope_head_dim: 64
  index_topk: 2048
  index_head_dim: 128
  indexer_types: [full, shared]
deployment: {gpu: h200, tp: 2, kv_budget: 64GiB, kv_cache_dtype: fp8_e4m3}
"""
HSPLAN = ["-m", "hsplan", "validate", "tiny.yaml"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NAMES = ["plan", "ledger", "pool rows", "64-bit offsets", "rows", "eviction order", "misses", "host rows", "index-K"]


@pytest.fixture
def start(tmp_path):
    """Start python with these arguments in a folder with the spec."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    started = []

    def call(*args):
        command = [sys.executable, *args]
        process = subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def ranks_below(parent):
    """Process numbers of the ranks that a process has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(
                entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0") if "=" in entry
            )
        except OSError:
            continue
        if environment.get("HSPLAN_STARTED_BY") == str(parent):
            found[int(environment["RANK"])] = int(folder.name)
    return found


def test_a_claim_that_fails_on_one_rank_ends_with_1_and_names_it(start, tmp_path):
    options = ("--ranks", "2", "--steps", "4", "--inject", "eviction-order", "--json", "-o", "ranks.json")
    running = start(*HSPLAN, *options)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (1, "")
    lines = err.splitlines()
    assert lines[-1] == "validation failed: eviction order on rank 1, copies on rank 1"
    assert [line.split(": ")[1] for line in lines[:-1]] == [
        "prompts to host memory",
        "decode steps, every row checked",
        "host memory read back",
    ]
    data = json.loads((tmp_path / "ranks.json").read_bytes())
    assert (data["schema"], data["passed"]) == ("hsplan.ranks/1", False)
    assert (data["injected"], data["caught"]) == ("eviction-order", True)
    first, second = data["ranks"]
    assert [check["name"] for check in first["measurement"]["checks"] if not check["passed"]] == []
    assert [c["name"] for c in second["measurement"]["checks"] if not c["passed"]] == ["eviction order", "copies"]
    assert (first["measurement"]["injected"], second["measurement"]["injected"]) == (None, "eviction-order")
    assert (first["copy_of"], second["copy_of"]) == (0, 0)
    # Both ranks of a TP group read the same rows.
    assert first["measurement"]["run"]["rows_loaded"] == second["measurement"]["run"]["rows_loaded"]
    (node,) = data["nodes"]
    # Two requests of 256 tokens in two layers, on either rank.
    assert (node["ranks"], node["rank_bytes"], node["pool_bytes"]) == (2, 671_744, 1_343_488)
    assert ranks_below(running.pid) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranks.json", "tiny.yaml"]


def test_under_torchrun_dp_attention_ranks_run_requests_of_their_own_and_one_reports(start):
    running = start(*TORCHRUN, *HSPLAN, "--steps", "4", "--dp-attention", "2", "--json")
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0
    data = json.loads(out)
    first, second = data["ranks"]
    assert data["passed"] is True
    assert (first["copy_of"], second["copy_of"]) == (0, 1)
    for rank in data["ranks"]:
        assert [check["name"] for check in rank["measurement"]["checks"]] == NAMES
    # Other traces miss other tokens; at the first step both miss all but the newest of 16, in two layers.
    loaded = [rank["measurement"]["run"]["rows_loaded"] for rank in data["ranks"]]
    assert loaded[0] != loaded[1]
    assert min(loaded) > 15 * 2 * 2
    assert err.count("decode steps, every row checked") == 1


def test_a_rank_that_is_killed_in_a_stage_ends_the_run_with_4_and_its_name(start, tmp_path):
    running = start(*HSPLAN, "--ranks", "2", "--steps", "200", "-o", "ranks.txt")
    assert running.stderr.readline().endswith(": prompts to host memory\n")
    killed = ranks_below(running.pid)[1]
    os.kill(killed, signal.SIGKILL)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (4, "")
    assert len(err.splitlines()) == 2
    assert err.startswith("rank 1 on ")
    assert " was killed by signal 9 (SIGKILL) in: " in err
    assert ranks_below(running.pid) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.yaml"]


def test_more_ranks_than_the_plan_has_are_refused_before_any_is_started(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["validate", str(tmp_path / "tiny.yaml"), "--ranks", "3"]) == 2
    assert capsys.readouterr().err == (
        "--ranks: 3 ranks, but a stage of the plan has 2 (tp 2)\n  give at most 2\n"
    )  # fmt: skip


def test_more_ranks_than_cards_are_refused_before_any_is_started(tmp_path, capsys, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # set back at the end, whatever the command does
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    assert main(["validate", str(tmp_path / "tiny.yaml"), "--ranks", "2", "--gpu"]) == 4
    assert capsys.readouterr().err == (
        "2 ranks, but this machine shows 1 GPUs\n"
        "  give at most --ranks 1; over several machines start them with torchrun\n"
    )
