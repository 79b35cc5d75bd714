"""
Hot buffers of different sizes under one total: the sizes with which all layers together miss least.

A what-if: no engine has them. The search is exact, a dynamic programme over pages, because miss curves need not be
convex: a layer may gain nothing from one page more, and much from ten.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


class BestSplit:
    """
    The best sizes of groups of layers for every total of pages up to `most`; both count above the least size.

    `misses[g]` are those of all layers of group g together, with 0, 1, 2, … pages in each; beyond its end pages are of
    no use. `layers[g]` is how many layers the group has: all of them get the same pages.
    """

    def __init__(self, misses: Sequence[Sequence[int]], layers: Sequence[int], most: int) -> None:
        self._layers = layers
        # More than all curves have is of no use.
        self._most = min(most, sum(count * (len(curve) - 1) for curve, count in zip(misses, layers, strict=True)))
        self._taken: list[Counts] = []
        least = np.zeros(self._most + 1, dtype=np.int64)
        for curve, count in zip(misses, layers, strict=True):
            least, taken = _with_group(least, curve, count)
            self._taken.append(taken)

    def pages(self, total: int) -> list[int]:
        """Pages of a layer of each group; all layers together take at most `total`."""
        found, total = [], min(total, self._most)
        for taken, count in zip(reversed(self._taken), reversed(self._layers), strict=True):
            found.append(int(taken[total]))
            total -= found[-1] * count
        return found[::-1]


def _with_group(before: Counts, curve: Sequence[int], count: int) -> tuple[Counts, Counts]:
    """Least misses by total with one group more, and the pages that its layers get; of equals the fewest."""
    least = before + curve[0]
    taken = np.zeros(before.size, dtype=np.int64)
    for pages in range(1, min(len(curve) - 1, (before.size - 1) // count) + 1):
        start = pages * count
        found = before[: before.size - start] + curve[pages]
        better = found < least[start:]
        least[start:][better] = found[better]
        taken[start:][better] = pages
    return least, taken
