"""Reported bugs of other engines' swap-in: state and plan from step to step (T25, T26, T30 to T32)."""

import itertools

import pytest
import torch

from hsplan_kernels import swap_in
from hsplan_kernels.state import new_plan

PHASE = 50


def demands(slots, steps, dice):
    """Ids of each step: all miss, none miss, two disjoint sets in turn, any; 50 steps of each, then again."""
    fresh = itertools.cycle(range(64, 256))
    for step in range(steps):
        phase, at = divmod(step, PHASE)
        ids = (
            [next(fresh) for _ in range(8)],
            [0, 1, 2, 3, 4, 5, 6, 7],
            range(40 + 8 * (at % 2), 48 + 8 * (at % 2)),
            torch.randint(0, slots + 12, (8,), generator=dice).tolist(),
        )
        yield list(ids[phase % 4])


@pytest.mark.parametrize(("slots", "steps"), [(16, 1000), (8, 200), (23, 200)])
def test_the_order_of_eviction_is_exact_after_every_step(pair, slots, steps):
    requests = pair(tokens=257, slots=slots, empty=True)
    counts = []
    for ids in demands(slots, steps, torch.Generator().manual_seed(1)):
        requests.step([ids], load=False)
        counts.append(int(requests.plan.counts))
    phases = [counts[start : start + PHASE] for start in range(0, steps, PHASE)]
    assert all(phase == [8] * PHASE for phase in phases[::4])
    assert all(sum(phase) <= 8 for phase in phases[1::4])
    assert all((sum(phase[2:]) == 0) == (slots >= 16) for phase in phases[2::4])
    assert all(0 < sum(phase) < 8 * PHASE for phase in phases[3::4])


def test_a_state_that_starts_empty_fills_each_slot_once(pair):
    requests = pair(empty=True)
    rows = [row for first in (20, 28) for row in requests.step([list(range(first, first + 8))])[0]]
    assert sorted(rows) == list(range(16))
    assert sorted(requests.step([[20, 21, 40, 41]])[0][2:4]) == sorted(rows[2:4])


@pytest.mark.parametrize("steps", [(1, 2, 3), (1, 2000, 2_000_000), (2**31 - 12, 2**31 - 11, 2**31 - 10)], ids=str)
def test_steps_may_jump_as_far_as_they_can_be_written(pair, steps):
    requests = pair()
    for now, first in zip(steps, (20, 28, 36), strict=True):
        requests.step([[*range(first, first + 7), 0]], now=now)
        assert requests.plan.counts.tolist() == [7]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("token_slots", slot) for slot in (-32_768, -9, -2, 3, 15, 16, 17, 23, 24, 32_767)],
        *[("slot_steps", step) for step in (-(2**31), -2, 1, 2, 1000, 2**31 - 1)],
        *[("slot_tokens", token) for token in (-(2**31), -2, -1, 5, 39)],
        *[("host_rows", row) for row in (-(2**63), -1, 5, 192, 2**63 - 1)],
    ],
    ids=str,
)
@pytest.mark.parametrize("every", [1, 3])
def test_a_corrupted_state_writes_nothing_outside_and_gives_rows_of_the_request(pair, name, value, every):
    requests = pair(requests=3, batch=1)
    before = requests.copy()
    getattr(requests.state, name)[1, ::every] = value
    for now, first in ((1, 20), (2, 3)):
        found = requests.resolve([[*range(first, first + 7), 63]], rows=[1], now=now)[0]
        assert all(row == -1 or 24 <= row < 48 for row in found)
        assert 0 <= int(requests.plan.counts) <= 8
    requests.load()
    for row in (0, 2):
        for other in ("token_slots", "slot_steps", "slot_tokens", "host_rows"):
            assert torch.equal(getattr(requests.state, other)[row].cpu(), getattr(before, other)[row])


def test_a_follower_that_was_given_no_plan_yet_loads_nothing(pair, device, guarded):
    requests = pair(requests=4)
    rows = guarded(4 * 24, 48)
    swap_in.copy_planned(new_plan(4, 8, device), requests.host, rows.view)
    assert bool((rows.view == 0xA5).all())


def test_a_plan_is_forgotten_with_the_next_batch(pair, guarded):
    requests = pair(requests=2)
    requests.step([[20, 21], [22, 23]])
    assert requests.plan.counts.tolist() == [2, 2]
    requests.step([[20, 24], [24, 25]], real=1)
    assert requests.plan.counts.tolist() == [1, 0]
    follower = guarded(48, 48)
    swap_in.copy_planned(requests.plan, requests.host, follower.view)
    assert int((follower.view != 0xA5).any(1).sum()) == 1


def test_few_and_many_misses_of_a_large_batch_are_all_loaded(pair):
    requests = pair(requests=40, tokens=32)
    misses = [(0, 1, 2, 8)[i % 4] for i in range(40)]
    ids = [[*range(20, 20 + n), *range(8 - n)] for n in misses]
    requests.step(ids)
    assert requests.plan.counts.tolist() == misses


def forget(requests, row, tokens):
    """What a caller writes when rows of tokens are rewritten: they are no longer in a slot."""
    for state in (requests.state, requests.wanted):
        slots = state.token_slots[row, tokens].long()
        state.slot_tokens[row, slots] = -1
        state.slot_steps[row, slots] = -1
        state.token_slots[row, tokens] = -1


def test_rewritten_rows_that_are_forgotten_are_loaded_anew(pair):
    requests = pair()
    requests.step([[30, 31, 32, 5]])
    requests.host[[30, 31]] = 255 - requests.host[[30, 31]]
    forget(requests, 0, [30, 31])
    requests.step([[30, 31, 32, 5]])
    assert requests.plan.counts.tolist() == [2]


def test_a_rolled_back_token_that_was_the_newest_is_read_from_its_new_bytes(pair):
    requests = pair()
    requests.step([[40, 41, 3]], lengths=[43])
    requests.host[[40, 41]] = 255 - requests.host[[40, 41]]
    forget(requests, 0, [40, 41])
    assert requests.step([[40, 3]], lengths=[41])[0][:2] == [16, 3]
    requests.step([[40, 41, 3]], lengths=[42])
    assert requests.plan.counts.tolist() == [1]
