"""`hsplan advise`: table, verdict, flags, JSON, and what is refused."""

import json
from pathlib import Path

import pytest

import hsplan
from hsplan.cli.verdict import verdict
from hsplan.trial import Setting
from hsplan.tuning import Tuned

STEP = ("--step-ms", "{fixed: 12, per_request: 0.3}")
LONG = ("--kv-cache-dtype", "fp8_e4m3", "--context", "131072", "--tpot-ms", "50", *STEP)


def test_the_best_setting_is_marked_and_its_flags_are_given_with_reasons(run):
    code, out, err = run("advise", "glm-5.2-fp8", *LONG)
    assert (code, err) == (0, "")
    assert sum("(best)" in line for line in out.splitlines()) == 2  # in the table and in the chart
    assert "no offload" in out
    assert "  --enable-hisparse\n      all KV rows in host memory" in out
    assert out.splitlines()[-2] == "offload pays from contexts of 16,384 tokens on"
    assert out.splitlines()[-1].startswith("offload pays at 131,072 tokens: hot buffers of ")


def test_a_chart_shows_what_each_setting_yields(run):
    out = run("advise", "glm-5.2-fp8", *LONG)[1].splitlines()
    at = out.index("tokens/s by hot buffer")
    bars = [line.rsplit(" ", 2)[1:] for line in out[at + 1 : at + 10]]
    figures = [int(number) for _, number in bars]
    best = next(i for i, line in enumerate(out[at + 1 : at + 10]) if "(best)" in line)
    assert figures[best] == max(figures)
    assert bars[best][0] == "█" * 50
    assert len(bars[0][0]) == round(50 * figures[0] / max(figures) + 0.5)  # no offload; a part of a block counts
    assert "requests by hot buffer" in run("advise", "glm-5.2-fp8", *LONG[:4])[1]


def test_a_stored_step_profile_is_used_and_named(run):
    spec = str(Path(__file__).resolve().parents[2] / "benchmarks/data/glm-5.1-8xh200.yaml")
    out = run("advise", spec, "--tpot-ms", "200")[1]
    assert "note: step_ms glm-5.1-8xh200: fitted to three throughputs of a paper" in out
    assert "offload pays at 40,960 tokens" in out
    assert run("advise", "glm-5.1-fp8", "--step-ms", "glm-5.1-8xh200", "--context", "65536")[0] == 0
    code, _, err = run("advise", "glm-5.1-fp8", "--step-ms", "glm-5.1-8xb200")
    assert (code, err.splitlines()[1]) == (2, "  did you mean glm-5.1-8xh200?")


def test_a_link_measured_here_is_taken_from_the_file_of_a_validation(run, tmp_path):
    rate = {"driver": "gpu", "direction": "h2d", "order": "random", "gb_s": 10.0}
    rate |= {"row_bytes": 656, "pool_bytes": 2**30, "rows": 4096}
    path = tmp_path / "here.json"
    measured = {"schema": "hsplan.measurement/1", "machine": {"gpu": "NVIDIA H200"}, "link": [rate]}
    path.write_text(json.dumps(measured))
    for command in ("advise", "estimate"):
        code, out, _ = run(command, "glm-5.2-fp8", *LONG, "--link-curve", str(path))
        assert code == 0
        assert "note: link rates as measured on NVIDIA H200, here.json, not scaled" in out
    assert "here.json" in " ".join(
        json.loads(run("advise", "glm-5.2-fp8", *LONG, "--link-curve", str(path), "--json")[1])["notes"]
    )
    path.write_text(json.dumps(measured | {"link": []}))
    code, out, err = run("advise", "glm-5.2-fp8", "--link-curve", str(path))
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == "  measure one with `hsplan validate SPEC --gpu --json -o FILE`"


def test_what_was_assumed_of_the_link_is_told(run):
    out = run("advise", "glm-5.2-fp8", *LONG, "--overlap", "0.7", "--host-gb-s", "200")[1]
    assert "note: 70 % of the loading is taken to be hidden behind the rest of the step" in out
    assert "note: host memory gives 200 GB/s to 8 GPUs together, 25.0 each" in out
    plain = run("advise", "glm-5.2-fp8", *LONG)[1]
    assert "of the loading" not in plain
    assert "host memory gives" not in plain


def test_where_offload_does_not_pay_it_says_so_and_gives_no_flags(run):
    code, out, _ = run("advise", "deepseek-v3.2-fp8", "--context", "8192", *STEP)
    assert code == 0
    assert "--enable-hisparse" not in out
    assert out.splitlines()[-2:] == [
        "offload pays from contexts of 16,384 tokens on",
        "offload does not pay at 8,192 tokens: 2,041 tokens a second with it, 2,132 without",
    ]
    assert [line.split()[:3] for line in out.splitlines() if "(best)" in line] == [["no", "offload", "(best)"]] * 2


def test_what_the_plan_rests_on_is_told(run):
    out = run("advise", "glm-5.2-fp8", *LONG)[1]
    assert "note: not verified against an original: the indexer's wq_b and wk being fp8 on disk" in out


def test_a_time_per_token_without_a_step_says_what_it_limits(run):
    note = "tpot_ms 50 limits the loading alone: without --step-ms the rest of a step counts as 0"
    assert f"note: {note}" in run("advise", "glm-5.2-fp8", *LONG[:6])[1]
    assert note in json.loads(run("advise", "glm-5.2-fp8", *LONG[:6], "--json")[1])["notes"]
    assert "note: without --step-ms the most requests are best" in run("advise", "glm-5.2-fp8", *LONG[:4])[1]
    assert "--step-ms" not in run("advise", "glm-5.2-fp8", *LONG)[1]


def test_where_nothing_fits_the_last_line_says_why(run):
    code, out, err = run(
        "advise", "glm-5.2-fp8", "--context", "131072", "--tpot-ms", "20", "--step-ms", "glm-5.1-8xh200"
    )
    # 27.352 + 2.5238 + 131,072 × 0.000028795 ms.
    why = "no request meets the tpot_ms of 20: a step of one takes 33.65 ms even without loading"
    assert (code, err) == (1, "")
    assert out.rstrip().replace("\n  ", " ").endswith(f"nothing fits at 131,072 tokens, with offload or without: {why}")
    assert (
        f"left out: no offload; 2,048; 3,072; 4,096; 6,144; 8,192; 12,288; 16,384; 24,576; 32,768: {why}"
        in " ".join(out.split())
    )
    assert "hot buffer " not in out
    assert "does not pay" not in out


def test_where_no_setting_with_offload_fits_that_is_an_answer(run):
    code, out, _ = run("advise", "glm-5.2-fp8", *LONG[:2], "--context", "32768", "--host-memory", "16GiB")
    assert code == 0
    sizes = "2,048; 3,072; 4,096; 6,144; 8,192; 12,288; 16,384; 24,576; 32,768"
    assert f"left out: {sizes}: the host pools need " in out.replace("\n  ", " ")
    assert out.splitlines()[-2:] == [
        "offload does not pay at any context up to 1,048,576 tokens",
        "offload does not pay at 32,768 tokens: no setting with it fits",
    ]


def test_vllm_without_offload_is_compared_where_it_starts_and_its_table_has_no_ratio(run):
    code, out, _ = run("advise", "glm-5.2-fp8", "--engine", "vllm", "--context", "4096", *STEP)
    lines = out.splitlines()
    assert code == 0
    assert lines[2].split()[:4] == ["hot", "buffer", "requests", "binds"]
    assert lines[4].split()[:5] == ["no", "offload", "(best)", "80", "gpu"]
    assert (
        "note: without offload vllm does not start at max_model_len 1,048,576: its row is of 331,200, the longest "
        "planned to start"
    ) in " ".join(out.split())
    assert lines[-1].startswith("offload does not pay at 4,096 tokens: ")
    # Who needs that max_model_len launches with offload all the same.
    assert "flags to add to your launch command, vllm 0.33.0:" in out
    shorter = run("advise", "glm-5.2-fp8", "--engine", "vllm", "--context", "4096", "--max-model-len", "8192", *STEP)[1]
    assert "does not start" not in shorter
    assert "flags to add" not in shorter


def test_figures_of_a_rank_and_of_all_ranks_are_told_apart(run):
    spec = str(Path(__file__).resolve().parents[2] / "benchmarks/data/glm-5.1-8xh200.yaml")
    out = run("advise", spec, "--context", "160000")[1]
    assert "\nrequests, times and tokens/s of each of 8 data-parallel ranks:\nhot buffer" in out
    assert "\ntokens/s of a rank by hot buffer\n" in out
    assert "running requests are of all 8 ranks:\n" in out
    assert "  --max-running-requests 96\n" in out
    # One request a rank without offload: 1000 / (27.352 + 2.5238 + 160,000 × 0.000028795) = 29.0 tokens/s, × 8 = 232.
    assert " ".join(out.split()).endswith(" tokens a second on 8 ranks with it, 232 without")
    data = json.loads(run("advise", spec, "--context", "160000", "--json")[1])
    assert data["data_parallel_ranks"] == 8
    assert (data["best"]["requests"], data["best"]["max_running_requests"]) == (12, 96)
    assert "data-parallel" not in run("advise", "glm-5.2-fp8", *LONG)[1]


def test_running_requests_above_those_of_the_spec_are_said_to_be_searched(run):
    note = "note: running requests are searched: the max_running_requests of 8 does not limit them"
    assert note in run("advise", "glm-5.2-fp8", *LONG, "--max-running-requests", "8")[1]
    assert "are searched" not in run("advise", "glm-5.2-fp8", *LONG)[1]


def test_one_request_is_one_request(run):
    out = run("advise", "glm-5.2-fp8", "--engine", "vllm", "--context", "1000000", "--host-memory", "100GiB")[1]
    assert out.splitlines()[-1] == (
        "offload pays at 1,000,000 tokens: hot buffers of 32,768 hold 1 request, without it not one fits"
    )
    out = run("advise", "glm-5.2-fp8", "--context", "350000", "--host-memory", "500GiB")[1]
    assert out.splitlines()[-1] == (
        "offload makes no difference at 350,000 tokens, within 1 %: 1 request with it, 1 without"
    )


def test_within_one_percent_it_is_no_difference():
    plan = hsplan.plan("glm-5.2-fp8", context=4096)
    settings = [
        Setting(
            device_buffer_size=slots, host_to_device_ratio=ratio, max_running_requests=9, requests=9, binding="gpu",
            swap_in_ms=0.0, step_ms=9000 / tokens_s, tokens_s=tokens_s, host_bytes_per_node=0, scenario="elided",
        )
        for slots, ratio, tokens_s in ((4096, 4, 268.0), (None, None, 267.0))
    ]  # fmt: skip
    found = Tuned(best=settings[0], plan=plan, without=settings[1], sizes=(settings[0],), left_out=(), pays_from=None)
    assert " ".join(verdict(plan, found).split()) == (
        "offload does not pay at any context up to 1,048,576 tokens "
        "offload makes no difference at 4,096 tokens, within 1 %: 268 tokens a second with it, 267 without"
    )


def test_json_has_the_settings_and_the_flags(run, tmp_path):
    target = tmp_path / "advice.json"
    assert run("advise", "glm-5.2-fp8", *LONG, "--json", "-o", str(target))[0] == 0
    data = json.loads(target.read_text())
    assert data["schema"] == "hsplan.advice/1"
    assert data["pays"] is True
    assert data["best"] in data["sizes"]
    assert data["flags"][0]["text"] == "--enable-hisparse"


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("kimi-k2-fp8",), 3, "no offload to advise about"),
        (("minimax-m3-bf16",), 3, "no offload to advise about"),
        (
            ("glm-5.2-fp8", "--engine", "sglang@0.5.17", "--num-speculative-tokens", "3", "--draft-layers", "1"),
            3,
            "no offload to advise about: swap-in with drafts: SGLang 0.5.17 has none",
        ),
        (("glm-5.2-fp8", "--tp", "4", "--tp", "8"), 2, "advise searches one deployment"),
        (("glm-5.2-fp8", "-o", "/nowhere/advice.json"), 2, "cannot be written"),
        (("glm-5.2-fp8", "--step-ms", "-12"), 2, "--step-ms"),
        (("glm-5.2-fp8", "--step-ms", "{fixed: x}"), 2, "--step-ms"),
        (("glm-5.2-fp8", "--step-ms", "{fixd: 1}"), 2, "--step-ms"),
    ],
)
def test_what_cannot_be_advised_about_is_refused(run, arguments, code, what):
    got, out, err = run("advise", *arguments)
    assert (got, out) == (code, "")
    assert what in err


def test_where_it_pays_at_a_shorter_context_no_longer_one_is_named_as_the_first(run):
    args = ("--kv-cache-dtype", "fp8_e4m3", "--context", "16383", "--tpot-ms", "50")
    code, out, _ = run("advise", "glm-5.2-fp8", *args, "--step-ms", "{fixed: 12, per_request: 0.3}")
    assert code == 0
    assert "offload pays from contexts of 16,383 tokens on, or of fewer" in out
    assert "offload pays at 16,383 tokens" in out
