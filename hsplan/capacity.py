"""
Requests that a scenario holds: every limit, the one that binds, what lifts it, and whether the plan fits at all.

All figures are for one data-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import msgspec

from hsplan.advice import MORE_ROOM, Retry, headroom_cure, host_cure, length_cure, lift, time_cure
from hsplan.engines import Budget, Explain, Launch, Pools, Scenario, Step
from hsplan.host import available_bytes
from hsplan.spec import Offload
from hsplan.units import ceil_div, gib, need, size
from hsplan.wholestep import WholeStep

SOURCE = "limits of one data-parallel rank; a request keeps its whole context"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """
    Requests of `workload.context` by each limit; None where a limit does not exist or is not known.

    `workload.tpot_ms` limits as `link` where rows are loaded from host memory, and as `tpot_ms` where none are.
    """

    gpu: int
    host: int | None = None
    hot_buffer: int | None = None
    max_running: int
    link: int | None = None
    tpot_ms: int | None = None

    def known(self) -> dict[str, int]:
        """The limits that count, in the order of their names in the contract."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """
    `requests` is the least limit; `binding` names it, `lift` the cheapest change that lifts it.

    `swap_in_ms`: what loading missed rows adds to a step of so many requests, None where nothing is loaded; `step_ms`:
    the whole step, None without a known `workload.step_ms`. Both are None without a request.
    `why_not` and `cure` say why the plan does not fit and what would make it; both are empty when it does. Both
    pieces of advice are priced when asked for. `explain` writes out the limits.
    """

    requests: int
    binding: str
    limits: Limits
    swap_in_ms: float | None
    step_ms: float | None
    headroom_bytes: int
    fits: bool
    why_not: str
    find_lift: Callable[[], str]
    find_cure: Callable[[], str]
    explain: Explain

    @property
    def tokens_s(self) -> float | None:
        """Output tokens a second of one data-parallel rank that runs all `requests`; None without a known step."""
        return 1000 * self.requests / self.step_ms if self.step_ms else None

    @property
    def lift(self) -> str:
        """The cheapest change that lifts the binding limit."""
        return self.find_lift()

    @property
    def cure(self) -> str:
        """What makes the deployment fit; empty when it does."""
        return self.find_cure()


def capacity_of(launch: Launch, scenario: Scenario, budget: Budget, pools: Pools, retry: Retry) -> Capacity:
    """Limits, headroom and verdict of one scenario; `retry` prices it with other values."""
    context = launch.loaded.spec.workload.context
    reserved = ceil_div(context, pools.page_tokens) * pools.page_tokens
    host_fit = _host_tokens_that_fit(launch, pools)
    short = host_fit is not None and host_fit < pools.host_tokens
    if host_fit is None and pools.host_is_sized:
        host_fit = pools.host_tokens
    by_gpu = pools.logical_tokens // reserved if pools.gpu_requests is None else pools.gpu_requests
    step = WholeStep(launch, scenario, pools)
    by_time = step.requests()
    loads = scenario.offload and not step.rest_is_too_long  # else a faster link would not help
    limits = Limits(
        gpu=by_gpu if context <= pools.max_request_tokens else 0,
        host=None if host_fit is None else min(host_fit, pools.host_tokens) // reserved,
        hot_buffer=pools.hot_pool_tokens // pools.kept_tokens if pools.kept_tokens else None,
        max_running=pools.request_cap,
        link=by_time if loads else None,
        tpot_ms=None if loads else by_time,
    )
    known = limits.known()
    binding = min(known, key=lambda name: known[name])
    headroom = budget.free_bytes - sum(line.bytes for line in pools.lines if line.place == "gpu")
    why_not, find_cure = _verdict(launch, scenario, budget, pools, limits, headroom, step, retry, host_is_short=short)
    swap_in_ms = step.swap_in_ms(known[binding])
    return Capacity(
        requests=known[binding],
        binding=binding,
        limits=limits,
        swap_in_ms=swap_in_ms,
        step_ms=step.whole_ms(known[binding]),
        headroom_bytes=headroom,
        fits=not why_not,
        why_not=why_not,
        find_lift=lambda: lift(launch, scenario, pools, known, step, retry, fits=not why_not),
        find_cure=find_cure,
        explain=lambda: _steps(launch, pools, reserved, host_fit, limits, swap_in_ms),
    )


def _steps(
    launch: Launch, pools: Pools, reserved: int, host_fit: int | None, limits: Limits, swap_in_ms: float | None
) -> tuple[Step, ...]:
    steps = []
    if pools.gpu_requests is None:
        formula = f"{pools.logical_tokens:,} // {reserved:,} = {limits.gpu:,}"
        steps.append(Step("requests by the GPU pool", formula, SOURCE))
    if limits.host is not None and host_fit is not None:
        formula = f"min({host_fit:,} tokens that fit, {pools.host_tokens:,}) // {reserved:,} = {limits.host:,}"
        steps.append(Step("requests by host memory", formula, SOURCE))
    if limits.hot_buffer is not None:
        scratch = f" + {pools.hot_scratch_tokens:,} of scratch" if pools.hot_scratch_tokens else ""
        each = f"({pools.hot_buffer_tokens:,}{scratch})" if scratch else f"{pools.hot_buffer_tokens:,}"
        formula = f"{pools.hot_pool_tokens:,} device tokens // {each} a request = {limits.hot_buffer:,}"
        steps.append(Step("requests by hot buffers", formula, SOURCE))
    if pools.swap_in is not None and swap_in_ms is not None:
        formula = pools.swap_in.formula(min(limits.known().values()), swap_in_ms)
        source = f"miss curve {launch.loaded.spec.workload.profile}; link of {pools.swap_in.curve.source}"
        steps.append(Step("swap-in of a step", formula, source))
    return tuple(steps)


def _host_tokens_that_fit(launch: Launch, pools: Pools) -> int | None:
    """Tokens of one rank's host pool that the node's memory holds; None when the memory is not known."""
    host_memory = (launch.loaded.spec.offload or Offload()).host_memory
    if not pools.host_tokens or host_memory == "auto":
        return None
    if host_memory == "here":
        host_memory = available_bytes(launch.loaded.where("offload.host_memory"))
    usable = int(host_memory * pools.host_share) - pools.host_reserve_bytes
    each = max(usable, 0) // host_pools(launch, pools)
    return each * pools.host_tokens // pools.host_bytes


def host_pools(launch: Launch, pools: Pools) -> int:
    """Host pools on one node."""
    return max(launch.ranks_per_node // pools.host_sharers, 1)


def _verdict(
    launch: Launch,
    scenario: Scenario,
    budget: Budget,
    pools: Pools,
    limits: Limits,
    headroom: int,
    step: WholeStep,
    retry: Retry,
    *,
    host_is_short: bool,
) -> tuple[str, Callable[[], str]]:
    """The first reason why the plan does not fit and what finds its cure; no reason and no cure when it fits."""
    if budget.kv_bytes.best <= 0:
        lack = gib(-budget.kv_bytes.best)
        if launch.loaded.spec.deployment.mem_fraction != "auto":
            reason = f"nothing is left for the cache: the mem_fraction leaves {lack} too little for weights and reserve"
            return reason, lambda: "a higher mem_fraction, or " + MORE_ROOM
        reason = f"nothing is left for the cache: weights and the reserve need {lack} more than the card has"
        return reason, lambda: MORE_ROOM
    most = launch.loaded.spec.deployment.max_total_tokens
    if most is not None and most < pools.page_tokens:
        return "max_total_tokens is less than a page", lambda: f"max_total_tokens of {pools.page_tokens} or more"
    if pools.refusal is not None:
        cure = pools.refusal.cure
        return pools.refusal.why, lambda: cure
    if pools.tokens.best == 0:
        return "the budget is smaller than one page of tokens", lambda: MORE_ROOM
    if host_is_short:
        needed = _memory_for_pools(launch, pools, pools.host_bytes)
        kept = size(needed - pools.host_bytes * host_pools(launch, pools))
        reason = f"the host pools need {need(needed)} on a node, with the {kept} that the engine keeps free"
        return reason, lambda: host_cure(launch, pools, needed, retry)
    if headroom < 0:
        reason = f"it starts and then runs out: {gib(-headroom)} too much beside the pool"
        return reason, lambda: headroom_cure(launch, pools, retry)
    if 0 in (limits.link, limits.tpot_ms):
        return step.too_long(), lambda: time_cure(pools, step, retry)
    context = launch.loaded.spec.workload.context
    if pools.takes_only_shorter_than(context):
        reason = f"the engine takes no request longer than {pools.max_request_tokens:,} tokens"
        return reason, lambda: length_cure(launch, scenario, retry)
    if min(limits.known().values()) == 0:
        return f"not one request of {context:,} tokens fits", lambda: "a shorter context, or " + MORE_ROOM
    return "", str


def host_range_note(launch: Launch, pools: Pools) -> str:
    """That host memory which holds the pools of the best figure does not hold those at most; empty where it does."""
    fit, tokens = _host_tokens_that_fit(launch, pools), pools.tokens
    if fit is None or pools.host_is_sized or not tokens.best or fit < pools.host_tokens:
        return ""
    if fit >= pools.host_tokens * tokens.high // tokens.best:
        return ""
    most = need(_memory_for_pools(launch, pools, pools.host_bytes * tokens.high // tokens.best))
    return f"at {tokens.high:,} device tokens, the most, the host pools would need {most} on a node: more than is given"


def _memory_for_pools(launch: Launch, pools: Pools, host_bytes: int) -> int:
    """The least memory of a node that takes its host pools of `host_bytes` each and what the engine keeps free."""
    return ceil((host_bytes * host_pools(launch, pools) + pools.host_reserve_bytes) / pools.host_share)
