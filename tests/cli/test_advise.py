"""`hsplan advise`: table, verdict, flags, JSON, and what is refused."""

import json
from pathlib import Path

import pytest

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
    assert "note: step_ms glm-5.1-8xh200: fitted to three published throughputs without offload" in out
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
    assert "note:" not in run("advise", "glm-5.2-fp8", *LONG)[1]


def test_where_offload_does_not_pay_it_says_so_and_gives_no_flags(run):
    code, out, _ = run("advise", "deepseek-v3.2-fp8", "--context", "8192", *STEP)
    assert code == 0
    assert "--enable-hisparse" not in out
    assert out.endswith("offload pays from contexts of 16,384 tokens on\noffload does not pay at 8,192 tokens\n")


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
