"""What the README shows is what the commands print, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

import hsplan
from hsplan.cli import main
from hsplan.cli.measured import measured
from hsplan.engines import ENGINES
from hsplan.engines.sglang import releases as sglang
from hsplan.engines.vllm import releases as vllm
from hsplan.families import FAMILIES
from hsplan.hardware import GPUS
from hsplan.measurement import Measurement

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [tuple(block.split("\n", 1)) for block in re.findall(r"```console\n\$ (.+?)\n?```", README, re.DOTALL)]
SHOWN = [(command.rpartition("&& ")[2], output) for command, output in (b for b in BLOCKS if len(b) == 2)]


def test_the_readme_shows_at_least_two_commands_with_their_output():
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command[:50] for command, _ in SHOWN])
def test_a_shown_output_is_what_the_command_prints(command, output, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    program, *arguments = shlex.split(command)
    assert program == "hsplan"
    assert main(arguments) == 0
    assert capsys.readouterr().out.rstrip() == output.rstrip()


def test_the_shown_validation_is_that_of_the_committed_result():
    result = json.loads((ROOT / "benchmarks/results/validate-h200-2026-11-30.json").read_text(encoding="utf-8"))
    data = result["cases"][0]["measurement"]
    found = msgspec.convert({key: data[key] for key in Measurement.__struct_fields__}, Measurement)
    text = measured(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3"), found)
    shown = re.findall(r"```text\n(glm-5.2-fp8: .+?)\n```", README, re.DOTALL)[0]
    assert shown.splitlines() == [line for line in text.splitlines() if line in shown.splitlines()]
    assert "all 12 claims hold on NVIDIA H200" in shown


def test_ci_runs_the_test_command_of_the_readme_word_for_word():
    commands = [block[0] for block in BLOCKS if "pytest" in block[0]]
    assert len(commands) == 1
    assert commands[0] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_support_tables_name_all_releases_families_architectures_and_gpus():
    assert list(ENGINES) == ["sglang", "vllm"]
    for engine in (sglang, vllm):
        row = next(line for line in README.splitlines() if line.startswith(f"| {engine.CALENDAR.engine} |"))
        assert all(release in row for release in engine.RELEASES)
        assert engine.FIRST_BUILD in row
    for family in FAMILIES:
        for architecture in family.ARCHITECTURES:
            assert f"`{architecture}`" in README
    for gpu in GPUS:
        assert f"`{gpu}`" in README
