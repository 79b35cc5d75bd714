"""Stack distances: against counting by hand, against the plain reference of the kernel, and by their properties."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan.workload.stack import MissCurve, StackDistances

torch = pytest.importorskip("torch")


def ids(*values):
    return np.array(values, dtype=np.int32)


def brute(trace):
    """Distances by looking at every token: how many have a larger (step, token)."""
    last, found = {}, []
    for now, used in enumerate(trace):
        keys = sorted(((step, token) for token, step in last.items()), reverse=True)
        place = {token: at for at, (_, token) in enumerate(keys)}
        found.append([place.get(int(token), -1) for token in used])
        last |= {int(token): now for token in used}
    return found


def test_distances_are_those_counted_by_hand():
    stack = StackDistances(context=10, top_k=3)
    assert stack.step(ids(1, 4, 7)).tolist() == [-1, -1, -1]
    # 7 is the newest of them, then 4, then 1.
    assert stack.step(ids(1, 7, 9)).tolist() == [2, 0, -1]
    # Now 9, 7, 1 of the second step, then 4 of the first.
    assert stack.step(ids(4, 9)).tolist() == [3, 0]
    # Now 9, 4 of the third step, 7, 1 of the second.
    assert stack.step(ids(1, 4, 7)).tolist() == [3, 1, 2]


steps_of_ids = st.lists(st.sets(st.integers(0, 199), max_size=70).map(sorted), min_size=1, max_size=30)


@given(steps_of_ids)
def test_distances_equal_brute_force(steps):
    stack = StackDistances(context=200, top_k=70)
    trace = [ids(*step) for step in steps]
    assert [stack.step(used).tolist() for used in trace] == brute(trace)


def test_distances_stay_exact_over_more_steps_than_rows_are_kept_for():
    dice = np.random.Generator(np.random.SFC64(1))
    trace = [np.sort(dice.choice(90, 12, replace=False)).astype(np.int32) for _ in range(700)]
    trace[300:310] = [ids(), ids(5)] * 5
    stack = StackDistances(context=90, top_k=12)
    assert [stack.step(used).tolist() for used in trace] == brute(trace)


def test_tokens_that_are_never_used_again_keep_the_rows_few():
    stack = StackDistances(context=5000, top_k=2)
    for now in range(20_000):
        stack.step(ids(now % 1500, 1500 + now % 3))
    assert stack._in_row.size <= 4096


@settings(max_examples=30)
@given(st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=6).map(sorted), min_size=2, max_size=12))
def test_the_kernels_reference_misses_as_often_at_every_size(steps):
    reference, states = (importlib.import_module(f"hsplan_kernels.{name}") for name in ("reference", "state"))
    for slots in (6, 9, 14):
        stack, misses = StackDistances(context=32, top_k=8), []
        rows = torch.arange(40, dtype=torch.int64)[None]
        state = states.new_state(rows, slots=slots, page_tokens=1, host_limit=40, device="cpu")
        state.slot_tokens.fill_(-1)
        state.token_slots.fill_(-1)
        plan, out = states.new_plan(1, 8, "cpu"), torch.zeros((1, 8), dtype=torch.int32)
        one, length = torch.ones(1, dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
        for now, used in enumerate(steps, 1):
            top_k = torch.tensor([[*used, *[-1] * (8 - len(used))]], dtype=torch.int32)
            reference.resolve(state, plan, top_k, one * 0, length, one, one * now, out)
            found = stack.step(ids(*used))
            misses.append((int(plan.counts), int(((found < 0) | (found >= slots)).sum())))
        assert [expected for expected, _ in misses] == [got for _, got in misses]


def test_a_curve_counts_hits_below_the_distance_and_never_grows():
    curve = MissCurve(most_slots=6)
    curve.add(np.array([-1, 0, 2, 2, 5, 9]))
    assert curve.accesses == 6
    assert [curve.misses(slots) for slots in range(1, 7)] == [5, 5, 3, 3, 3, 2]
