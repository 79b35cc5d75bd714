"""Top-k traces of one request in one layer, drawn step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hsplan.workload.profile import Profile

Ids = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]


def draw(profile: Profile, *, context: int, top_k: int, steps: int, seed: int) -> Iterator[Ids]:
    """
    int32 [top_k] for each of `steps`, sorted: the ids of a request that keeps `context` tokens.

    The newest token, context − 1, is among them. The same arguments give the same trace.
    """
    dice = np.random.Generator(np.random.SFC64(seed))

    def noise() -> Scores:
        return dice.standard_normal(context, dtype=np.float32)

    fixed = dice.permutation(_quantiles(context)) * np.float32(profile.static)
    if profile.recency:
        age = np.arange(context - 1, -1, -1, dtype=np.float32)
        fixed += np.float32(profile.recency) * np.exp(-age / np.float32(profile.recency_tokens))
    slow, mid = noise(), noise()
    for _ in range(steps):
        _advance(slow, noise(), profile.slow_steps)
        _advance(mid, noise(), profile.mid_steps)
        score = fixed + np.float32(profile.slow) * slow + np.float32(profile.mid) * mid
        score += np.float32(profile.white) * noise()
        score[: profile.sinks] = np.inf
        score[context - profile.recent :] = np.inf
        yield np.sort(np.argpartition(score, context - top_k)[context - top_k :]).astype(np.int32)


@cache
def _quantiles(count: int) -> Scores:
    """
    As many values of a normal distribution, evenly spread.

    Static parts are these in random order. Drawn one by one they would make the miss rates of two seeds differ by up
    to 0.7 points of a hundred; so it is 0.3, around the same mean.
    """
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)], dtype=np.float32)


def _advance(part: Scores, fresh: Scores, steps: float) -> None:
    """AR(1) of unit variance with the given time constant."""
    keep = math.exp(-1 / steps)
    part *= np.float32(keep)
    part += np.float32(math.sqrt(1 - keep * keep)) * fresh
