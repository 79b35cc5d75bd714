"""`hsplan simulate`: the table, JSON, recorded traces, and what is refused."""

import json

import pytest

SMALL = ("--context", "4096", "--steps", "20")


def test_the_table_has_a_row_for_each_size_and_a_column_for_each_policy(run):
    code, out, err = run("simulate", "glm-5.2-fp8", *SMALL)
    assert code == 0
    assert err == "simulate, 0 s: misses\n"
    assert "tokens 0 to 4,094, 2,047 ids a step, 10 steps counted, profile glm-5.1-longbench, seed 0" in " ".join(
        out.split()
    )
    assert "hot buffer, slots" in out
    assert [line.split()[0] for line in out.splitlines() if "%" in line] == [
        "2,048",
        "4,096",
        "6,144",
        "8,192",
        "12,288",
        "16,384",
    ]


def test_json_has_the_shares_of_every_policy(run, tmp_path):
    target = tmp_path / "misses.json"
    assert run("simulate", "glm-5.2-fp8", *SMALL, "--slots", "3000", "--json", "-o", str(target))[0] == 0
    data = json.loads(target.read_text())
    assert data["schema"] == "hsplan.misses/1"
    assert data["slots"] == [3000]
    assert sorted(data["policies"]) == ["belady", "clock", "fifo", "random"]
    assert 0 < data["policies"]["belady"][0] <= data["lru"][0] < 1


def test_a_recorded_trace_gives_what_was_drawn(run, tmp_path):
    trace = str(tmp_path / "trace.npy")
    first = json.loads(run("simulate", "glm-5.2-fp8", *SMALL, "--record", trace, "--json")[1])
    again = json.loads(run("simulate", "glm-5.2-fp8", "--trace", trace, "--json")[1])
    assert (first.pop("source"), again.pop("source")) == ("profile glm-5.1-longbench, seed 0", f"recorded in {trace}")
    first["slots"], again["slots"] = [], []
    assert first["highest_token"] == again["highest_token"] == 4094


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("glm-5.2-fp8", "--profile", "glm-5-longbench"), 2, "did you mean glm-5.1-longbench?"),
        (("glm-5.2-fp8", "--slots", "100"), 2, "smaller than the 2048 ids of a step"),
        (("glm-5.2-fp8", "--context", "2048"), 2, "give from 2,049 to 2,097,151"),
        (("glm-5.2-fp8", "--context", "4000000"), 2, "4,000,000 tokens"),
        (("kimi-k2-fp8",), 3, "computes no top-k"),
        (("glm-5.2-fp8", "--trace", "/nowhere.npy"), 2, "numpy.save"),
        (("glm-5.2-fp8", "-o", "/nowhere/misses.json"), 2, "cannot be written"),
        (("glm-5.2-fp8", "--steps", "1"), 2, "--steps"),
    ],
)
def test_what_cannot_be_simulated_is_refused(run, arguments, code, what):
    got, out, err = run("simulate", *arguments)
    assert (got, out) == (code, "")
    assert what in err
