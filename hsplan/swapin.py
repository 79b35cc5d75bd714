"""
Time that missed rows take: what offload adds to a decode step, and the requests that a time per token allows.

The model is of hsplan's own kernels, measured on one H200 in whole steps with cold caches (`hsplan validate`): it gives
their step times within 12 %. Engines whose kernels are slower at small batches, or that hide a part behind other work,
differ from it: `overlap` says how much of the loading is taken to be hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from hsplan.hardware import Gpu
from hsplan.linkrate import Curve, shipped_curve
from hsplan.units import ROUNDING_MS

OWNER_US = 25  # resolving the top-k of a layer, and the launches
COPY_SHARE = 0.95  # of a plain gather's rate


class SwapIn(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a rank loads in a step: `misses` rows a request in each of `layers`, of which `owners` resolve the top-k.

    With drafts it reads `steps` of decoding at once: `ids` different tokens, of which a hot buffer keeps `slots`.
    `kv_cache_dtype` makes rows of `row_bytes`. `request_bytes`: a request's part of one layer's host pool. `curve`:
    how fast one GPU alone gathers; `host_gb_s`: what the host memory of a node gives to its `gpus` together, None where
    each has all that its link takes. `overlap`: the share of the loading that other work of the step hides.
    """

    gpu: Gpu
    curve: Curve
    row_bytes: int
    kv_cache_dtype: str
    layers: int
    owners: int
    misses: float
    steps: int
    ids: int
    slots: int
    request_bytes: int
    gpus: int = 1
    host_gb_s: float | None = None
    overlap: float = 0.0

    def gb_s(self, requests: int) -> float:
        """GB/s (10^9 useful bytes) at which a rank loads the rows of so many requests."""
        rows = max(round(requests * self.misses), 1)
        pool_bytes = max(requests, 1) * self.request_bytes
        alone = COPY_SHARE * self.curve.gather_gb_s(
            self.gpu, row_bytes=self.row_bytes, pool_bytes=pool_bytes, rows=rows
        )
        return alone if self.host_gb_s is None else min(alone, self.host_gb_s / self.gpus)

    def step_ms(self, requests: int, beside_ms: float | None = None) -> float:
        """
        Milliseconds by which loading for so many requests makes a step longer.

        No more is hidden than the rest of the step takes, `beside_ms`; None where that is not known.
        """
        resolve_ms = self.owners * OWNER_US / 1000
        rows = requests * self.misses
        if rows == 0:
            return resolve_ms
        copy_ms = self.layers * rows * self.row_bytes / (self.gb_s(requests) * 10**6)
        hidden_ms = self.overlap * copy_ms
        return resolve_ms + copy_ms - (hidden_ms if beside_ms is None else min(hidden_ms, beside_ms))

    def requests_within(self, tpot_ms: float, step_ms: Callable[[int], float] | None, most: int) -> int:
        """The most requests, up to `most`, whose step takes `tpot_ms` at most; `step_ms` of other work, if known."""

        def whole_ms(requests: int) -> float:
            beside_ms = None if step_ms is None else step_ms(requests)
            return (beside_ms or 0.0) + self.step_ms(requests, beside_ms)

        low, high, most_ms = 0, 1, tpot_ms + ROUNDING_MS
        while high < most and whole_ms(high) <= most_ms:
            low, high = high, 2 * high
        high = min(high, most)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if whole_ms(middle) <= most_ms else (low, middle - 1)
        return low

    def formula(self, requests: int, step_ms: float) -> str:
        """`step_ms` of so many requests with its numbers, for a reader."""
        rows = f"{requests:,} requests × {self.misses:,.0f} rows × {self.row_bytes:,} B"
        copied = f"{rows} × {self.layers} layers at {self.gb_s(requests):.1f} GB/s"
        hidden = f"{self.overlap * 100:g} % of that hidden" if self.overlap else "none of it hidden"
        return f"{copied}, {hidden}, + {self.owners} layers × {OWNER_US} µs = {step_ms:.2f} ms"

    def _drafts(self) -> list[str]:
        """What is assumed of calls that read several steps."""
        if self.steps == 1:
            return []
        found = [f"a call reads the top-k of {self.steps} steps; its misses are those with every draft accepted"]
        if self.slots < self.ids:
            holds = f"a hot buffer of {self.slots:,} holds fewer than the {self.ids:,} ids that a call reads"
            found.append(f"{holds}: the engine takes it, the rest is loaded again in every call")
        return found

    def _link(self) -> list[str]:
        """On which link the rates were measured, where it is not that of the planned GPU."""
        curve = self.curve
        if curve.link_gb_s is None:
            other = "" if _is_of(curve.gpu, self.gpu) else f": not on an {self.gpu.name.upper()}, and"
            return [f"link rates as measured on {curve.source}{other or ','} not scaled"]
        if curve.gpu == self.gpu.name:
            return []
        scaled = f"scaled by the nominal rates of the links, {self.gpu.link_gb_s} for {curve.link_gb_s} GB/s"
        how = "not scaled" if self.gpu.link_gb_s == curve.link_gb_s else scaled
        own = f"--link-curve takes those of a machine with {self.gpu.name.upper()}"
        return [f"link rates as measured on {curve.gpu.upper()}, {how}: {own}"]

    def _row_size(self) -> list[str]:
        """How a rate of rows of another size came about, and what would measure it."""
        nearest = self.curve.nearest(self.row_bytes)
        if nearest == self.row_bytes:
            return []
        found = f"no link rate of rows of {self.row_bytes:,} B was measured: that of {nearest:,} B stands in"
        if self.curve.link_gb_s is None:
            measures = f"`hsplan validate` with --kv-cache-dtype {self.kv_cache_dtype} measures them"
            found = f"{found}, times the ratio of the two on {shipped_curve().gpu.upper()}; {measures}"
        return [found]

    def assumptions(self) -> tuple[str, ...]:
        """What was assumed of drafts and of the link beyond hsplan's own measurement; empty where nothing was."""
        found = [*self._drafts(), *self._link(), *self._row_size()]
        if self.host_gb_s is not None:
            each = self.host_gb_s / self.gpus
            found.append(f"host memory gives {self.host_gb_s:,g} GB/s to {self.gpus} GPUs together, {each:,.1f} each")
        if self.overlap:
            found.append(f"{self.overlap * 100:g} % of the loading is taken to be hidden behind the rest of the step")
        return tuple(found)


def _is_of(told: str, gpu: Gpu) -> bool:
    """Whether a driver's name, such as "NVIDIA H100 80GB HBM3", is that of a card: `h100`, `h100-pcie`."""
    return gpu.name.split("-")[0] in re.split(r"[^a-z0-9]+", told.lower())
