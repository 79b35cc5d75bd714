"""Help and completion: every command and every leaf key."""

import pytest
import typer

from hsplan.cli.app import app
from hsplan.cli.options import HELP
from hsplan.spec.schema import leaf_sections

GROUPS = [(), ("specs",)]
COMMANDS = [
    ("estimate",),
    ("validate",),
    ("simulate",),
    ("advise",),
    ("calibrate",),
    ("report",),
    ("check",),
    ("diff",),
    ("specs", "list"),
    ("specs", "show"),
    ("specs", "import"),
    ("specs", "schema"),
]


def _commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))


def test_the_commands_are_the_ones_listed_here():
    assert sorted(_commands(typer.main.get_command(app))) == sorted([*COMMANDS, *GROUPS[1:]])


@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS], ids=" ".join)
def test_every_command_has_help_and_an_example_in_80_columns(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert "Example: hsplan" in out
    assert " ".join(["Usage: hsplan", *command]) in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_estimate_has_an_option_for_each_leaf_key_and_no_other(run):
    estimate = typer.main.get_command(app).commands["estimate"]
    own = {"spec", "offload", "as_json", "output", "show_ledger", "explain", "calibration"}
    assert {parameter.name for parameter in estimate.params} - own == set(leaf_sections())
    assert set(HELP) == set(leaf_sections())
    out = run("estimate", "--help")[1]
    hidden = [leaf for leaf in HELP if f"--{leaf.replace('_', '-')} " not in out]
    assert hidden == []


def test_help_groups_the_options_by_section(run):
    out = run("estimate", "--help")[1]
    panels = [line.split("─ ")[1].split(" ─")[0] for line in out.splitlines() if line.startswith("╭─ ")]
    assert panels == ["Arguments", "Options", "Deployment", "Offload", "Workload", "Weights", "Calibration", "Output"]


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_prints_its_help(run, group):
    code, out, err = run(*group)
    assert (code, err) == (2, "")
    assert "Usage: hsplan" in out
