"""`hsplan calibrate` and `estimate --calibration`: text, file, exit codes, and logs that contradict the spec."""

import json
from pathlib import Path

import pytest

HEAD = "[2026-06-12 10:00:00 TP0] "
LINES = {
    "begin": "Load weight begin. avail mem=138.01 GB",
    "end": "Load weight end. elapsed=9.00 s, type=Glm, quant=fp8, avail mem=48.72 GB, mem usage=89.24 GB.",
    "pool": "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 142208, KV size: 8.14 GB",
    "tokens": "max_total_num_tokens=142208, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=128, context_len=202752, available_gpu_mem=36.00 GB",
}
SPEC = ("glm-5.1-fp8", "--kv-cache-dtype", "fp8_e4m3", "--release", "main-2026-06-12")


@pytest.fixture
def log(tmp_path):
    def write(**changes):
        path = tmp_path / "server.log"
        lines = [HEAD + line for line in {**LINES, **changes}.values()]
        path.write_text("\n".join(["[x] server_args=ServerArgs(mem_fraction_static=0.7, tp_size=8)", *lines]))
        return str(path)

    return write


def test_calibrate_says_line_by_line_what_was_predicted_and_logged(run, log):
    code, out, err = run("calibrate", *SPEC, "--log", log())
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "free before weights GiB 138.00 137.45 138.45 138.01 +0.01" in lines
    assert "weights GiB 89.28 89.06 89.50 89.24 -0.04" in lines
    assert "KV pool of 142,208 tokens GiB 8.14 – – 8.14 +0.00" in lines
    assert "KV budget at memory fraction 0.7: 7,853,294,592 to 7,856,828,927 B (7.314 to 7.317 GiB)" in lines
    assert max(map(len, out.splitlines())) <= 100


def test_the_file_makes_estimate_predict_the_server_with_another_fraction(run, log, tmp_path):
    target = tmp_path / "server.json"
    assert run("calibrate", *SPEC, "--log", log(), "-o", str(target))[0] == 0
    code, out, _ = run("estimate", *SPEC, "--mem-fraction", "0.8", "--calibration", str(target), "--json")
    plan = json.loads(out)
    low, high = plan["scenarios"]["baseline"]["max_total_num_tokens_range"]
    assert code == 0
    assert low <= 410_560 <= high
    assert high - low <= 128
    assert "the budget is calibrated by the log of 1 run(s) at memory fraction 0.7" in plan["notes"]


def test_a_plan_of_another_release_than_the_log_says_so(run, log, tmp_path):
    target = tmp_path / "server.json"
    run("calibrate", *SPEC, "--log", log(), "-o", str(target))
    note = "the log is of release main-2026-06-12: what 0.5.23 changes of the budget is as modelled, not as logged"
    other = run("estimate", *SPEC[:-2], "--engine", "sglang@0.5.23", "--calibration", str(target), "--json")[1]
    assert note in json.loads(other)["notes"]
    same = run("estimate", *SPEC, "--calibration", str(target), "--json")[1]
    assert not any("the log is of release" in found for found in json.loads(same)["notes"])


def test_a_budget_that_is_the_same_in_two_digits_is_no_range_in_the_title(run, log, tmp_path):
    target = tmp_path / "server.json"
    run("calibrate", *SPEC, "--log", log(), "-o", str(target))
    title = run("estimate", *SPEC, "--mem-fraction", "0.95", "--calibration", str(target))[1].splitlines()[0]
    assert title == "glm-5.1-fp8: sglang main-2026-06-12, 8 × h200, tp 8, max_running_requests 128"


def test_a_grid_is_calibrated_too(run, log, tmp_path):
    target = tmp_path / "server.json"
    run("calibrate", *SPEC, "--log", log(), "-o", str(target))
    out = run("estimate", *SPEC, "--mem-fraction", "0.7", "--mem-fraction", "0.8", "--calibration", str(target))[1]
    assert "142,208" in out


def test_json_and_the_file_are_the_same(run, log, tmp_path):
    target = tmp_path / "server.json"
    code, out, _ = run("calibrate", *SPEC, "--log", log(), "--json", "-o", str(target))
    assert code == 0
    assert json.loads(out) == json.loads(target.read_text())
    assert json.loads(out)["schema"] == "hsplan.calibration/1"
    assert len(target.read_bytes()) < 10_000


def test_stdin_is_a_log_too(process, log):
    with open(log(), "rb") as file:  # noqa: PTH123
        done = process("calibrate", *SPEC, "--log", "-", stdin=file)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"7,853,294,592" in done.stdout


PACKED = ("--kv-cache-dtype", "fp8_e4m3")
BUILD = ("--release", "main-2026-06-12")


@pytest.mark.parametrize(
    ("line", "old", "new", "args", "what", "remedy"),
    [
        ("pool", "8.14", "8.74", [*PACKED, *BUILD], "tokens: the log has 8.74 GiB, the spec gives 8.14",
         "GB taken for GiB, or check kv_cache_dtype"),
        ("pool", "", "", BUILD, "the log allocates KV rows of float8_e4m3fn, the plan has bfloat16",
         "it agrees with kv_cache_dtype fp8_e4m3"),
        ("pool", "", "", PACKED, "KV budget, by free memory: the log has 7.32 GiB, the spec gives 8.14",
         "it agrees with release main-2026-07-"),
        ("tokens", "142208", "142200", [*PACKED, *BUILD], "which no budget gives with pages of 64 tokens",
         "check page_size"),
        ("tokens", "202752", "65536", [*PACKED, *BUILD], "longest request: the log has 65,536 tokens",
         "give max_model_len 65536"),
        ("end", "89.24", "55.00", [*PACKED, *BUILD], "weights: the log has 55.00 GiB, the spec gives 89.28",
         "check weights, tp, ep, release"),
        ("begin", "138.01", "133.01", [*PACKED, *BUILD], "KV budget, by free memory: the log has 8.82 GiB", "check"),
        ("pool", "", "", [*PACKED, *BUILD, "--mem-fraction", "0.8"], "the spec has mem_fraction 0.8, the log 0.7",
         "leave it out"),
        ("pool", "", "", [*PACKED, *BUILD, "--tp", "4", "--gpu", "b300"], "weights: the log has 89.24 GiB",
         "check weights, tp"),
        ("pool", "", "", ["--engine", "vllm@0.33.0"], "the log is of sglang, the spec of vllm", "give --engine sglang"),
    ],
)  # fmt: skip
def test_a_log_that_contradicts_the_spec_is_an_error_that_names_it(run, log, line, old, new, args, what, remedy):
    code, out, err = run("calibrate", "glm-5.1-fp8", *args, "--log", log(**{line: LINES[line].replace(old, new)}))
    assert (code, out) == (2, "")
    assert what in err
    assert remedy in err


def test_a_log_without_a_memory_fraction_asks_for_it(run, log, tmp_path):
    """At the fraction that hsplan takes, 0.89, the 48.72 GiB after weights leave 33 GiB, and the pool took 7.32."""
    path = tmp_path / "no-fraction.log"
    path.write_text(log_text := Path(log()).read_text().replace("mem_fraction_static=0.7, ", ""))
    assert "0.7" not in log_text
    code, _, err = run("calibrate", *SPEC, "--log", str(path))
    assert code == 2
    assert "KV budget, by free memory" in err
    assert "the log names no memory fraction: give --mem-fraction as the server was launched" in err
    assert run("calibrate", *SPEC, "--log", str(path), "--mem-fraction", "0.7")[0] == 0


def test_a_rank_beyond_tp_is_a_contradiction(run, tmp_path):
    path = tmp_path / "server.log"
    path.write_text("\n".join(f"[x TP{rank}] {LINES['tokens']}" for rank in range(16)))
    err = run("calibrate", *SPEC, "--log", str(path))[2]
    assert "ranks up to TP15 speak in the log, the spec has tp 8" in err


def test_nothing_of_a_log_is_echoed_unescaped(run, tmp_path):
    path = tmp_path / "\x1b[31mred.log"
    path.write_text(f"{HEAD}{LINES['tokens']}\n(x pid=1) Initializing a V1 LLM engine (v0.33.0) \x1b]0;title\x07\n")
    code, out, err = run("calibrate", *SPEC, "--log", str(path))
    assert (code, out) == (2, "")
    assert all(line.isprintable() for line in err.splitlines())


@pytest.mark.parametrize("name", ["", "missing.log", "/", "a\0b"])
def test_a_log_that_cannot_be_read_is_one_line_and_exit_code_2(run, tmp_path, name):
    code, out, err = run("calibrate", *SPEC, "--log", name and (str(tmp_path / name) if name[0] != "/" else name))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "cannot be read" in err


def test_calibrate_takes_no_grid_and_needs_a_log(run, log):
    assert run("calibrate", *SPEC, "--tp", "4", "--tp", "8", "--log", log())[0] == 2
    assert "--log" in run("calibrate", *SPEC)[2]


def test_the_file_names_the_release_that_latest_was(run, log, tmp_path):
    target = tmp_path / "server.json"
    printed = log(
        pool="KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 127744, KV size: 7.32 GB",
        tokens=LINES["tokens"].replace("142208", "127744"),
    )
    code, _, err = run("calibrate", "glm-5.1-fp8", "--kv-cache-dtype", "fp8_e4m3", "--log", printed, "-o", str(target))
    assert (code, err) == (0, "")
    assert json.loads(target.read_text())["deployment"]["release"] == "0.5.23"
