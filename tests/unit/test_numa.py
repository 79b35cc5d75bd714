"""The node of a card and its processors, on machines made of files."""

import os

import pytest

from hsplan.gpu import numa
from hsplan.gpu.numa import node_of, processors, stay_at

BUS = "0000:1b:00.0"


def machine(root, *, card="1\n", cpulists=("0-3\n", "4-7\n")):
    """A machine whose card names a node, with processors for each node."""
    place = root / "sys/bus/pci/devices" / BUS
    place.mkdir(parents=True)
    (place / "numa_node").write_text(card)
    for node, cpulist in enumerate(cpulists):
        folder = root / "sys/devices/system/node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpulist)
    return root


@pytest.mark.parametrize(("card", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None)])
def test_the_kernel_tells_the_node_of_a_card_or_minus_one(tmp_path, card, node):
    assert node_of(BUS, machine(tmp_path, card=card)) == node


def test_a_card_that_is_not_known_has_no_node(tmp_path):
    assert node_of("0000:ff:00.0", machine(tmp_path)) is None
    assert node_of(None, tmp_path) is None


@pytest.fixture
def affinity(monkeypatch):
    """What the process is bound to; it may run on processors 0 to 5."""
    bound = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus), raising=False)
    return bound


def test_a_process_stays_on_those_processors_of_the_node_that_it_may_use(tmp_path, affinity):
    assert stay_at(1, machine(tmp_path))
    assert affinity == [{4, 5}]


def test_a_process_stays_where_it_is_when_the_node_has_none_for_it(tmp_path, affinity):
    assert not stay_at(1, machine(tmp_path, cpulists=("0-5\n", "6-7\n")))
    assert affinity == []


@pytest.mark.parametrize(("node", "cpulists"), [(None, ("0-3\n", "4-7\n")), (0, ("0-7\n",)), (2, ("0-3\n", "4-7\n"))])
def test_without_a_choice_of_nodes_nothing_is_bound(tmp_path, affinity, node, cpulists):
    assert not stay_at(node, machine(tmp_path, cpulists=cpulists))
    assert affinity == []


def test_a_system_that_does_not_let_a_process_bind_itself_is_no_error(tmp_path, affinity, monkeypatch):
    del affinity

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(numa.os, "sched_setaffinity", refuse)
    assert not stay_at(1, machine(tmp_path))


@pytest.mark.parametrize(
    ("listed", "found"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5\n", {5}), ("\n", set()), ("0-1,4-5\n", {0, 1, 4, 5})]
)
def test_lists_of_processors_are_read_as_the_kernel_writes_them(listed, found):
    assert processors(listed) == found


def test_anything_else_is_no_list():
    with pytest.raises(ValueError, match="invalid literal"):
        processors("all")
