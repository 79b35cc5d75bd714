"""
Exact misses for every hot-buffer size at once, by stack distances.

After a call a hot buffer of B slots holds the B largest of (step of last use, token id), whatever B is: a smaller one
holds a part of a larger one. So one number says all of an access: how many tokens were larger before the call. It
hits in every buffer with more slots than that.

The tokens that were last used at one step are one row of bits, set in the order of their ids.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Distances = npt.NDArray[np.int64]
NEVER = -1
_WORD = 64
_FULL = np.uint64(2**64 - 1)
_FIRST_ROWS = 256


class StackDistances:
    """Distances of one request in one layer of `context` tokens, at most `top_k` of them a step."""

    def __init__(self, context: int, top_k: int) -> None:
        self._words = -(-top_k // _WORD)
        self._row = np.full(context, NEVER, dtype=np.int64)
        self._place = np.zeros(context, dtype=np.int64)
        self._bits = np.zeros((_FIRST_ROWS, self._words), dtype=np.uint64)
        self._in_word = np.zeros((_FIRST_ROWS, self._words), dtype=np.int64)
        self._in_row = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._rows = 0

    def step(self, ids: Ids) -> Distances:
        """
        Use `ids`, int32 [n], sorted and distinct: the top-k without the newest token, which has a slot of its own.

        Returns int64 [n], in the order of the ids: tokens that were used later, or as late with a larger id; −1 for a
        token that was never used.
        """
        row = self._row[ids]
        seen = row != NEVER
        found = np.full(ids.shape, NEVER, dtype=np.int64)
        found[seen] = self._leave(row[seen], self._place[ids[seen]])
        self._enter(ids)
        return found

    def _leave(self, row: Distances, place: Distances) -> Distances:
        """Distances of tokens at `place` in `row`, which are then taken out."""
        word, bit = place // _WORD, (place % _WORD).astype(np.uint64)
        later = self._in_row[: self._rows].sum() - np.cumsum(self._in_row[: self._rows])
        touched = np.flatnonzero(np.bincount(row, minlength=self._rows))
        number = np.empty(self._rows, dtype=np.int64)
        number[touched] = np.arange(touched.size)
        in_word = self._in_word[touched]
        behind = in_word.sum(1)[:, None] - np.cumsum(in_word, 1)
        flat = row * self._words + word
        bits = self._bits.reshape(-1)
        in_own_word = np.bitwise_count((bits[flat] >> bit) >> np.uint64(1)).astype(np.int64)
        found = later[row] + behind[number[row], word] + in_own_word
        np.subtract.at(bits, flat, np.uint64(1) << bit)
        np.subtract.at(self._in_word.reshape(-1), flat, 1)
        np.subtract.at(self._in_row, row, 1)
        return np.asarray(found, dtype=np.int64)

    def _enter(self, ids: Ids) -> None:
        """A new row of all ids."""
        if self._rows == self._in_row.size:
            self._make_room()
        row, self._rows = self._rows, self._rows + 1
        place = np.arange(ids.size)
        per_word = np.bincount(place // _WORD, minlength=self._words)
        self._in_word[row] = per_word
        full = np.uint64(2**64 - 1)
        self._bits[row] = np.where(
            per_word == _WORD, full, (np.uint64(1) << (per_word % _WORD).astype(np.uint64)) - np.uint64(1)
        )
        self._in_row[row] = ids.size
        self._row[ids] = row
        self._place[ids] = place

    def _make_room(self) -> None:
        """Drop the rows that no token is left in; double what is held if that does not halve it."""
        kept = np.flatnonzero(self._in_row)
        number = np.zeros(self._rows + 1, dtype=np.int64)
        number[kept], number[NEVER] = np.arange(kept.size), NEVER
        self._row = number[self._row]
        size = self._in_row.size * (1 if 2 * kept.size <= self._rows else 2)
        for name in ("_bits", "_in_word", "_in_row"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), dtype=old.dtype)
            new[: kept.size] = old[kept]
            setattr(self, name, new)
        self._rows = kept.size


class MissCurve:
    """Misses by slots, counted over the steps that are added."""

    def __init__(self, most_slots: int) -> None:
        self._by_distance = np.zeros(most_slots + 1, dtype=np.int64)
        self.never_used = 0
        self.accesses = 0

    def add(self, distances: Distances) -> None:
        """Count the distances of one step."""
        known = distances[distances != NEVER]
        most = self._by_distance.size - 1
        self._by_distance += np.bincount(np.minimum(known, most), minlength=most + 1)
        self.never_used += distances.size - known.size
        self.accesses += distances.size

    def misses(self, slots: int) -> int:
        """Misses of a hot buffer of so many slots, up to the most that are counted."""
        return int(self._by_distance[slots:].sum()) + self.never_used
