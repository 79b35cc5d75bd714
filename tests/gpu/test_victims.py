"""Victims: the slots that come first in (step, token), whatever the steps and tokens are."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan_kernels import victims

SLOTS, LANES = 64, 16
LAST = 2**31 - 1


@triton.jit
def _pick(p_steps, p_tokens, p_now, p_need, p_out, SLOTS: tl.constexpr, LANES: tl.constexpr):
    o_s = victims.one_a_lane(SLOTS)
    chosen = victims.oldest(
        tl.load(p_steps + o_s), tl.load(p_tokens + o_s), tl.load(p_now), tl.load(p_need), SLOTS, LANES
    )
    tl.store(p_out + o_s, chosen.to(tl.int32))


@triton.jit
def _number(p_first, p_chosen, p_first_out, p_out, K: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr):
    o_k, o_s = victims.one_a_lane(K), victims.one_a_lane(SLOTS)
    rank, at = victims.ranks(tl.load(p_first + o_k) > 0, tl.load(p_chosen + o_s) > 0, K, SLOTS, LANES)
    tl.store(p_first_out + o_k, rank)
    tl.store(p_out + o_s, at)


@pytest.fixture(scope="module")
def picked(device):
    """The slots that the kernel chooses of up to SLOTS (step, token); slots in use fill the rest."""

    def pick(slots, now, need):
        pairs = torch.tensor(slots + [(now, -1)] * (SLOTS - len(slots)), dtype=torch.int32).T.contiguous().to(device)
        one = torch.tensor([now, need], dtype=torch.int32, device=device)
        out = torch.full((SLOTS,), -1, dtype=torch.int32, device=device)
        _pick[(1,)](pairs[0], pairs[1], one[:1], one[1:], out, SLOTS=SLOTS, LANES=LANES)
        return set(out.nonzero().view(-1).tolist())

    return pick


def test_of_one_step_the_smallest_tokens_go(picked):
    slots = [(4, 90), (4, 7), (5, 1), (4, 30), (4, 8), (9, 0)]
    assert picked(slots, now=9, need=3) == {1, 3, 4}


def test_a_whole_step_goes_before_any_of_the_next(picked):
    slots = [(3, 100), (4, 1), (3, 200), (4, 2), (5, 0)]
    assert picked(slots, now=6, need=2) == {0, 2}
    assert picked(slots, now=6, need=3) == {0, 1, 2}


@pytest.mark.parametrize("gap", [1, 7, 8, 9, 1000, 2**29])
def test_steps_that_lie_far_apart_keep_their_order(picked, gap):
    slots = [(3 * gap, 5), (gap, 6), (0, 9), (2 * gap, 7), (-1, 2_000_000)]
    assert picked(slots, now=3 * gap + 1, need=2) == {2, 4}
    assert picked(slots, now=3 * gap + 1, need=4) == {1, 2, 3, 4}
    assert picked(slots, now=3 * gap + 1, need=5) == {0, 1, 2, 3, 4}


def test_slots_used_in_this_step_stay(picked):
    slots = [(8, 3), (7, 5), (8, 1), (8, 2)]
    assert picked(slots, now=8, need=1) == {1}


def test_empty_slots_go_first_and_all_of_them_are_offered(picked):
    slots = [(-1, 3), (-1, -1), (-1, -1), (-1, -1), (2, 0)]
    assert picked(slots, now=3, need=2) == {1, 2, 3}
    assert picked(slots, now=3, need=4) == {0, 1, 2, 3}


def steps_before(now):
    near = st.integers(max(now - 20, -1), now - 1)
    return st.one_of(near, st.sampled_from([-1, 0, now - 1]), st.integers(-1, now - 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_slots_go_in_order_of_step_and_token(picked, data):
    now = data.draw(st.sampled_from([1, 5, 12, 300, 10**6, LAST]))
    clustered = st.integers(0, 70).map(lambda t: 2**21 - 100 + t)
    tokens = data.draw(
        st.lists(st.one_of(st.integers(0, 2**21 - 1), clustered), unique=True, min_size=1, max_size=SLOTS)
    )
    pool = data.draw(st.lists(steps_before(now), min_size=1, max_size=4)) if data.draw(st.booleans()) else None
    step = st.sampled_from([*pool, now]) if pool else st.one_of(steps_before(now), st.just(now))
    slots = [(data.draw(step), token) for token in tokens]
    old = sorted((pair, i) for i, pair in enumerate(slots) if pair[0] < now)
    if old:
        need = data.draw(st.integers(1, len(old)))
        assert picked(slots, now, need) == {i for _, i in old[:need]}


@pytest.mark.parametrize(("k", "lanes"), [(16, 16), (32, 16), (1, 1), (64, 8)])
def test_ranks_number_both_lists_without_gaps(device, k, lanes):
    dice = torch.Generator().manual_seed(k)
    first = torch.randint(0, 2, (k,), dtype=torch.int32, generator=dice)
    chosen = torch.randint(0, 2, (SLOTS,), dtype=torch.int32, generator=dice)
    rank, at = (torch.zeros(n, dtype=torch.int32, device=device) for n in (k, SLOTS))
    _number[(1,)](first.to(device), chosen.to(device), rank, at, K=k, SLOTS=SLOTS, LANES=lanes)
    for flags, numbers in ((first, rank), (chosen, at)):
        assert sorted(numbers.cpu()[flags > 0].tolist()) == list(range(int(flags.sum())))
