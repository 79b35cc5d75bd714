"""
Time that missed rows take: what offload adds to a decode step, and the requests that a time per token allows.

The model is of hsplan's own kernels, measured on one H200 in whole steps with cold caches (`hsplan validate`): it gives
their step times within 12 %. Engines whose kernels are slower at small batches, or that hide a part behind other work,
differ from it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hsplan.hardware import Gpu
from hsplan.linkrate import gather_gb_s

OWNER_US = 25  # resolving the top-k of a layer, and the launches
COPY_SHARE = 0.95  # of a plain gather's rate


class SwapIn(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a rank loads in a step: `misses` rows a request in each of `layers`, of which `owners` resolve the top-k.

    `request_bytes`: a request's part of one layer's host pool.
    """

    gpu: Gpu
    row_bytes: int
    layers: int
    owners: int
    misses: float
    request_bytes: int

    def step_ms(self, requests: int) -> float:
        """Milliseconds that a step of so many requests spends on loading."""
        rows = requests * self.misses
        if rows == 0:
            return self.owners * OWNER_US / 1000
        rate = gather_gb_s(
            self.gpu, row_bytes=self.row_bytes, pool_bytes=requests * self.request_bytes, rows=max(round(rows), 1)
        )
        copy_us = rows * self.row_bytes / (rate * COPY_SHARE * 1000)
        return (self.layers * copy_us + self.owners * OWNER_US) / 1000

    def requests_within(self, tpot_ms: float, step_ms: Callable[[int], float], most: int) -> int:
        """The most requests, up to `most`, whose step takes `tpot_ms` at most, with `step_ms` of other work."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = step_ms(middle) + self.step_ms(middle) <= tpot_ms
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
