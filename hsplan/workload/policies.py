"""
Other ways to choose what leaves a hot buffer, to compare with: FIFO, random, CLOCK, and Bélády's optimum.

All take whole steps, as the kernel does: the rows of a step that miss replace slots which that step does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]
FAR = np.iinfo(np.int64).max


class _Buffer:
    """Which token lies in which slot; −1 is an empty one."""

    def __init__(self, slots: int, context: int) -> None:
        self.token = np.full(slots, -1, dtype=np.int64)
        self.slot = np.full(context, -1, dtype=np.int64)

    def split(self, ids: Ids) -> tuple[Slots, Ids, npt.NDArray[np.bool_]]:
        """Slots that hit, ids that miss, and which slots may go."""
        slot = self.slot[ids]
        hit = slot[slot >= 0]
        free = np.ones(self.token.size, dtype=np.bool_)
        free[hit] = False
        return hit, ids[slot < 0], free

    def put(self, victims: Slots, ids: Ids) -> None:
        old = self.token[victims]
        self.slot[old[old >= 0]] = -1
        self.token[victims] = ids
        self.slot[ids] = victims


def fifo(trace: Sequence[Ids], slots: int, context: int) -> list[int]:
    """Misses of each step when the row that was loaded longest ago goes first."""
    buffer, misses = _Buffer(slots, context), []
    loaded = np.full(slots, -1, dtype=np.int64)
    for now, ids in enumerate(trace):
        _, missed, free = buffer.split(ids)
        victims = _first(np.where(free, loaded * context + np.maximum(buffer.token, 0), FAR), missed.size)
        buffer.put(victims, missed)
        loaded[victims] = now
        misses.append(missed.size)
    return misses


def random(trace: Sequence[Ids], slots: int, context: int, *, seed: int = 0) -> list[int]:
    """Misses of each step when any unused row goes; empty slots first."""
    buffer, misses = _Buffer(slots, context), []
    dice = np.random.Generator(np.random.SFC64(seed))
    for ids in trace:
        _, missed, free = buffer.split(ids)
        order = dice.random(slots) + (buffer.token >= 0)
        buffer.put(_first(np.where(free, order, np.inf), missed.size), missed)
        misses.append(missed.size)
    return misses


def clock(trace: Sequence[Ids], slots: int, context: int) -> list[int]:
    """Misses of each step when a hand goes round and takes the first row that was not used since it last came by."""
    buffer, misses = _Buffer(slots, context), []
    used = np.zeros(slots, dtype=np.bool_)
    hand = 0
    for ids in trace:
        hit, missed, free = buffer.split(ids)
        used[hit] = True
        taken: list[Slots] = []
        left = missed.size
        while left:
            round_ = np.roll(np.arange(slots), -hand)
            may_go = free[round_] & ~used[round_]
            victims = round_[may_go][:left]
            end = slots if victims.size < left else int(np.flatnonzero(may_go)[left - 1]) + 1
            passed = round_[:end]
            used[passed[free[passed]]] = False
            free[victims] = False
            taken.append(victims)
            left -= victims.size
            hand = (hand + end) % slots
        victims = np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)
        buffer.put(victims, missed)
        used[victims] = True
        misses.append(missed.size)
    return misses


def belady(trace: Sequence[Ids], slots: int, context: int) -> list[int]:
    """Misses of each step when the row goes that is needed again last: no policy misses less."""
    following = _next_uses(trace, context)
    buffer, misses = _Buffer(slots, context), []
    wanted = np.full(slots, FAR, dtype=np.int64)
    for now, ids in enumerate(trace):
        hit, missed, free = buffer.split(ids)
        is_hit = buffer.slot[ids] >= 0
        wanted[hit] = following[now][is_hit]
        victims = _first(np.where(free, -wanted, FAR), missed.size)
        buffer.put(victims, missed)
        wanted[victims] = following[now][~is_hit]
        misses.append(missed.size)
    return misses


POLICIES: dict[str, Callable[[Sequence[Ids], int, int], list[int]]] = {
    "fifo": fifo,
    "random": random,
    "clock": clock,
    "belady": belady,
}


def _first(order: npt.NDArray[np.int64] | npt.NDArray[np.float64], count: int) -> Slots:
    """The `count` slots that come first."""
    return np.argpartition(order, count - 1)[:count] if count else np.zeros(0, dtype=np.int64)


def _next_uses(trace: Sequence[Ids], context: int) -> list[npt.NDArray[np.int64]]:
    """For each step and id the next step that uses it, FAR for none."""
    upcoming = np.full(context, FAR, dtype=np.int64)
    found = []
    for now in range(len(trace) - 1, -1, -1):
        found.append(upcoming[trace[now]])
        upcoming[trace[now]] = now
    return found[::-1]
