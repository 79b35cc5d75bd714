"""`-o FILE`: whole or not at all."""

import json
import os

import pytest

from hsplan.cli import output

NEEDS_PERMISSIONS = pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")


def test_output_goes_to_the_file_and_not_to_stdout(run, tmp_path, glm):
    target = tmp_path / "plan.json"
    assert run("estimate", glm, "--json", "-o", str(target)) == (0, "", "")
    assert json.loads(target.read_bytes())["schema"] == "hsplan.plan/1"
    assert run("estimate", glm, "--output", str(target)) == (0, "", "")
    assert target.read_text("utf-8").startswith("my-glm: sglang 0.5.23, 8 × h200")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_model.yaml", "plan.json"]


def test_a_plan_that_does_not_fit_is_written_too(run, tmp_path, glm):
    target = tmp_path / "plan.json"
    code, out, err = run("estimate", glm, "--gpu", "l40s", "--json", "-o", str(target))
    assert (code, out) == (1, "")
    assert err.startswith("elided does not fit: ")
    assert json.loads(target.read_bytes())["scenarios"]["elided"]["fits"] is False


def test_a_failed_write_leaves_the_old_file_and_nothing_else(run, tmp_path, glm, monkeypatch):
    target = tmp_path / "plan.json"
    target.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "fsync", full)
    code, out, err = run("estimate", glm, "-o", str(target))
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"{target}: cannot be written: No space left on device"
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_model.yaml", "plan.json"]


def test_wrong_input_leaves_the_old_file(run, tmp_path, glm):
    target = tmp_path / "plan.json"
    target.write_text("old")
    assert run("estimate", glm, "--tp", "abc", "-o", str(target))[0] == 2
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    ("name", "reason"),
    [(".", "it is a folder"), ("missing/plan.json", "No such file or directory"), ("/dev/null", "not a regular file")],
)
def test_a_target_that_cannot_be_replaced_is_refused(run, tmp_path, glm, name, reason):
    code, out, err = run("estimate", glm, "-o", str(tmp_path / name))
    assert (code, out) == (2, "")
    assert reason in err.splitlines()[0]
    assert len(err.splitlines()) == 2


@NEEDS_PERMISSIONS
def test_a_read_only_folder_or_file_is_refused(run, tmp_path, glm):
    folder, file = tmp_path / "locked", tmp_path / "locked.json"
    folder.mkdir(mode=0o500)
    file.write_text("old")
    file.chmod(0o400)
    for target in (folder / "plan.json", file):
        code, _, err = run("estimate", glm, "-o", str(target))
        assert code == 2
        assert err.startswith(f"{target}: cannot be written: ")
    assert file.read_text() == "old"


def test_a_link_stays_and_its_file_is_replaced_with_its_permissions(run, tmp_path, glm):
    target, link = tmp_path / "plan.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("estimate", glm, "--json", "-o", str(link))[0] == 0
    assert link.is_symlink()
    assert target.read_text().startswith("{")
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_new_file_follows_the_umask(run, tmp_path, glm):
    old = os.umask(0o027)
    try:
        assert run("estimate", glm, "-o", str(tmp_path / "plan.txt"))[0] == 0
    finally:
        os.umask(old)
    assert (tmp_path / "plan.txt").stat().st_mode & 0o777 == 0o640
