"""`hsplan check` on pairs of reports: what passes, what fails and with which words, and what is no report at all."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import junitparser
import pytest
from reports import refused, report, spec, written

A, B = spec("a"), spec("b")
TIB = 2**40
NOT_FIT = {"fits": False, "why_not": "no room for a cache"}


def tokens(count: int, name: str = "a", **more):
    return report(spec(name, tokens=count, **more))


# words, then, now, options, exit code, what stderr and stdout must have
PAIRS = [
    ("the same", report(A), report(A), [], 0, "1 of 1 specs pass"),
    ("the same, two specs", report(A, B), report(A, B), [], 0, "2 of 2 specs pass"),
    ("another order", report(A, B), report(B, A), [], 0, "2 of 2 specs pass"),
    ("none at all", report(), report(), [], 0, "0 of 0 specs pass"),
    ("more tokens", tokens(100_000), tokens(200_000), [], 0, "pass"),
    ("a token less", tokens(100_000), tokens(99_999), [], 1, "100,000 tokens became 99,999: 0.00 % lost, 0 % may be"),
    ("a drop that may be", tokens(100_000), tokens(99_000), ["--max-drop", "1%"], 0, "pass"),
    ("one token beyond it", tokens(100_000), tokens(98_999), ["--max-drop", "1%"], 1, "1.00 % lost, 1 % may be"),
    ("half a percent", tokens(100_000), tokens(99_500), ["--max-drop", "0.5%"], 0, "pass"),
    ("beyond half a percent", tokens(100_000), tokens(99_499), ["--max-drop", "0.5 %"], 1, "0.5 % may be"),
    ("all may go", tokens(100_000), tokens(0), ["--max-drop", "100%"], 0, "pass"),
    ("nothing left", tokens(100_000), tokens(0), ["--max-drop", "99%"], 1, "100,000 tokens became 0: 100.00 % lost"),
    ("from nothing", tokens(0), tokens(5), [], 0, "pass"),
    ("nothing before and after", tokens(0), tokens(0), [], 0, "pass"),
    ("a drop that no double can tell", tokens(2**62), tokens(2**62 - 1), [], 1, "0.00 % lost"),
    ("a third is exact", tokens(3), tokens(2), ["--max-drop", "33.333333%"], 1, "33.33 % lost"),
    ("a share that doubles miss", tokens(100), tokens(7), ["--max-drop", "93%"], 0, "pass"),
    ("took the place of another", report(spec("a", digest="x"), spec("c", digest="y")), report(spec("a", digest="y")),
     [], 1, "c: it is missing"),
    ("one of two drops", report(A, B), report(A, spec("b", tokens=1)), [], 1, "b: 100,000 tokens became 1"),
    ("both drop", report(A, B), report(spec("a", tokens=1), spec("b", tokens=1)), [], 1, "2 of 2 specs fail"),
    ("logical tokens do not count", tokens(9), tokens(9, logical_tokens=1), [], 0, "pass"),
    ("another scenario gains nothing", tokens(9), tokens(8, logical_tokens=99), [], 1, "9 tokens became 8"),
    ("a spec is gone", report(A, B), report(A), [], 1, "b: it is missing: the older report has it"),
    ("all are gone", report(A, B), report(), [], 1, "2 of 2 specs fail"),
    ("a spec is new", report(A), report(A, B), [], 0, "b: new: the older report does not have it"),
    ("all are new", report(), report(A), [], 0, "a: new"),
    ("renamed", report(spec("a", digest="x")), report(spec("b", digest="x")), [], 0, "b: renamed from a"),
    ("renamed and less", report(spec("a", digest="x")), report(spec("b", digest="x", tokens=1)), [], 1, "became 1"),
    ("renamed and changed", report(A), report(B), [], 1, "a: it is missing"),
    ("copied, not renamed", report(spec("a", digest="x")), report(spec("a", digest="x"), spec("b", digest="x")), [], 0,
     "b: new"),
    ("swapped names", report(spec("a", digest="x"), spec("b", digest="y")),
     report(spec("a", digest="y"), spec("b", digest="x")), [], 0, "2 of 2 specs pass"),
    ("fits no more", tokens(9), tokens(9, **NOT_FIT), [], 1, "does not fit as launched (elided): no room for a cache"),
    ("never did fit", tokens(9, **NOT_FIT), tokens(9, **NOT_FIT), [], 0, "pass"),
    ("fits again", tokens(9, **NOT_FIT), tokens(9), [], 0, "pass"),
    ("new and does not fit", report(), tokens(9, **NOT_FIT), [], 1, "does not fit"),
    ("renamed and fits no more", report(spec("a", digest="x")), report(spec("b", digest="x", **NOT_FIT)), [], 1, "fit"),
    ("refused now", report(A), report(refused("a")), [], 1, "it is refused: unknown model"),
    ("refused before too", report(refused("a")), report(refused("a")), [], 0, "pass"),
    ("refused before only", report(refused("a")), report(A), [], 0, "pass"),
    ("refused before, does not fit now", report(refused("a")), tokens(9, **NOT_FIT), [], 1, "does not fit"),
    ("new and refused", report(), report(refused("a")), [], 1, "it is refused"),
    ("enough tokens", report(A), report(A), ["--min-tokens", "100000"], 0, "pass"),
    ("a token too few", report(A), report(A), ["--min-tokens", "100001"], 1, "100,000 tokens are fewer than 100,001"),
    ("no least", report(A), tokens(0), ["--min-tokens", "0", "--max-drop", "100%"], 0, "pass"),
    ("a new spec holds too few", report(A), report(A, spec("b", tokens=1)), ["--min-tokens", "2"], 1, "b: 1 tokens"),
    ("host memory enough", report(A), tokens(10**6, host_bytes_per_node=TIB), ["--max-host", "1TiB"], 0, "pass"),
    ("a byte too much", report(A), tokens(10**6, host_bytes_per_node=TIB + 1), ["--max-host", "1TiB"], 1,
     "1.00 TiB of host memory a node are more than 1.00 TiB"),
    ("no host memory allowed", report(A), report(A), ["--max-host", "0"], 0, "pass"),
    ("host memory, refused", report(refused("a")), report(refused("a")), ["--max-host", "0", "--min-tokens", "9"], 0,
     "pass"),
    ("two reasons", report(A), tokens(1, host_bytes_per_node=9), ["--max-host", "8", "--min-tokens", "2"], 1,
     "9 B of host"),
    ("a name that is no word", report(spec("a|b <c> \x1b[31m\n")), report(spec("a|b <c> \x1b[31m\n", tokens=1)), [], 1,
     "a|b <c> \\x1b[31m\\n: 100,000"),
    ("another schema version", {**report(A), "schema": "hsplan.report/2"}, report(A), [], 2,
     "is of schema hsplan.report/2, not hsplan.report/1"),
    ("a newer report now", report(A), {**report(A), "schema": "hsplan.report/0"}, [], 2, "not hsplan.report/1"),
    ("infinite tokens", report(A), json.dumps(report(A)).replace("100000", "1e999"), [], 2, "is no report of hsplan"),
    ("Python's infinity", report(A), json.dumps(tokens(float("inf"))), [], 2, "is no report of hsplan"),
    ("not a number", report(A), json.dumps(tokens(float("nan"))), [], 2, "is no report of hsplan"),
    ("fewer than no tokens", report(A), tokens(-1), [], 2, "is no report of hsplan"),
    ("more tokens than there are", report(A), tokens(2**63), [], 2, "is no report of hsplan"),
]  # fmt: skip


def test_the_matrix_has_at_least_50_pairs():
    assert len(PAIRS) >= 50
    assert len({pair[0] for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize(
    ("then", "now", "options", "code", "words"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS]
)
def test_a_pair_of_reports(run, tmp_path, then, now, options, code, words):
    files = [written(tmp_path / "now.json", now), "--baseline", written(tmp_path / "then.json", then)]
    junit = tmp_path / "junit.xml"
    found, out, err = run("check", *files, *options, "--junit", str(junit))
    assert found == code
    assert words in out + err
    assert all(line.isprintable() for line in (out + err).splitlines())
    if code == 2:
        assert (out, len(err.splitlines()), junit.exists()) == ("", 1, False)
    else:
        suites = junitparser.JUnitXml.fromfile(str(junit))
        assert (suites.failures > 0) == (code == 1)
        ET.parse(junit)  # noqa: S314 - written a moment ago


GOOD = json.dumps(report(A))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", "\0", GOOD[:-1], GOOD[: len(GOOD) // 2], "[" * 100_000, '{"a":' * 100_000,
        '{"schema": "hsplan.report/1"}', '{"schema": 5}', '{"schema": "\x1b[31m\\u001b[31m\\n"}',
        json.dumps({**report(A), "specs": [None]}),
        json.dumps({**report(A), "specs": "x" * 100_000}),
        json.dumps(report(A, A)),
        json.dumps(report({**A, "refused": {"exit_code": 3, "lines": []}})),
        json.dumps(report({**A, "planned": None})),
        json.dumps(report({**A, "planned": {**A["planned"], "as_launched": "baseline"}})),
        json.dumps(report({**A, "planned": {**A["planned"], "as_launched": "nowhere"}})),
        json.dumps(report({**A, "name": ""})),
        GOOD.replace('"fits": true', '"fits": "\\u001b]0;title\\u0007"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", ["now", "then"])
def test_a_truncated_or_hostile_file_is_one_line_and_exit_code_2(run, tmp_path, text, side):
    bad, good = written(tmp_path / "bad.json", text), written(tmp_path / "good.json", GOOD)
    now, then = (bad, good) if side == "now" else (good, bad)
    code, out, err = run("check", now, "--baseline", then)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"{bad}: ")
    assert err.rstrip("\n").isprintable()


def test_a_file_that_is_not_there_is_one_line(run, tmp_path):
    code, out, err = run("check", str(tmp_path / "none.json"))
    assert (code, out) == (2, "")
    assert err == f"{tmp_path / 'none.json'}: cannot be read: No such file or directory\n"


def test_without_a_baseline_only_limits_and_fit_count(run, tmp_path):
    now = written(tmp_path / "now.json", report(A))
    assert run("check", now)[:2] == (0, "1 of 1 specs pass\n")
    assert run("check", now, "--min-tokens", "100001")[0] == 1
    assert run("check", now, "--max-drop", "1%")[0] == 2


@pytest.mark.parametrize("share", ["", "101", "101%", "-1%", "1%%", "x%", "1e2%", "٣%"])
def test_a_share_is_a_percentage(run, tmp_path, share):
    now = written(tmp_path / "now.json", report(A))
    code, out, err = run("check", now, "--baseline", now, "--max-drop", share)
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == "  write a percentage from 0% to 100%"


@pytest.mark.parametrize("share", ["1", "0.5", "99"])
def test_a_number_alone_is_told_its_percent_sign(run, tmp_path, share):
    now = written(tmp_path / "now.json", report(A))
    err = run("check", now, "--baseline", now, "--max-drop", share)[2]
    assert err.splitlines()[1] == f"  write {share}%"


def test_annotations_are_lines_that_a_runner_shows_beside_the_file(run, tmp_path):
    then = written(tmp_path / "then.json", report(spec("50%:a,b")))
    now = written(tmp_path / "now.json", report(spec("50%:a,b", tokens=1)))
    out = run("check", now, "--baseline", then, "--annotations")[1]
    assert out.splitlines()[-1] == (
        "::error file=specs/50%25%3Aa%2Cb.yaml,title=hsplan%3A 50%25%3Aa%2Cb::"
        "100,000 tokens became 1: 100.00 %25 lost, 0 %25 may be"
    )
    assert "::error" not in run("check", now, "--baseline", now, "--annotations")[1]


def test_json_has_every_spec_with_its_reasons(run, tmp_path):
    now = written(tmp_path / "now.json", report(A))
    found = json.loads(run("check", now, "--min-tokens", "100001", "--json")[1])
    assert found == {
        "schema": "hsplan.check/1",
        "passed": False,
        "specs": [
            {"name": "a", "source": "specs/a.yaml", "reasons": ["100,000 tokens are fewer than 100,001"], "notes": []}
        ],
    }
