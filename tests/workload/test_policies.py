"""Other policies: small cases by hand, and what must hold between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan.workload.policies import POLICIES, belady, clock, fifo, random
from hsplan.workload.stack import StackDistances


def trace_of(*steps):
    return [np.array(step, dtype=np.int32) for step in steps]


def lru(trace, slots, context):
    stack = StackDistances(context, max(len(step) for step in trace))
    found = [stack.step(step) for step in trace]
    return [int(((d < 0) | (d >= slots)).sum()) for d in found]


# Two slots and one id a step: 1 2 1 3 1 2.
SMALL = trace_of([1], [2], [1], [3], [1], [2])


@pytest.mark.parametrize(
    ("policy", "misses"),
    [
        (fifo, [1, 1, 0, 1, 1, 1]),  # 3 takes the place of 1, which was loaded first
        (lru, [1, 1, 0, 1, 0, 1]),  # 3 takes that of 2
        (belady, [1, 1, 0, 1, 0, 1]),
        (clock, [1, 1, 0, 1, 1, 1]),  # all were used: the hand clears both marks, takes 1, and later 2
    ],
)
def test_misses_of_a_small_trace_are_those_worked_out_by_hand(policy, misses):
    assert policy(SMALL, 2, 5) == misses


def test_the_optimum_keeps_what_is_needed_next():
    # Three slots: at step 4 the token 3 goes, which is never used again.
    assert belady(trace_of([1], [2], [3], [4], [1], [2], [4]), 3, 5) == [1, 1, 1, 1, 0, 0, 0]


def test_rows_of_the_same_step_do_not_replace_each_other():
    trace = trace_of([1, 2], [3, 4], [1, 2])
    assert {name: policy(trace, 2, 5) for name, policy in POLICIES.items()} == {key: [2, 2, 2] for key in POLICIES}


def test_another_seed_draws_another_order():
    dice = np.random.Generator(np.random.SFC64(3))
    trace = [np.sort(dice.choice(60, 8, replace=False)).astype(np.int32) for _ in range(40)]
    assert random(trace, 16, 60) == random(trace, 16, 60)
    assert random(trace, 16, 60, seed=1) != random(trace, 16, 60)


steps_of_ids = st.lists(st.sets(st.integers(0, 39), min_size=1, max_size=8).map(sorted), min_size=1, max_size=25)


@settings(max_examples=60)
@given(steps_of_ids, st.integers(8, 20))
def test_no_policy_beats_the_optimum_and_more_slots_never_miss_more(steps, slots):
    trace = trace_of(*steps)
    best = sum(belady(trace, slots, 40))
    for policy in (*POLICIES.values(), lru):
        assert sum(policy(trace, slots, 40)) >= best
    assert sum(lru(trace, slots + 1, 40)) <= sum(lru(trace, slots, 40))
    assert sum(belady(trace, slots + 1, 40)) <= best
