"""`hsplan advise`: table, verdict, flags, JSON, and what is refused."""

import json

import pytest

STEP = ("--step-ms", "{fixed: 12, per_request: 0.3}")
LONG = ("--kv-cache-dtype", "fp8_e4m3", "--context", "131072", "--tpot-ms", "50", *STEP)


def test_the_best_setting_is_marked_and_its_flags_are_given_with_reasons(run):
    code, out, err = run("advise", "glm-5.2-fp8", *LONG)
    assert (code, err) == (0, "")
    assert sum("(best)" in line for line in out.splitlines()) == 1
    assert "no offload" in out
    assert "  --enable-hisparse\n      all KV rows in host memory" in out
    assert out.splitlines()[-1].startswith("offload pays at 131,072 tokens: hot buffers of ")


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
        (("glm-5.2-fp8", "--step-ms", "12"), 2, "--step-ms"),
        (("glm-5.2-fp8", "--step-ms", "{fixed: x}"), 2, "--step-ms"),
        (("glm-5.2-fp8", "--step-ms", "{fixd: 1}"), 2, "--step-ms"),
    ],
)
def test_what_cannot_be_advised_about_is_refused(run, arguments, code, what):
    got, out, err = run("advise", *arguments)
    assert (got, out) == (code, "")
    assert what in err
