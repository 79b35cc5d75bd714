"""`hsplan report` and `hsplan diff`: the files, read by tools that are not ours."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import junitparser
import msgspec
import pytest
from markdown_it import MarkdownIt
from reports import refused, report, spec, written
from spec_text import GLM_5_2

from hsplan.report.json_schema import SHIPPED, report_schema
from hsplan.report.markdown import markdown
from hsplan.report.value import Report

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SPECS = ("glm-5.2-nvfp4", "glm-5.2-fp8", "deepseek-v4-flash", "longcat-flash-lite-sparse-bf16")


@pytest.fixture
def made(run, tmp_path):
    """Exit code, stderr and the four files of a report of four shipped specs, one of them refused."""
    files = {name: tmp_path / name for name in ("r.json", "r.md", "r.xml", "r.csv")}
    options = ["-o", "--markdown", "--junit", "--csv"]
    pairs = zip(options, files.values(), strict=True)
    code, out, err = run("report", *SPECS, *(str(word) for pair in pairs for word in pair))
    assert out == ""
    return code, err, {name: path.read_text("utf-8") for name, path in files.items()}


def test_a_report_has_the_figures_of_estimate(made, run):
    code, err, files = made
    assert code == 3
    assert err.startswith("longcat-flash-lite-sparse-bf16: is refused: longcat-flash-lite-sparse-bf16.yaml:")
    assert err.endswith("registers LongcatCausalLM\n")
    found = json.loads(files["r.json"])
    assert [entry["name"] for entry in found["specs"]] == list(SPECS)
    estimate = json.loads(run("estimate", "glm-5.2-fp8", "--json")[1])
    planned = found["specs"][1]["planned"]
    for name, scenario in estimate["scenarios"].items():
        figures = planned["scenarios"][name]
        assert figures["tokens"] == scenario["max_total_num_tokens"]
        assert figures["tokens_range"] == scenario["max_total_num_tokens_range"]
        assert figures["logical_tokens"] == scenario["logical_tokens"]
        assert figures["bytes_per_token"] == scenario["bytes_per_token"]["charged"]
        assert figures["requests"] == scenario["concurrency"]["requests"]
        assert figures["host_bytes_per_node"] == scenario["deployment"]["host_bytes_per_node"]
    ledger = estimate["scenarios"][estimate["as_launched"]]["ledger"]
    assert [line["bytes"] for line in planned["ledger"]] == [line["bytes"] for line in ledger]


def test_the_shipped_schema_is_that_of_the_types_and_takes_the_report(made):
    schema = json.loads(SHIPPED.read_text("utf-8"))
    assert schema == report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    found = json.loads(made[2]["r.json"])
    validator.validate(found)
    for change in ({"schema": "hsplan.report/2"}, {"specs": None}, {"specs": [{}]}):
        assert not validator.is_valid({**found, **change})


@pytest.mark.usefixtures("made")
def test_the_same_specs_give_the_same_bytes(process, tmp_path):
    args = ["-o", "2.json", "--markdown", "2.md", "--junit", "2.xml", "--csv", "2.csv"]
    assert process("report", *SPECS, *args, env={"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}).returncode == 3
    for kind in ("json", "md", "xml", "csv"):
        assert (tmp_path / f"2.{kind}").read_bytes() == (tmp_path / f"r.{kind}").read_bytes()


def test_junit_is_read_by_a_junit_parser(made, tmp_path):
    suites = junitparser.JUnitXml.fromfile(str(tmp_path / "r.xml"))
    assert (suites.tests, suites.failures, suites.errors) == (4, 0, 1)
    cases = [case for suite in suites for case in suite]
    assert [case.name for case in cases] == list(SPECS)
    assert cases[3].result[0].message.startswith("longcat-flash-lite-sparse-bf16.yaml")
    tokens = ET.parse(tmp_path / "r.xml").findall(".//property[@name='tokens']")[1].get("value")  # noqa: S314
    assert int(tokens) == json.loads(made[2]["r.json"])["specs"][1]["planned"]["scenarios"]["elided"]["tokens"]


def rendered(text: str) -> list[list[str]]:
    """The cells of the tables in a Markdown text, by a renderer that is not ours."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    rows: list[list[str]] = []
    for i, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and tokens[i - 1].type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def test_requests_of_all_data_parallel_ranks_stand_beside_those_of_one(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dp.yaml").write_text(
        "model: glm-5.2-fp8\ndeployment: {gpu: h200, tp: 8, dp_attention: 8, kv_budget: 30GiB}\n"
    )
    assert run("report", "dp.yaml", "-o", "r.json", "--markdown", "r.md", "--csv", "r.csv", "--html", "r.html")[0] == 0
    requests = json.loads(Path("r.json").read_text())["specs"][0]["planned"]["scenarios"]["elided"]["requests"]
    head, row = rendered(Path("r.md").read_text())
    assert dict(zip(head, row, strict=True))["DP ranks"] == "8"
    assert dict(zip(head, row, strict=True))["in all"] == str(8 * requests)
    lines = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    assert {line["data_parallel"] for line in lines} == {"8"}
    assert "figures of each of 8 data-parallel ranks" in Path("r.html").read_text()


def test_a_report_of_an_earlier_version_has_one_rank(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("model: glm-5.2-fp8\ndeployment: {gpu: h200, tp: 8, kv_budget: 30GiB}\n")
    run("report", "one.yaml", "-o", "new.json")
    data = json.loads(Path("new.json").read_text())
    assert data["specs"][0]["planned"].pop("data_parallel") == 1
    Path("old.json").write_text(json.dumps(data))
    assert run("check", "new.json", "--baseline", "old.json")[0] == 0


def test_markdown_is_one_table_with_a_row_for_each_spec(made):
    rows = rendered(made[2]["r.md"])
    assert [row[0] for row in rows] == ["spec", *SPECS]
    assert {len(row) for row in rows} == {12}
    assert rows[2][-1] == "yes"
    assert rows[4][-1] == "refused"
    assert made[2]["r.md"].startswith("### Capacity: 3 of 4 specs fit\n")


NASTY = "a|b `c` <script>alert(1)</script> [x](y) **d** _e_ &amp; \x1b[31m\n| z |"


def test_no_name_breaks_out_of_its_cell():
    found = msgspec.convert(report(spec(NASTY), refused("x" + NASTY)), Report)
    text = markdown(found)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script" not in html
    assert "<a " not in html
    assert rendered(text)[1][0] == NASTY.replace("\x1b", "\\x1b").replace("\n", "\\n")


def test_a_summary_of_5_000_specs_fits_a_comment_and_counts_the_rest():
    found = msgspec.convert(report(*(spec(f"s{i}", fits=i % 2 == 0) for i in range(5_000))), Report)
    text = markdown(found)
    assert len(text.encode()) < 65_536
    rows = len(rendered(text)) - 1
    assert f"{5_000 - rows:,} more specs stand in the JSON" in text
    assert "more reasons stand in the JSON" in text


def test_csv_has_a_line_for_each_available_scenario(made):
    rows = list(csv.DictReader(io.StringIO(made[2]["r.csv"])))
    assert len(rows) == 12
    launched = [row for row in rows if row["as_launched"] == "True"]
    assert [row["spec"] for row in launched] == list(SPECS[:3])
    assert {row["gpu"] for row in launched} == {"gb300", "h200"}


def test_without_a_file_the_summary_is_printed_and_json_prints_the_report(run):
    code, out, err = run("report", "glm-5.2-fp8")
    assert (code, err) == (0, "")
    assert out.startswith("### Capacity: 1 of 1 specs fit")
    assert json.loads(run("report", "glm-5.2-fp8", "--json")[1])["schema"] == "hsplan.report/1"


def test_two_specs_of_one_name_are_refused(run):
    code, out, err = run("report", "glm-5.2-fp8", "glm-5.2-fp8")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "two specs are named glm-5.2-fp8"


def test_a_spec_that_does_not_fit_is_exit_code_1(run, tmp_path):
    path = written(tmp_path / "small.yaml", GLM_5_2.replace("gpu: h200", "gpu: l40s"))
    code, out, err = run("report", path)
    assert (code, err) == (1, "my-glm: does not fit as launched\n")
    assert "- **my-glm** does not fit: " in out


def test_a_pattern_that_matched_no_file_is_said_and_nothing_is_written(run, tmp_path):
    target = tmp_path / "q.json"
    code, out, err = run("report", str(tmp_path / "*.yaml"), "glm-5.2-fp8", "-o", str(target))
    assert (code, out) == (2, "")
    assert err.splitlines()[0].endswith("*.yaml matched no file")
    assert not target.exists()


def test_a_refused_spec_says_why(run, tmp_path):
    assert (
        run("report", "nowhere.yaml", "-o", str(tmp_path / "q.json"))[2]
        == "nowhere: is refused: no spec 'nowhere.yaml'\n"
    )


def test_500_specs_take_less_than_5_seconds(run, tmp_path):
    text = GLM_5_2.replace("name: my-glm", "name: glm-{}")
    paths = [written(tmp_path / f"{i}.yaml", text.replace("{}", str(i))) for i in range(500)]
    files = [str(tmp_path / name) for name in ("r.json", "r.md", "r.xml", "r.csv")]
    begin = time.process_time()
    code = run("report", *paths, "-o", files[0], "--markdown", files[1], "--junit", files[2], "--csv", files[3])[0]
    assert code == 0
    assert time.process_time() - begin < 5


def test_diff_says_what_changed_and_which_lines_caused_it(run, tmp_path):
    old = written(tmp_path / "old.yaml", GLM_5_2)
    new = written(tmp_path / "new.yaml", GLM_5_2.replace("weights: {checkpoint: nvfp4}", "weights: {checkpoint: fp8}"))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, target in zip((old, new), files, strict=True):
        assert run("report", path, "-o", target)[0] == 0
    code, out, err = run("diff", *files)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "my-glm: changed"
    budget = [line for line in lines if line.startswith("  budget: ")]
    assert budget[0].startswith("  budget: weights: ")
    assert any(line.startswith("  tokens: ") and line.endswith(" %)") for line in lines)
    found = json.loads(run("diff", *files, "--json")[1])
    assert found["specs"][0]["budget_lines"][0]["name"] == "weights"
    assert {change["name"] for change in found["specs"][0]["pool_lines"]} >= {"KV rows", "index-K"}


SERVED = """\
name: served
model: glm-5.2-fp8
deployment: {gpu: h200, tp: 8, kv_cache_dtype: fp8_e4m3, max_running_requests: 64}
offload: {host_to_device_ratio: 8, device_buffer_size: 4096}
workload: {context: 131072}
"""


def diff_of(run, tmp_path, old: str, new: str) -> tuple[list[str], dict]:
    """Text and JSON of the difference between two specs."""
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for text, target in zip((old, new), files, strict=True):
        assert run("report", written(tmp_path / "spec.yaml", text), "-o", target)[0] == 0
    return run("diff", *files)[1].splitlines(), json.loads(run("diff", *files, "--json")[1])["specs"][0]


def test_diff_names_the_key_that_changed_and_the_budget_that_no_line_of_the_ledger_moves(run, tmp_path):
    """SGLang takes a fraction of 0.886 instead of 0.892 for 512 requests: 0.114 and 0.108 of 138.00 GiB stay out."""
    new = SERVED.replace("max_running_requests: 64", "max_running_requests: 512")
    lines, found = diff_of(run, tmp_path, SERVED, new)
    assert found["settings"] == [{"name": "max_running_requests", "before": 64, "after": 512}]
    assert found["budget_lines"] == [
        {"name": "left out of the KV budget", "before": 16_003_206_690, "after": 16_892_273_728}
    ]
    assert "  max_running_requests: 64 → 512" in lines
    assert "  tokens: 274,688 → 268,032 (−2.42 %)" in lines
    assert "  budget: left out of the KV budget: 14.90 GiB → 15.73 GiB (+847.88 MiB)" in lines
    shown = re.findall(r"```text\n(served: changed\n.+?)\n```", README, re.DOTALL)[0].splitlines()
    assert shown == [line for line in lines if line in shown]
    assert not any("-" in line for line in lines if line.endswith(" %)"))


def test_diff_names_keys_of_every_section_and_fields_of_the_model(run, tmp_path):
    new = """\
name: served
model: glm-5.1-fp8
weights: {bytes_per_rank: 89GiB}
deployment: {gpu: h200, tp: 8, max_running_requests: 64}
offload: {host_to_device_ratio: 9.5, device_buffer_size: 4096, host_memory: 2TiB}
workload: {context: 65536, step_ms: {fixed: 12}}
"""
    lines, found = diff_of(run, tmp_path, SERVED, new)
    for line in (
        "  context: 131,072 → 65,536",
        "  bytes_per_rank: – → 95,563,022,336",
        "  kv_cache_dtype: fp8_e4m3 → –",
        "  host_to_device_ratio: 8 → 9.5",
        "  host_memory: – → 2,199,023,255,552",
        "  row_bytes: 656 B → 1,152 B",
    ):
        assert line in lines
    names = [change["name"] for change in found["settings"]]
    assert {"step_ms", "model.index_topk_freq", "model.indexer_types"} <= set(names)
    assert len(names) == len(set(names))
    assert not {"gpu", "tp", "max_running_requests", "device_buffer_size", "name", "source"} & set(names)


def test_the_release_as_given_is_named_where_it_resolves_to_the_same(run, tmp_path):
    lines, found = diff_of(run, tmp_path, SERVED, SERVED.replace("{gpu:", "{release: 0.5.23, gpu:"))
    assert found["settings"] == [{"name": "release", "before": None, "after": "0.5.23"}]
    assert lines == ["served: changed", "  release: – → 0.5.23", "0 of 1 specs are the same as launched"]


def test_diff_names_added_removed_refused_and_readmitted_specs(run, tmp_path):
    before = written(tmp_path / "a.json", report(spec("same"), spec("gone"), spec("bad"), refused("good")))
    after = written(tmp_path / "b.json", report(spec("same"), spec("new"), refused("bad"), spec("good")))
    out = run("diff", before, after)[1]
    assert out.splitlines() == [
        "new: added", "bad: refused", "good: readmitted", "gone: removed", "1 of 5 specs are the same as launched",
    ]  # fmt: skip
    assert run("diff", before, written(tmp_path / "c.json", "{"))[0] == 2


def test_two_files_to_write_are_two(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("report", "glm-5.2-fp8", "-o", "same", "--markdown", "./same")
    assert (code, err.splitlines()) == (
        2, ["same: is given twice, and one would take the other's place", "  give two files"],
    )  # fmt: skip
    assert not Path("same").exists()
    run("report", "glm-5.2-fp8", "-o", "r.json")
    before = Path("r.json").read_bytes()
    assert run("check", "r.json", "--junit", "r.json")[0] == 2
    assert Path("r.json").read_bytes() == before


def test_a_pipe_is_not_waited_for(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for command in (
        ("check", "pipe"), ("diff", "pipe", "pipe"), ("estimate", "glm-5.2-fp8", "--calibration", "pipe"),
        ("report", "glm-5.2-fp8", "--html", "x.html", "--validated", "pipe"),
    ):  # fmt: skip
        code, _, err = run(*command)
        assert code == 2
        assert "pipe: cannot be read: it is not a regular file" in err
