"""`hsplan estimate --engine vllm`: the numbers a vLLM user looks for, side by side with SGLang's."""

import json
import re

import pytest

VLLM = ("--engine", "vllm@0.33.0", "--gpu", "h200", "--kv-budget", "30GiB", "--max-model-len", "131072")


def _row(text, label):
    """The cells of the row that starts with `label`."""
    line = next(line for line in text.splitlines() if line.startswith(label))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_table_shows_blocks_and_the_printed_concurrency(run, glm):
    code, out, err = run("estimate", glm, *VLLM)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("my-glm: vllm 0.33.0, 8 × h200, tp 8")
    # 30 GiB // (64 × 92,628 B) = 5,433 blocks, / 2,048 a request.
    assert _row(out, "GPU blocks")[1] == "5,433"
    assert _row(out, "B/block") == ["6,409,728", "5,928,192", "663,552", "294,912"]
    assert _row(out, "concurrency of 131,072")[1] == "2.65"
    assert _row(out, "KV cache, tokens")[1] == "347,712"
    assert _row(out, "B/token, charged") == ["100,152", "92,628", "–", "–"]
    assert "device tokens" not in out
    assert "logical tokens" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_shared_host_pool_is_counted_once_for_all_ranks(run, glm):
    out = run("estimate", glm, *VLLM, "--host-pool", "200GiB", "--ledger")[1]
    pool, node = _row(out, "host GiB, pool"), _row(out, "host GiB, node")
    assert pool == node
    assert "B a replica × 1 replica = " in out
    alone = run("estimate", glm, *VLLM, "--host-pool", "200GiB", "--tp", "1", "--dp", "8")[1]
    assert _row(alone, "host GiB, rank")[3] == "200.00"
    assert _row(alone, "host GiB, node")[3] == "1,599.98"


def test_the_ledger_adds_up_to_the_card(run, glm):
    out = run("estimate", glm, "--engine", "vllm", "--gpu", "h200", "--max-model-len", "131072", "--ledger")[1]
    numbers = re.search(r"GPU: ([\d,]+) B in the ledger \+ ([\d,]+) B headroom = ([\d,]+) B", out.replace("\n  ", " "))
    taken, headroom, total = (int(n.replace(",", "")) for n in numbers.groups())
    assert taken + headroom == total == 143_771 * 2**20


def test_two_engines_stand_in_one_table_and_in_one_json(run, glm):
    both = ("--engine", "sglang@0.5.23", "--engine", "vllm@0.33.0", "--max-model-len", "131072", "--offload")
    code, out, _ = run("estimate", glm, *both)
    assert code == 0
    lines = out.splitlines()
    assert lines[1].split()[:2] == ["engine", "launched"]
    assert [line.split()[0] for line in lines[3:5]] == ["sglang@0.5.23", "vllm@0.33.0"]
    plans = json.loads(run("estimate", glm, *both, "--json")[1])["plans"]
    assert [plan["engine"]["name"] for plan in plans] == ["sglang", "vllm"]
    assert [plan["as_launched"] for plan in plans] == ["offload", "elided+offload"]
    assert plans[0]["scenarios"]["offload"]["blocks"] is None
    assert plans[1]["scenarios"]["elided+offload"]["blocks"]["hot_groups"] == 20


def test_deepseek_v4_as_shipped_stands_beside_the_other_engine(run):
    both = ("--engine", "sglang@0.5.23", "--engine", "vllm@0.33.0")
    code, out, err = run("estimate", "deepseek-v4-flash", *both)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [
        ["sglang@0.5.23", "baseline"], ["vllm@0.33.0", "baseline"],
    ]  # fmt: skip


def test_the_table_of_deepseek_v4_has_bytes_of_a_token_and_of_a_request_apart(run):
    code, out, err = run(
        "estimate", "deepseek-v4-flash", "--engine", "vllm@0.33.0", "--kv-budget", "20GiB",
        "--max-num-batched-tokens", "8192",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert _row(out, "B/full token")[0] == "3,915"
    # 6,682 blocks × 1,002,240 B are 6.24 GiB.
    assert _row(out, "fixed GiB, request")[0] == "6.24"
    # 21,427 blocks / 10,778; 1 + (21,427 − 10,778) / (4,096 + 8 + 18 + 4).
    assert _row(out, "concurrency of 1,048,576")[0] == "1.99"
    assert _row(out, "  at rest")[0] == "3.58"
    assert "B/token" not in out
    assert _row(out, "engine runs it") == ["yes", "yes", "unavailable", "unavailable"]
    assert "swa_full_tokens_ratio is SGLang's" in out
    assert "HiSparse of vLLM 0.33.0 does not support DeepSeek-V4" in out


def test_offload_of_deepseek_v4_is_refused_with_3(run):
    code, _, err = run("estimate", "deepseek-v4-flash", "--engine", "vllm", "--offload")
    assert code == 3
    assert "HiSparse of vLLM 0.33.0 does not support DeepSeek-V4" in err


def test_a_run_that_vllm_does_not_start_leaves_with_1_and_says_what_would(run, glm):
    code, out, err = run("estimate", glm, "--engine", "vllm", "--gpu", "h200", "--kv-budget", "30GiB")
    assert code == 1
    assert "elided does not fit: vLLM does not start: one request of max_model_len 1,048,576 needs 90.46 GiB" in err
    # 5,433 blocks less the null block, of 64 tokens.
    assert "cured by max_model_len 347,648" in out.replace("\n  ", " ")


def test_the_calculator_is_a_preset(run):
    code, out, _ = run("estimate", "glm-5.3-fp8", "--preset", "vllm-calculator", "--context", "81920", "--offload")
    assert code == 0
    assert out.splitlines()[0].startswith("glm-5.3-fp8: vllm-calculator 2026-09-08, 8 × h200, tp 8")
    assert _row(out, "requests of 81,920")[1::2] == ["4", "39"]
    assert _row(out, "host GiB, node")[3] == "134.00"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (("--engine", "vllm"), "engine vllm is not asked: the preset stands in its place"),
        (("--engine", "sglang@0.5.17"), "engine sglang 0.5.17 is not asked: the preset stands in its place"),
    ],
)
def test_an_engine_that_is_named_beside_the_preset_is_said_not_to_be_asked(run, named, said):
    arguments = ("estimate", "glm-5.3-fp8", "--preset", "vllm-calculator", "--json")
    assert said in json.loads(run(*arguments, *named)[1])["notes"]
    assert not any("not asked" in note for note in json.loads(run(*arguments)[1])["notes"])


def test_an_unknown_preset_is_refused(run, glm):
    code, _, err = run("estimate", glm, "--preset", "kvfit")
    assert (code, err.splitlines()) == (3, ["--preset: unknown preset 'kvfit'", "  known: vllm-calculator"])


def test_the_calculator_refuses_what_its_page_does_not_have(run):
    code, _, err = run("estimate", "glm-5.3-fp8", "--preset", "vllm-calculator", "--draft-layers", "1")
    assert (code, err.splitlines()[0]) == (2, "--draft-layers: the calculator has no draft_layers")
    code, _, err = run("estimate", "glm-5.1-fp8", "--preset", "vllm-calculator", "--gpu", "h200")
    assert code == 3
    assert "78 layers with 21 indexers, not 78 with 78" in err
    code, _, err = run("estimate", "glm-5.3-fp8", "--preset", "vllm-calculator", "--gpu", "h100")
    assert (code, err.splitlines()) == (3, ["--gpu: the calculator has no h100", "  known: h200, b200, b300"])


def test_keys_of_the_other_engine_are_refused_by_their_option(run, glm):
    assert run("estimate", glm, "--engine", "vllm", "--dp-attention", "8")[2].splitlines() == [
        "--dp-attention: dp_attention is a key of SGLang, not of vLLM",
        "  use dp",
    ]
    assert "host_pool is a key of vLLM" in run("estimate", glm, "--host-pool", "384GiB")[2]
