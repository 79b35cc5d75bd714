"""`hsplan simulate`: the table, JSON, recorded traces, and what is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest

TRACES = (Path(__file__).resolve().parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
SMALL = ("--context", "4096", "--steps", "20")


def test_the_table_has_a_row_for_each_size_and_a_column_for_each_policy(run):
    code, out, err = run("simulate", "glm-5.2-fp8", *SMALL)
    assert code == 0
    assert err == "simulate, 0 s: misses\n"
    assert (
        "tokens 0 to 4,094, 2,047 ids a step, mean of 78 layers, 10 steps counted after 10 to warm up, "
        "profile glm-5.1-longbench, seed 0"
    ) in " ".join(out.split())
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


def test_rows_are_those_of_owners_and_followers(run):
    """78 layers read 2,047 ids each, whether they compute top-k (21 of them) or share it."""
    data = json.loads(run("simulate", "glm-5.2-fp8", *SMALL, "--slots", "2048", "--json")[1])
    (group,) = data["groups"]
    assert (data["layers"], group["count"], len(group["layers"])) == (78, 78, 21)
    out = run("simulate", "glm-5.2-fp8", *SMALL, "--slots", "2048")[1]
    assert f"{round(data['lru'][0] * 2047 * 78):,}" in out
    assert "best split" not in out


def test_layers_that_differ_are_shown_apart_with_the_best_split_of_the_same_memory(run):
    arguments = ("deepseek-v3.2-fp8", "--profile", "deepseek-v3.2-low-overlap", *SMALL, "--slots", "2560")
    out = run("simulate", *arguments)[1]
    lines = [line.split() for line in out.splitlines()]
    assert ["LRU", "by", "layer", "layers", "2,560"] in lines
    assert [line[:2] for line in lines if line[:1] in (["0-1"], ["2-60"])] == [["0-1", "2"], ["2-60", "59"]]
    assert "no engine has that" in " ".join(out.split())
    data = json.loads(run("simulate", *arguments, "--json")[1])
    first, others = data["groups"]
    assert (first["layers"], first["count"], others["count"]) == ([0, 1], 2, 59)
    assert data["lru"][0] == pytest.approx((2 * first["lru"][0] + 59 * others["lru"][0]) / 61)
    (split,) = data["split"]
    assert 2 * split["slots"][0] + 59 * split["slots"][1] <= 61 * 2560
    assert split["lru"] <= data["lru"][0]


def test_drafts_are_read_with_their_step(run):
    data = json.loads(run("simulate", "glm-5.2-fp8", *SMALL, "--num-speculative-tokens", "3", "--json")[1])
    assert (data["steps_a_call"], data["calls"], data["warm_up"]) == (4, 3, 2)
    assert 2047 < data["mean_ids"] <= data["most_ids"] < 4096
    assert data["slots"][0] == 4096
    out = " ".join(run("simulate", "glm-5.2-fp8", *SMALL, "--num-speculative-tokens", "3")[1].split())
    assert "different ids a call of 4 steps" in out
    assert "rows a call" in out


def test_a_spec_says_how_many_drafts_there_are(run, tmp_path):
    spec = tmp_path / "mine.yaml"
    spec.write_text("model: glm-5.2-fp8\ndeployment: {gpu: h200, tp: 8, num_speculative_tokens: 2}\n")
    assert json.loads(run("simulate", str(spec), *SMALL, "--json")[1])["steps_a_call"] == 3


def test_a_cold_start_misses_every_token_once_and_a_warm_one_does_not(run):
    cold, warm = (
        json.loads(run("simulate", "glm-5.2-fp8", "--context", "4096", "--slots", "8192", *arguments, "--json")[1])
        for arguments in (("--steps", "8", "--warm-up", "0"), ("--steps", "40", "--warm-up", "32"))
    )
    assert (cold["calls"], cold["warm_up"], warm["calls"], warm["warm_up"]) == (8, 0, 8, 32)
    # Nothing is ever replaced: the first step misses all its ids, an eighth of those that are read.
    assert cold["lru"][0] > 1 / 8
    assert warm["lru"][0] < 0.02
    out = run("simulate", "glm-5.2-fp8", "--context", "4096", "--steps", "8", "--warm-up", "0")[1]
    assert "8 steps counted from an empty buffer on" in " ".join(out.split())


def test_lines_of_json_become_an_array_that_gives_the_same(run, tmp_path):
    dump, array = tmp_path / "dump.jsonl", str(tmp_path / "trace.npy")
    dump.write_text(
        "".join(
            json.dumps({"step": step, "layer": layer, "ids": [step % 5, layer, 9]}) + "\n"
            for step in range(6)
            for layer in (3, 4)
        )
    )
    first = json.loads(run("simulate", "glm-5.2-fp8", "--trace", str(dump), "--record", array, "--json")[1])
    again = json.loads(run("simulate", "glm-5.2-fp8", "--trace", array, "--json")[1])
    assert [group["layers"] for group in first["groups"]] == [[3], [4]]
    assert (first["most_ids"], first["slots"]) == (3, [3, 6, 9, 12, 18, 24])
    assert (first["lru"], first["policies"]) == (again["lru"], again["policies"])


def test_a_trace_is_written_whole_or_not_at_all(run, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hsplan.cli.output.os.fsync", full)
    code, out, err = run("simulate", "glm-5.2-fp8", *SMALL, "--record", str(tmp_path / "trace.npy"))
    assert (code, out) == (2, "")
    assert "No space left" in err
    assert not list(tmp_path.iterdir())


def test_the_page_on_traces_shows_what_is_printed(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ((command, output),) = re.findall(r"```console\n\$ hsplan (.+?)\n(.+?)\n```", TRACES, re.DOTALL)
    assert run(*shlex.split(command))[1].rstrip() == output


def test_the_profile_on_the_page_on_traces_is_one(run, tmp_path):
    profile = tmp_path / "mine.yaml"
    profile.write_text(re.findall(r"```yaml\n(.+?)```", TRACES, re.DOTALL)[0])
    data = json.loads(run("simulate", "deepseek-v3.2-fp8", "--profile", str(profile), *SMALL, "--json")[1])
    assert [group["count"] for group in data["groups"]] == [2, 18, 41]


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("glm-5.2-fp8", "--steps", "8", "--warm-up", "8"), 2, "nothing is left to count"),
        (("glm-5.2-fp8", *SMALL, "--slots", "4000000"), 2, "larger than any request"),
        (("glm-5.2-fp8", "--steps", "8", "--num-speculative-tokens", "8"), 2, "0 calls of 9 steps"),
        (("glm-5.2-fp8", "--slots", "2048", *SMALL, "--num-speculative-tokens", "3"), 2, "--slots"),
        (("glm-5.2-fp8", "--trace", "/nowhere.jsonl"), 2, "/nowhere.jsonl: No such file"),
        (("glm-5.2-fp8", "--profile", "glm-5-longbench"), 2, "did you mean glm-5.1-longbench?"),
        (("glm-5.2-fp8", "--slots", "100"), 2, "smaller than the 2048 ids of a call"),
        (("glm-5.2-fp8", "--context", "2048"), 2, "give from 2,049 to 2,097,151"),
        (("glm-5.2-fp8", "--context", "4000000"), 2, "4,000,000 tokens"),
        (("kimi-k2-fp8",), 3, "computes no top-k"),
        (("deepseek-v4-flash",), 3, "give a recorded --trace"),
        (("minimax-m3-bf16",), 3, "names blocks or entries of several"),
        (("glm-5.2-fp8", "--trace", "/nowhere.npy"), 2, "numpy.save"),
        (("glm-5.2-fp8", "-o", "/nowhere/misses.json"), 2, "cannot be written"),
        (("glm-5.2-fp8", "--steps", "1"), 2, "--steps"),
        (("glm-5.2-fp8", "--trace", "t.npy", "--context", "4096"), 2, "leave out --context or --trace"),
        (("glm-5.2-fp8", "--trace", "t.npy", "--profile", "stress"), 2, "leave out --profile or --trace"),
        (("glm-5.2-fp8", "--trace", "t.npy", "--steps", "8"), 2, "leave out --steps or --trace"),
        (("glm-5.2-fp8", "--trace", "t.npy", "--seed", "1"), 2, "leave out --seed or --trace"),
        (("glm-5.2-fp8", "--record", "x.npy", "-o", "./x.npy"), 2, "--record: is the file of --output too"),
    ],
)
def test_what_cannot_be_simulated_is_refused(run, arguments, code, what):
    got, out, err = run("simulate", *arguments)
    assert (got, out) == (code, "")
    assert what in err
