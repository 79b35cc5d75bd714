"""
What ranks of one machine do on cards, with a stand-in for the cards and for the other ranks.

The second of two ranks runs; the first is pretended to have less memory, and to say what a test wants.
"""

from types import SimpleNamespace

import msgspec
import pytest
import torch
from stand_in import GIB, HOST_POOL, MACHINE, RATE, TIMING, StandIn, confirmed, tiny

import hsplan
from hsplan.gpu import link as linking
from hsplan.gpu import timing as timings
from hsplan.gpu import validate as whole
from hsplan.gpu.group import ALONE, Alone
from hsplan.gpu.verdicts import copies_check
from hsplan.measurement import LinkRate
from hsplan.ranks import Rank, combined

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")


class Second(Alone):
    """The second rank of two; `others` are the first one's figures, in order, `met` is where both have met."""

    rank = local_rank = 1
    size = local_size = 2

    def __init__(self, *others):
        self.others, self.met = list(others), []

    def meet(self, what=""):
        self.met.append(what)

    def gather(self, text):
        self.meet()
        return [str(self.others.pop(0)) if self.others else text, text]

    def in_turn(self, act, what):
        self.met.append(f"turn: {what}")
        return act()

    def all_tensors(self, tensor):
        self.meet("tensors")
        return torch.stack([tensor, tensor])


def run(monkeypatch, group, **options):
    """What the second rank finds on a stand-in card with 20 GiB free."""
    asked = {}

    def preflight(*, host_memory, needed_host_bytes, progress, group):
        del progress
        asked["preflight"] = (host_memory, needed_host_bytes, group.local_size)
        return MACHINE

    monkeypatch.setattr(whole, "Place", lambda _: StandIn("cpu"))
    monkeypatch.setattr(whole, "preflight", preflight)
    monkeypatch.setattr(whole, "confirm_tokens", confirmed)
    monkeypatch.setattr(whole, "measure_link", lambda **_: ((RATE,), (RATE, RATE)))
    monkeypatch.setattr(whole, "time_steps", lambda decode, alone, together, *_: asked.update(
        timing=(decode.sizes.requests, alone, together)) or ((TIMING,), (TIMING, TIMING)))  # fmt: skip
    options = {"gpu": True, "steps": 2, "host_memory": None, "fault": None, **options}
    return whole.of_rank(hsplan.plan(tiny(tp=2)), report=lambda *_: None, group=group, **options), asked


@interpreted
def test_a_rank_keeps_what_it_measured_alone_and_with_all_apart(monkeypatch):
    found, asked = run(monkeypatch, Second())
    assert (found.alone_link, found.measurement.link) == ((RATE,), (RATE, RATE))
    assert (found.alone_timings, found.measurement.timings) == ((TIMING,), (TIMING, TIMING))
    assert asked["timing"] == (2, (RATE,), (RATE, RATE))
    assert found.measurement.passed
    assert found.measurement.checks[-1].name == "copies"
    assert found.measurement.checks[-1].detail == "128 slots as on rank 0"


@interpreted
def test_a_single_rank_is_a_group_too(monkeypatch):
    found, _ = run(monkeypatch, ALONE)
    one = Rank(
        rank=0,
        local_rank=0,
        host="a",
        copy_of=0,
        gpu_node=None,
        clock_mhz=found.clock_mhz,
        alone_link=found.alone_link,
        alone_timings=(),
        measurement=msgspec.structs.replace(found.measurement, link=found.alone_link),
    )
    result = combined((one,), planned_node_bytes=0)
    assert [(rate.alone_gb_s, rate.together_gb_s) for rate in result.link] == [((50.0,), (50.0,))]
    assert result.slowest is None


@interpreted
def test_pools_are_of_the_size_that_every_rank_can_hold(monkeypatch):
    found, _ = run(monkeypatch, Second(HOST_POOL - 1), steps=1)
    # The first rank has a byte of host memory less than 640 tokens take: 640 × 0.97 in whole pages.
    assert found.measurement.scaled == (
        "pools of 576 device tokens instead of 640: host memory is smaller than planned",
    )


@interpreted
def test_the_card_with_the_least_memory_rules_for_all(monkeypatch):
    found, _ = run(monkeypatch, Second(HOST_POOL, 6 * GIB + 2**20), steps=1)
    assert found.measurement.scaled[0] == "no room is kept for the weights, 0.05 GiB"


@interpreted
@pytest.mark.parametrize(("size", "injected"), [(2, "short-pool"), (3, None)])
def test_the_fault_goes_into_the_last_rank_and_none_is_timed(monkeypatch, size, injected):
    group = Second()
    group.size = size
    found, asked = run(monkeypatch, group, fault="short-pool", steps=4)
    assert (found.measurement.injected, found.measurement.passed) == (injected, injected is None)
    assert (found.measurement.link, found.measurement.timings, "timing" in asked) == ((), (), False)


ORDER = torch.tensor([[[5, 3, 1], [9, 8, 7]]])


def orders(first, second):
    group = Second()
    group.all_tensors = lambda _: torch.stack([first, second])
    return copies_check(second, 2, group)


def test_ranks_that_keep_the_same_rows_agree():
    (check,) = orders(ORDER, ORDER)
    assert (check.name, check.passed, check.detail) == ("copies", True, "6 slots as on rank 0")


def test_a_rank_that_keeps_other_rows_than_the_first_of_its_group_is_wrong():
    other = ORDER.clone()
    other[0, 1, 0] = 10
    (check,) = orders(ORDER, other)
    assert (check.passed, check.detail) == (False, "1 of 6 slots differ from rank 0")


def test_a_rank_is_compared_with_the_first_of_its_own_group():
    group = SimpleNamespace(rank=3, size=4, all_tensors=lambda _: torch.stack([ORDER + 1, ORDER + 1, ORDER, ORDER]))
    (check,) = copies_check(ORDER, 2, group)
    assert (check.passed, check.detail) == (True, "6 slots as on rank 2")


def test_without_copies_there_is_nothing_to_compare():
    assert copies_check(ORDER, 1, Second()) == ()
    assert copies_check(ORDER, 8, ALONE) == ()


def test_the_link_is_measured_in_turn_and_then_with_a_common_start_of_each_rate(monkeypatch):
    starts = []

    def copy(host, start, *, to_host):
        starts.append((host.numel(), to_host))
        start()
        return 50.0

    def rows(host, pool_bytes, rows, order, start, *, to_host):
        starts.append((len(host), rows, order, to_host))
        start()
        return LinkRate(driver="gpu", direction="d2h" if to_host else "h2d", gb_s=40.0, pool_bytes=pool_bytes)

    monkeypatch.setattr(linking, "COPY_BYTES", 4800)
    monkeypatch.setattr(linking, "_copy_gb_s", copy)
    monkeypatch.setattr(linking, "_rows_rate", rows)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    group = Second()
    alone, together = linking.measure_link(
        row_bytes=48, pool_bytes=(960,), rows_per_call=(4,), progress=lambda *_: None, group=group
    )
    wanted = [(4800, False), (4800, True), (20, 4, "random", False), (20, 4, "sorted", False), (20, 4, "random", True)]
    assert starts == wanted * 2
    assert len(alone) == len(together) == 5
    assert group.met == ["turn: link", *[""] * 6]  # one start of each of five rates, and the end


def test_steps_are_timed_in_turn_and_then_with_a_common_start_of_each(monkeypatch):
    calls = []

    def timed(decode, rates, mode, swap_in, pages, steps, together):
        del decode, swap_in, pages
        calls.append((rates, mode, steps))
        together()
        return TIMING

    monkeypatch.setattr(timings, "_timed", timed)
    monkeypatch.setattr(timings, "_backup_pages", lambda *_: 1)
    cuda = SimpleNamespace(
        synchronize=lambda: None, CUDAGraph=lambda: SimpleNamespace(replay=None), graph=lambda _: torch.no_grad()
    )
    monkeypatch.setattr(timings, "torch", SimpleNamespace(cuda=cuda))
    decode = SimpleNamespace(advance_ids=lambda: None, swap_in=lambda: None)
    group = Second()
    alone, together = timings.time_steps(decode, ("alone",), ("together",), lambda *_: None, group)
    assert calls == [
        (("alone",), "graph", 50),
        (("together",), "eager", 200),
        (("together",), "graph", 200),
        (("together",), "graph, backup", 200),
    ]
    assert (len(alone), len(together)) == (1, 3)
    assert group.met == ["turn: timing", "", "", ""]
    calls.clear()
    assert timings.time_steps(decode, (), (), lambda *_: None, ALONE)[0] == ()
    assert [mode for _, mode, _ in calls] == ["eager", "graph", "graph, backup"]
