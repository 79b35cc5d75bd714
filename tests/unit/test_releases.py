"""Releases and dated builds: which exist, which are too old or too new, and what is uncertain between two of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from configs import GLM_5, spec_of

import hsplan
from hsplan import InputError, UnsupportedError
from hsplan.engines.sglang import releases
from hsplan.engines.sglang.releases import RELEASES, SWITCHES


def planned(release):
    return hsplan.plan(spec_of(GLM_5, release=release, kv_budget="64GiB")).to_dict()


def notes(release):
    return [note for note in planned(release)["notes"] if note.startswith("main-")]


@pytest.mark.parametrize("release", ["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_the_seven_releases_are_known_with_or_without_a_v(release):
    assert planned(release)["engine"] == {"name": "sglang", "release": release}
    assert planned("v" + release)["engine"]["release"] == release


def test_latest_is_0_5_23():
    assert planned("latest")["engine"]["release"] == "0.5.23"


@pytest.mark.parametrize("build", ["main-2025-10-08", "main-2026-02-16", "main-2026-08-17", "main-2026-10-30"])
def test_a_dated_build_keeps_its_name(build):
    assert planned(build)["engine"]["release"] == build


@pytest.mark.parametrize(
    ("release", "nearest"),
    [
        ("0.5.16", "0.5.17"),
        ("0.5.24", "0.5.23"),
        ("0.5.180", "0.5.23"),
        ("0.4.9", "0.5.17"),
        ("0.6.0", "0.5.23"),
        ("1.0", "0.5.23"),
        ("0.5", "0.5.17"),
        ("0.5.20.post1", "0.5.20"),
        ("main", "0.5.17"),
        ("", "0.5.17"),
    ],
)
def test_an_unknown_release_is_refused_with_the_nearest_one(release, nearest):
    with pytest.raises(UnsupportedError) as caught:
        planned(release)
    head, remedy = caught.value.lines()
    assert caught.value.exit_code == 3
    assert head == f"deployment.release: SGLang {release!r} is not a release hsplan knows"
    assert remedy.startswith(f"  nearest: {nearest}; known: 0.5.17, 0.5.18, ")


@pytest.mark.parametrize(
    "release",
    [
        "x" * 10_000,
        "9" * 10_000,
        "0.5.\u00b2",
        "0.5.\u0661\u0667",
        "\x1b[2J",
        "main-2026-08-17\n",
        "main-2026-8-17",
        "MAIN-2026-08-17",
    ],
)
def test_an_odd_release_is_refused_in_two_printable_lines(release):
    with pytest.raises(UnsupportedError) as caught:
        planned(release)
    assert len(caught.value.lines()) == 2
    assert all(line.isprintable() and len(line) < 250 for line in caught.value.lines())


@pytest.mark.parametrize(
    ("build", "nearest"),
    [
        ("main-2025-10-07", "main-2025-10-08"),
        ("main-2024-01-01", "main-2025-10-08"),
        ("main-0001-01-01", "main-2025-10-08"),
    ],
)
def test_a_build_before_the_first_known_one_is_refused(build, nearest):
    with pytest.raises(UnsupportedError) as caught:
        planned(build)
    assert caught.value.lines() == [
        f"deployment.release: SGLang {build} is older than the first known build",
        f"  nearest: {nearest}",
    ]


@pytest.mark.parametrize("build", ["main-2026-10-31", "main-2027-01-01", "main-9999-12-31"])
def test_a_build_after_the_last_read_release_is_refused(build):
    with pytest.raises(UnsupportedError) as caught:
        planned(build)
    assert caught.value.lines() == [
        f"deployment.release: SGLang {build} is newer than what hsplan has read",
        "  nearest: 0.5.23",
    ]


@pytest.mark.parametrize("day", ["2026-13-01", "2026-02-30", "2026-00-10", "0000-01-01", "2026-06-31"])
def test_a_day_that_does_not_exist_is_an_error_of_input(day):
    with pytest.raises(InputError) as caught:
        planned(f"main-{day}")
    assert caught.value.lines() == [f"deployment.release: {day} is no date", "  write main-YYYY-MM-DD"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        ("main-2026-09-05", "first release 0.5.20"),
        ("main-2026-09-17", "first release 0.5.20"),
        ("main-2026-09-19", "first release 0.5.21"),
        ("main-2026-09-30", "first release 0.5.21"),
        ("main-2026-10-02", "first release 0.5.22"),
        ("main-2026-10-14", "first release 0.5.22"),
    ],
)
def test_a_build_between_two_releases_says_what_is_uncertain(build, words):
    assert len(notes(build)) == 1
    assert words in notes(build)[0]
    assert "the build is priced without it" in notes(build)[0]


@pytest.mark.parametrize(
    "release",
    [
        "main-2026-08-17",
        "main-2026-09-04",
        "main-2026-09-18",
        "main-2026-10-01",
        "main-2026-10-15",
        "0.5.19",
        "0.5.21",
        "0.5.23",
    ],
)
def test_releases_and_builds_of_a_known_state_carry_no_such_note(release):
    assert notes(release) == []


def test_0_5_17_was_cut_with_the_true_row_and_before_elision():
    assert SWITCHES["true_row_charged"] <= RELEASES["0.5.17"] < SWITCHES["elision"] <= RELEASES["0.5.18"]


def test_the_dates_of_the_releases_rise():
    assert list(RELEASES.values()) == sorted(RELEASES.values())
    assert list(RELEASES) == ["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]


def test_every_switch_that_is_asked_for_exists_and_every_one_is_asked_for():
    folder = Path(releases.__file__).parent
    asked = {name for file in folder.rglob("*.py") for name in re.findall(r'\bhas\("(\w+)"\)', file.read_text("utf-8"))}
    assert asked | {name for name in SWITCHES if name.startswith("without_")} == set(SWITCHES)
