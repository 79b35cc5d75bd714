"""The touch test of host memory, in small steps on a machine that says what it is told to."""

import mmap
from types import SimpleNamespace

import pytest

from hsplan.gpu import touch
from hsplan.gpu.touch import touchable_bytes

KIB = 2**10


def quiet(done, total):
    del done, total


class Mappings(list):
    """Notes every mapping that is made."""

    def __init__(self, monkeypatch):
        super().__init__()
        real = mmap.mmap
        monkeypatch.setattr(touch.mmap, "mmap", lambda *a, **k: self.append(real(*a, **k)) or self[-1])

    def all_given_back(self):
        return all(mapping.closed for mapping in self)


@pytest.fixture
def mappings(monkeypatch):
    return Mappings(monkeypatch)


def touched(wanted, answers, progress=quiet):
    """Touch in steps of 100 KiB, 20 to spare, with these answers to how much is available."""
    left = iter(answers)
    reached = touchable_bytes(
        wanted, lambda: next(left), progress, step_bytes=100 * KIB, spare_bytes=20 * KIB, pause_s=0
    )
    return reached, list(left)


def test_all_that_is_wanted_is_reached_in_steps(mappings):
    seen = []
    assert touched(250 * KIB, [500 * KIB] * 3, lambda *step: seen.append(step)) == (250 * KIB, [])
    assert seen == [(100 * KIB, 250 * KIB), (200 * KIB, 250 * KIB), (250 * KIB, 250 * KIB)]
    assert len(mappings) == 3
    assert mappings.all_given_back()


def test_the_test_stops_before_the_step_that_leaves_too_little(mappings):
    assert touched(900 * KIB, [120 * KIB, 20 * KIB, 19 * KIB, 19 * KIB, 500 * KIB]) == (200 * KIB, [500 * KIB])
    assert mappings.all_given_back()


def test_a_machine_that_grows_between_two_looks_is_touched_on(mappings):
    assert touched(200 * KIB, [10 * KIB, 99 * KIB, 0, 99 * KIB]) == (200 * KIB, [])
    assert mappings.all_given_back()


def test_a_second_look_waits_a_moment(monkeypatch):
    waits = []
    monkeypatch.setattr(touch, "time", SimpleNamespace(sleep=waits.append))
    assert touchable_bytes(5, lambda: 0, quiet) == 0
    assert waits == [1.0]


def test_each_step_is_written_before_it_is_looked_at(monkeypatch):
    sizes = []
    monkeypatch.setattr(touch, "_write_each_page", lambda mapping: sizes.append(len(mapping)))
    touchable_bytes(250, lambda: sizes.append("look") or 500, quiet, step_bytes=100, spare_bytes=0)
    assert sizes == [100, "look", 100, "look", 50, "look"]


def test_a_byte_of_each_page_is_written_of_the_last_part_too():
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 3 * page + 5, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        mapping[:] = b"x" * (3 * page + 5)
        touch._write_each_page(mapping)
        written = [i for i, byte in enumerate(mapping[:]) if byte == 0]
    assert written == [0, page, 2 * page, 3 * page]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
def test_all_is_given_back_when_it_is_broken_off(mappings, error):
    looks = iter([500 * KIB])

    def available():
        for left in looks:
            return left
        raise error

    with pytest.raises(error):
        touchable_bytes(900 * KIB, available, quiet, step_bytes=100 * KIB, spare_bytes=0)
    assert len(mappings) == 2
    assert mappings.all_given_back()


def test_a_mapping_that_is_refused_ends_the_test_where_it_is(monkeypatch):
    real, made = mmap.mmap, []

    def mapped(*arguments, **flags):
        if len(made) == 2:
            raise OSError(12, "Cannot allocate memory")
        made.append(real(*arguments, **flags))
        return made[-1]

    monkeypatch.setattr(touch.mmap, "mmap", mapped)
    assert touched(900 * KIB, [500 * KIB] * 3) == (200 * KIB, [500 * KIB])
    assert all(mapping.closed for mapping in made)


def test_nothing_wanted_maps_nothing(mappings):
    assert touched(0, []) == (0, [])
    assert not mappings
