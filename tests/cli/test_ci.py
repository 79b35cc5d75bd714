"""The action and the snippets of docs/ci.md, run as far as they go without a network, in a repository of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import junitparser
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/ci.md").read_text("utf-8")
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]
SPEC = "name: {}\nmodel: glm-5.2-fp8\ndeployment: {{gpu: h200, tp: 8, max_running_requests: 64, mem_fraction: {}}}\n"


@pytest.fixture
def repository(tmp_path):
    """A clone whose branch lowers one of two specs, a remote with `main`, and `hsplan` on the path."""
    remote, clone, programs = (tmp_path / name for name in ("remote", "clone", "bin"))
    programs.mkdir()
    (programs / "hsplan").write_text(f'#!/bin/sh\nexec {sys.executable} -m hsplan "$@"\n')
    (programs / "hsplan").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path),
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
        **{f"GIT_{who}_{what}": "test@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }  # fmt: skip

    def shell(script: str, folder: Path = clone, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-eo", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=folder, env={**environment, **more}, capture_output=True, text=True, check=False
        )

    (remote / "specs").mkdir(parents=True)
    for name in ("a", "b"):
        (remote / "specs" / f"{name}.yaml").write_text(SPEC.format(name, 0.9))
    done = shell(f"git init -qb main && git add . && git commit -qm 1 && git clone -q . {clone}", remote)
    assert done.returncode == 0, done.stderr
    (clone / "specs" / "b.yaml").write_text(SPEC.format("b", 0.8))
    assert shell("git commit -qam 2").returncode == 0
    return shell


def without_installing(script: str, folder: Path) -> str:
    """The script with its own place for /tmp, and without what needs a network."""
    lines = [line for line in script.splitlines() if "pip install" not in line]
    return "\n".join(lines).replace("/tmp/", f"{folder}/")  # noqa: S108 - the snippet's own


def action_step(**inputs: str) -> tuple[str, dict[str, str]]:
    """The script of the action's last step, and its variables with the defaults of the inputs."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    step = action["runs"]["steps"][-1]
    given = {name: inputs.get(name, str(value.get("default", ""))) for name, value in action["inputs"].items()}
    names = {key: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)[1] for key, value in step["env"].items()}
    return step["run"], {key: given[name] for key, name in names.items()}


def test_the_github_workflow_stops_the_change_with_a_summary_and_annotations(repository, tmp_path):
    steps = SNIPPETS[0]["jobs"]["capacity"]["steps"]
    base = repository(without_installing(steps[2]["run"], tmp_path), GITHUB_BASE_REF="main")
    assert base.returncode == 0, base.stderr
    inputs = {key: str(value).replace("/tmp/", f"{tmp_path}/") for key, value in steps[3]["with"].items()}  # noqa: S108
    script, variables = action_step(**inputs)
    done = repository(script, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert done.returncode == 1
    assert re.search(r"^::error file=specs/b\.yaml,title=hsplan%3A b::[\d,]+ tokens became ", done.stdout, re.MULTILINE)
    assert (tmp_path / "summary").read_text("utf-8").startswith("### Capacity: 2 of 2 specs fit")
    suites = junitparser.JUnitXml.fromfile(str(tmp_path / "clone/hsplan/junit.xml"))
    assert (suites.tests, suites.failures) == (2, 1)


@pytest.mark.parametrize(
    ("inputs", "code", "words"),
    [
        ({"specs": "specs/*.yaml"}, 0, "2 of 2 specs pass"),
        ({"specs": "specs/a.yaml", "min-tokens": "1"}, 0, "1 of 1 specs pass"),
        ({"specs": "specs/*.yaml", "min-tokens": "999999999"}, 1, "tokens are fewer than 999,999,999"),
        ({"specs": "specs/*.yaml", "max-host": "0"}, 0, "2 of 2 specs pass"),
        ({"specs": "specs/none.yaml"}, 1, "it is refused: no spec"),
        ({"specs": "specs/*.yaml", "baseline": "; touch hacked"}, 2, "cannot be read"),
        ({"specs": "$(touch hacked)"}, 1, "it is refused"),
    ],
)
def test_the_action_with_other_inputs(repository, tmp_path, inputs, code, words):
    script, variables = action_step(**inputs)
    done = repository(script, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert done.returncode == code
    assert words in done.stdout + done.stderr
    assert not (tmp_path / "clone" / "hacked").exists()


def test_the_gitlab_job_stops_the_change_and_leaves_its_reports(repository, tmp_path):
    job = SNIPPETS[1]["capacity"]
    script = without_installing("\n".join(job["script"]), tmp_path)
    done = repository(script, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main")
    assert done.returncode == 1
    assert "b: " in done.stdout
    for path in [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]:
        assert (tmp_path / "clone" / path).stat().st_size > 0
    assert json.loads((tmp_path / "clone/capacity.json").read_text())["schema"] == "hsplan.report/1"


def test_the_pre_commit_hook_fails_for_a_spec_that_does_not_fit(repository, tmp_path):
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    assert [hook["id"] for hook in SNIPPETS[2]["repos"][0]["hooks"]] == list(hooks)
    hook = hooks["hsplan"]
    assert re.search(hook["files"], "specs/a.yaml")
    assert not re.search(hook["files"], "README.md")
    assert repository(f"{hook['entry']} specs/a.yaml specs/b.yaml").returncode == 0
    (tmp_path / "clone/specs/c.yaml").write_text(SPEC.format("c", 0.9).replace("h200", "l40s"))
    done = repository(f"{hook['entry']} specs/a.yaml specs/c.yaml")
    assert (done.returncode, done.stderr) == (1, "c: does not fit as launched\n")
