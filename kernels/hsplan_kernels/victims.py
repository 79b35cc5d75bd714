"""Which slots a request gives up: those that come first in (step of last use, token), on one program's registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def one_a_lane(N: tl.constexpr) -> tl.tensor:
    """0 to N − 1, so laid out that neighbours lie in neighbouring lanes and nothing moves for scattered accesses."""
    return tl.max_contiguous(tl.arange(0, N), 1)


@triton.jit
def oldest(step, token, now, need, SLOTS: tl.constexpr, LANES: tl.constexpr) -> tl.tensor:
    """Which slots come first in (step, token): `need` of them, more only where equal empty slots are too many."""
    start = tl.min(step, 0)
    counts = _histogram(step, start, now, SLOTS, LANES)
    upto = tl.cumsum(counts, 0)
    passed = tl.sum((upto < need).to(tl.int32), 0)
    last = start + passed
    below = tl.max(tl.where(upto < need, upto, 0), 0)
    reached = tl.min(tl.where(upto < need, SLOTS, upto), 0)
    if passed == 8:
        last, below, reached = _bound(step, step < now, need, tl.sum((step < now).to(tl.int32), 0))
    token_limit = need * 0 + (2**31 - 1)
    if reached > need:
        # Ties: the smallest tokens of those last used at that step.
        token_limit, _, _ = _bound(token, step == last, need - below, reached - below)
    return (step < last) | ((step == last) & (token <= token_limit))


@triton.jit
def _histogram(step, start, end, SLOTS: tl.constexpr, LANES: tl.constexpr):
    """How many of the steps, none before `start`, are start + i and before `end`, for i = 0…7."""
    rows: tl.constexpr = min(SLOTS // LANES, 8)  # that a word of eight 4-bit counters can sum
    age = step - start
    word = tl.where(age < tl.minimum(end - start, 8), 1 << ((age & 7) * 4), 0)
    word = tl.sum(tl.reshape(word, [SLOTS // LANES // rows, rows, LANES]), 1)
    counts = (word[None, :, :] >> (tl.arange(0, 8) * 4)[:, None, None]) & 15
    return tl.sum(tl.sum(counts, 1), 1)


@triton.jit
def _bound(key, inside, need, total):
    """
    A bound that `need` of the `total` keys inside do not exceed; where equal keys forbid that, the least with more.

    Gives the bound, a number of keys that lie below it, and how many do not exceed it: where that is more than `need`,
    the difference of the two is how many equal the bound. Of three passes two guess as if keys were evenly spread
    and one halves.
    """
    high = tl.max(tl.where(inside, key, -1), 0)
    key = tl.where(inside, key, 2**31 - 1)
    low = tl.min(key, 0)
    under = need * 0
    over = total
    turn = need * 0
    while (low < high) & (over > need):
        part = (need - under).to(tl.float32) / (over - under).to(tl.float32)
        guess = low + ((high - low).to(tl.float32) * part).to(tl.int32)
        pivot = tl.where(turn == 2, low + (high - low) // 2, tl.minimum(guess, high - 1))
        count = tl.sum((key <= pivot).to(tl.int32), 0)
        few = count < need
        low = tl.where(few, pivot + 1, low)
        under = tl.where(few, count, under)
        high = tl.where(few, high, pivot)
        over = tl.where(few, over, count)
        turn = (turn + 1) % 3
    return high, under, over


@triton.jit
def ranks(first, chosen, K: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Numbers from 0 on for the first [K] and for the chosen [SLOTS]: lane by lane, one sum over the lanes for both."""
    x = tl.reshape(first.to(tl.int32), [K // LANES, LANES])
    y = tl.reshape(chosen.to(tl.int32), [SLOTS // LANES, LANES])
    both = tl.sum(x, 0) | (tl.sum(y, 0) << 16)
    before = tl.cumsum(both, 0) - both
    x = (before & 0xFFFF)[None, :] + tl.cumsum(x, 0) - x
    y = ((before >> 16) & 0xFFFF)[None, :] + tl.cumsum(y, 0) - y
    return tl.reshape(x, [K]), tl.reshape(y, [SLOTS])
