"""The whole decode step of a scenario, loading and the rest, and the requests that `workload.tpot_ms` allows it."""

from __future__ import annotations

import math

import msgspec

from hsplan.engines import Launch, Pools, Scenario
from hsplan.units import ROUNDING_MS

NO_LIMIT = 2**24  # a step that as many requests meet as max_running_requests may name limits nothing


class WholeStep(msgspec.Struct, frozen=True):
    """The step of one rank in a scenario; times are None where a part that counts is not known."""

    launch: Launch
    scenario: Scenario
    pools: Pools

    @property
    def tpot_ms(self) -> float | None:
        """The wished time."""
        return self.launch.loaded.spec.workload.tpot_ms

    def rest_ms(self, requests: int) -> float | None:
        """Milliseconds of the step without loading; None without `workload.step_ms`."""
        workload = self.launch.loaded.spec.workload
        return None if workload.step is None else workload.step.at(requests, workload.context)

    def swap_in_ms(self, requests: int) -> float | None:
        """Milliseconds that loading adds; None without a request, or where nothing is loaded."""
        swap_in = self.pools.swap_in
        return None if swap_in is None or requests == 0 else swap_in.step_ms(requests, self.rest_ms(requests))

    def whole_ms(self, requests: int) -> float | None:
        """Milliseconds of all of it; None without a request, or where a part is not known."""
        rest_ms, swap_in_ms = self.rest_ms(requests), self.swap_in_ms(requests)
        if rest_ms is None or requests == 0 or (self.scenario.offload and swap_in_ms is None):
            return None
        return rest_ms + (swap_in_ms or 0.0)

    def known_ms(self, requests: int) -> float:
        """Milliseconds of those parts that are known."""
        return self._known_rest(requests) + (self.swap_in_ms(requests) or 0.0)

    def requests(self) -> int | None:
        """Requests whose step, as far as it is known, takes `tpot_ms` at most; None where that limits nothing."""
        workload, swap_in = self.launch.loaded.spec.workload, self.pools.swap_in
        if workload.tpot_ms is None:
            return None
        if self.scenario.offload:
            if swap_in is None:
                return None
            rest = None if workload.step is None else self._known_rest
            found = swap_in.requests_within(workload.tpot_ms, rest, NO_LIMIT)
        elif workload.step is None:
            return None
        else:
            found = workload.step.requests_within(workload.tpot_ms, workload.context, NO_LIMIT)
        return found if found < NO_LIMIT else None

    def _known_rest(self, requests: int) -> float:
        return self.rest_ms(requests) or 0.0

    def too_long(self) -> str:
        """Why not one request meets `tpot_ms`."""
        rest_ms, swap_in_ms = self.rest_ms(1), self.swap_in_ms(1) or 0.0
        none = f"no request meets the tpot_ms of {self.tpot_ms:g}"
        if rest_ms is None:
            return f"{none}: its missed rows alone take {swap_in_ms:,.2f} ms a step"
        if self.rest_is_too_long:
            return f"{none}: a step of one takes {rest_ms:,.2f} ms even without loading"
        return f"{none}: a step of one takes {rest_ms:,.2f} ms, and {swap_in_ms:,.2f} ms for its missed rows"

    @property
    def rest_is_too_long(self) -> bool:
        """Whether one request misses `tpot_ms` even without loading."""
        return self.tpot_ms is not None and self._known_rest(1) > self.tpot_ms + ROUNDING_MS

    def enough(self, requests: int) -> str:
        """The `tpot_ms` that so many requests meet, in whole tenths."""
        return f"tpot_ms of {math.ceil(10 * self.known_ms(requests)) / 10:g}"
