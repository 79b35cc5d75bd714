"""A simulation as a whole: layers, drafts, start, best split, and the plain reference of the swap-in beside it."""

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan.workload.calls import in_calls
from hsplan.workload.layers import Layers
from hsplan.workload.model import drawn
from hsplan.workload.policies import POLICIES
from hsplan.workload.profile import Profile
from hsplan.workload.simulate import simulate
from hsplan.workload.trace import draw

torch = pytest.importorskip("torch")


def trace_of(*steps):
    return [np.array(step, dtype=np.int32) for step in steps]


def run(traces, slots, *, counts=None, warm_up=0, policies=()):
    layers = [Layers((i,), count) for i, count in enumerate(counts or [1] * len(traces))]
    return simulate(traces, layers, slots, warm_up=warm_up, policies=policies, report=lambda *_: None)


SMALL = trace_of([1, 2], [1, 3], [2, 3], [1, 2])


def test_from_an_empty_buffer_every_first_use_is_a_miss():
    # Two slots: 1 2 miss; 3; 2; 1. Three slots: 1 2 miss; 3; nothing more.
    assert run([SMALL], [2, 3]).lru == (5 / 8, 3 / 8)


def test_calls_that_warm_up_do_not_count():
    found = run([SMALL], [2, 3], warm_up=2, policies=["belady"])
    assert (found.calls, found.warm_up, found.lru) == (2, 2, (2 / 4, 0.0))
    assert found.policies == {"belady": (2 / 4, 0.0)}


def test_shares_are_means_over_layers():
    still = trace_of([1, 2], [1, 2], [1, 2], [1, 2])
    found = run([SMALL, still], [2], counts=[1, 3])
    assert found.lru == ((5 + 3 * 2) / (4 * 8),)
    assert [(group.lru, group.count) for group in found.groups] == [((5 / 8,), 1), ((2 / 8,), 3)]
    assert found.layers == 4


def test_followers_miss_what_their_owner_misses():
    """Recorded with their copies of the top-k or counted with their owner: every figure is the same."""
    owners = [list(draw(Profile(source="", static=1.0, white=white), context=200, top_k=16, steps=30, seed=3))
              for white in (0.3, 0.9)]  # fmt: skip
    counted = run(owners, [16, 40], counts=[1, 4], warm_up=10, policies=list(POLICIES))
    copied = run([owners[0], *[owners[1]] * 4], [16, 40], warm_up=10, policies=list(POLICIES))
    assert (counted.lru, counted.policies, counted.mean_ids) == (copied.lru, copied.policies, copied.mean_ids)
    assert len({group.lru for group in copied.groups[1:]}) == 1


def test_a_layer_that_reads_nothing_misses_nothing():
    assert run([SMALL, trace_of([5], [], [], [])], [2], warm_up=1).groups[1].lru == (0.0,)


def test_layers_that_differ_get_sizes_of_their_own_in_the_same_memory():
    """One layer reads the same 64 ids for ever, the other goes round 192: with 64 + 192 slots neither misses."""
    still = [np.arange(64, dtype=np.int32)] * 12
    round_ = [np.arange(64 * i, 64 * i + 64, dtype=np.int32) for i in (0, 1, 2)] * 4
    found = run([still, round_], [64, 128, 192], warm_up=6)
    assert found.lru == (1 / 2, 1 / 2, 0.0)
    assert [split.slots for split in found.split] == [(64, 64), (64, 192), (64, 192)]
    assert [split.lru for split in found.split] == [1 / 2, 0.0, 0.0]


ESS = """
source: misses a layer and step of DeepSeek-V3.2-Exp on LongBench-v2, arXiv 2512.10576
static: 1.0
slow: 0.366
slow_steps: 22
mid: 0.755
mid_steps: 9.1
white: 1.05
layers: [{end: 1, slow: 0.128, mid: 0.264, white: 0.07}, {end: 2}]
"""


def test_a_profile_can_give_layers_the_published_range_of_misses(tmp_path):
    """16.66 to 605 a layer and step, in a buffer of a fifth of the context."""
    (tmp_path / "ess.yaml").write_text(ESS)
    traces = drawn(str(tmp_path / "ess.yaml"), "FF", context=32_768, top_k=2048, steps=120, seed=1)
    found = simulate(traces.steps, traces.layers, [6554], warm_up=60, policies=(), report=lambda *_: None)
    least, most = (group.lru[0] * 2047 for group in found.groups)
    assert least < 16.66
    assert most > 605


def test_one_group_has_nothing_to_split():
    assert run([SMALL], [2]).split == ()


steps_of_ids = st.lists(st.sets(st.integers(0, 299), min_size=1, max_size=60).map(sorted), min_size=4, max_size=8)


@settings(max_examples=40)
@given(st.lists(steps_of_ids, min_size=2, max_size=3), st.integers(60, 200))
def test_the_best_split_is_never_worse_and_takes_no_more_memory(traces, slots):
    shortest = min(map(len, traces))
    found = run([trace_of(*steps[:shortest]) for steps in traces], [slots, slots + 64])
    for size, equal, split in zip(found.slots, found.lru, found.split, strict=True):
        assert sum(split.slots) <= len(traces) * size
        assert split.lru <= equal
        assert all(own >= found.most_ids and (own - size) % 64 == 0 for own in split.slots)


@settings(max_examples=40)
@given(steps_of_ids, st.integers(1, 3))
def test_more_slots_never_miss_more_and_nothing_beats_the_optimum_with_drafts(steps, per_call):
    calls = in_calls(trace_of(*steps), per_call)
    most = max(ids.size for ids in calls)
    found = run([calls], [most, most + 7, most + 40], policies=list(POLICIES))
    assert found.lru == tuple(sorted(found.lru, reverse=True))
    for shares in (found.lru, *found.policies.values()):
        assert all(share >= best for share, best in zip(shares, found.policies["belady"], strict=True))


def reference_misses(calls, slots):
    """What the plain reference of the swap-in loads in each call of ids, which may repeat, into an empty buffer."""
    reference, states = (importlib.import_module(f"hsplan_kernels.{name}") for name in ("reference", "state"))
    width, tokens = max(map(len, calls)), 64
    rows = torch.arange(tokens, dtype=torch.int64)[None]
    state = states.new_state(rows, slots=slots, page_tokens=1, host_limit=tokens, device="cpu")
    state.slot_tokens.fill_(-1)
    state.token_slots.fill_(-1)
    plan, out = states.new_plan(1, width, "cpu"), torch.zeros((1, width), dtype=torch.int32)
    one, length = torch.ones(1, dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    found = []
    for now, ids in enumerate(calls, 1):
        top_k = torch.tensor([[*ids, *[-1] * (width - len(ids))]], dtype=torch.int32)
        reference.resolve(state, plan, top_k, one * 0, length, one, one * now, out)
        found.append(int(plan.counts))
    return found


few_ids = st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=6).map(sorted), min_size=6, max_size=14)


@settings(max_examples=30)
@given(few_ids, st.integers(1, 3), st.integers(0, 1))
def test_the_reference_of_the_swap_in_misses_exactly_as_often_cold_and_warm_with_and_without_drafts(
    steps, per_call, warm_up
):
    """It gets the ids of all steps of a call one after the other, repeated ones too."""
    calls = in_calls(trace_of(*steps), per_call)
    raw = [list(itertools.chain(*steps[i * per_call : (i + 1) * per_call])) for i in range(len(calls))]
    sizes = [18, 20, 31]
    found = run([calls], sizes, warm_up=warm_up)
    read = sum(ids.size for ids in calls[warm_up:])
    assert found.lru == tuple(sum(reference_misses(raw, size)[warm_up:]) / read for size in sizes)
