"""
One setting tried: a deployment with other values and as many running requests as its limits let in.

Its `Setting` comes out, or the limit that stopped it and why.
"""

from __future__ import annotations

import msgspec

from hsplan.capacity import host_pools
from hsplan.errors import HsplanError
from hsplan.planner import replan
from hsplan.result import Plan

MANY_REQUESTS = 4096
POOLS = frozenset({"gpu", "host"})  # limits that a larger pool lifts
SLOW = frozenset({"link", "tpot_ms"})  # limits of time


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """
    One way to run, and what it gives on one data-parallel rank.

    The first two are None without offload; `binding` is the limit that stopped the search: one of `estimate`'s, or
    `headroom`, `engine` (it refuses more), `ratio` (none above 64 is tried), `length` (with a higher ratio the engine
    takes no request so long), or `tokens_s` (more requests yield less). `tokens_s` and `step_ms` are None without a
    known step; `swap_in_ms` is the part of the step that loading takes. `max_model_len` is set where the given one
    starts with offload only: the longest that starts.
    """

    device_buffer_size: int | None
    host_to_device_ratio: int | None
    max_running_requests: int
    requests: int
    binding: str
    swap_in_ms: float
    step_ms: float | None
    tokens_s: float | None
    host_bytes_per_node: int
    scenario: str
    max_model_len: int | None = None

    @property
    def yields(self) -> float:
        """Tokens a second, or requests where the step is not known."""
        return self.requests if self.tokens_s is None else self.tokens_s

    @property
    def worth(self) -> tuple[float, int, float, int]:
        """What is compared: the larger the better."""
        return (self.yields, -self.host_bytes_per_node, -self.swap_in_ms, -(self.device_buffer_size or 0))


class Trial(msgspec.Struct, frozen=True):
    """The setting, or why there is none; `stop` is the limit that was met, `last`: a higher ratio is of no use."""

    stop: str
    setting: Setting | None = None
    why: str = ""
    last: bool = False


def tried(plan: Plan, values: dict[str, int]) -> Trial:
    """The plan with other values and as many running requests as its limits allow."""
    try:
        return _tried(_Cap(plan, values))
    except HsplanError as error:
        return Trial("engine", why=error.problems[0].what, last=True)


class _Cap:
    """
    A plan with other values under any cap of its running requests, each priced once.

    The cap itself takes memory (graphs, tables): a higher one may leave room for fewer requests.
    """

    def __init__(self, plan: Plan, values: dict[str, int]) -> None:
        self.plan, self.values = plan, values
        self.least = max(min(_limits(with_requests(plan, MANY_REQUESTS, values)).values()), 1)
        self.priced: dict[int, tuple[Plan, dict[str, int]]] = {}

    def at(self, requests: int) -> tuple[Plan, dict[str, int]]:
        """The plan that runs so many requests, and its limits."""
        if requests not in self.priced:
            priced = with_requests(self.plan, requests, self.values)
            self.priced[requests] = priced, _limits(priced)
        return self.priced[requests]

    def holds(self, requests: int) -> bool:
        """Whether so many run, as one capped there."""
        priced, limits = self.at(requests)
        return priced.fits and min(limits.values()) >= requests

    def most(self) -> int:
        """The most requests that run, 0 if none do; by bisection between what a very high cap and a low one hold."""
        if self.holds(self.least):
            low, high = self.least, min(self.at(self.least)[1].values())
        else:
            low, high = 0, self.least - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.holds(middle) else (low, middle - 1)
        return low


def _tried(cap: _Cap) -> Trial:
    requests = cap.most()
    priced, limits = cap.at(max(requests, 1))
    last = "hot_buffer" in limits and limits["hot_buffer"] <= limits["gpu"]
    if requests:
        binding = _binding(cap, requests)
        return Trial(binding, setting=_setting(priced, cap.values, binding), last=last)
    capacity, pools = priced.launched.capacity, priced.launched.pools
    assert capacity is not None  # noqa: S101 - a plan as launched is priced
    assert pools is not None  # noqa: S101
    if pools.takes_only_shorter_than(cap.plan.launch.loaded.spec.workload.context):
        return Trial("length", why=capacity.why_not, last=True)  # a higher ratio has a smaller device pool
    binding = _binding(cap, 0)
    return Trial(binding, why=capacity.why_not, last=last or binding in SLOW)


def _binding(cap: _Cap, requests: int) -> str:
    """What keeps one more request than the most from running."""
    for capped in (max(requests, 1), requests + 1):
        priced, limits = cap.at(capped)
        # Where two are equal, more of the pool does not help: it is the other one that stops.
        least = min(limits, key=lambda name: (limits[name], name in POOLS))
        if limits[least] <= requests:
            return least
    return _stop(priced)


def _limits(plan: Plan) -> dict[str, int]:
    """What limits the requests of a plan beside its cap, which is searched."""
    capacity = plan.launched.capacity
    assert capacity is not None  # noqa: S101 - a plan as launched is priced
    return {name: count for name, count in capacity.limits.known().items() if name != "max_running"}


def _stop(plan: Plan) -> str:
    """Why a plan that holds requests does not run: host memory, what stays free on the GPU, or the engine."""
    capacity = plan.launched.capacity
    assert capacity is not None  # noqa: S101 - a plan as launched is priced
    if plan.launch.loaded.spec.offload is not None and replan(plan, host_memory="auto").fits:
        return "host"
    return "headroom" if capacity.headroom_bytes < 0 else "engine"


def _setting(plan: Plan, values: dict[str, int], binding: str) -> Setting:
    capacity, pools = plan.launched.capacity, plan.launched.pools
    assert capacity is not None  # noqa: S101 - it is priced
    assert pools is not None  # noqa: S101
    return Setting(
        device_buffer_size=values.get("device_buffer_size"),
        host_to_device_ratio=values.get("host_to_device_ratio"),
        max_running_requests=capacity.requests * plan.launch.cap_ranks,
        requests=capacity.requests,
        binding=binding,
        swap_in_ms=capacity.swap_in_ms or 0.0,
        step_ms=capacity.step_ms,
        tokens_s=capacity.tokens_s,
        host_bytes_per_node=pools.host_bytes * host_pools(plan.launch, pools),
        scenario=plan.as_launched,
        max_model_len=values.get("max_model_len"),
    )


def with_requests(plan: Plan, requests: int, values: dict[str, int]) -> Plan:
    """The plan with other leaf values and as many running requests on each of its ranks; raises as `replan` does."""
    return replan(plan, max_running_requests=requests * plan.launch.cap_ranks, **values)
