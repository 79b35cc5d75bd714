"""The table of reported bugs, `scenarios.yaml`: whole, and naming tests that exist."""

import ast
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parent
LINES = (FOLDER / "scenarios.yaml").read_text().splitlines()
SCENARIOS = yaml.safe_load("\n".join(LINES))
IDS = """
T1 T2 T5 T6 T7 T8 T9
T12 T13 T14 T15 T16 T17 T18 T19
T20 T21 T22 T23 T24 T25 T26 T27 T28 T29 T30 T31 T32
""".split()


def test_every_scenario_stands_in_the_table_once():
    assert [line.rstrip(":") for line in LINES if line.startswith("T")] == IDS


@pytest.mark.parametrize("number", IDS)
def test_a_scenario_names_tests_that_exist_or_a_reason(number):
    scenario = SCENARIOS[number]
    assert set(scenario) <= {"bug", "tests", "reason"}
    assert scenario["bug"].endswith(".")
    assert scenario.get("tests") or scenario["reason"].endswith(".")
    for test in scenario.get("tests", []):
        file, name = test.split("::")
        tree = ast.parse((FOLDER / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
