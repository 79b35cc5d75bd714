"""
Requests that a scenario holds: every limit, the one that binds, what lifts it, and whether the plan fits at all.

All figures are for one data-parallel rank.
"""

from __future__ import annotations

import msgspec

from hsplan.engines import Budget, Launch, Pools, Scenario
from hsplan.host import available_bytes
from hsplan.spec import Offload
from hsplan.units import ceil_div, gib, size


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of `workload.context` by each limit; None where a limit does not exist or is not known."""

    gpu: int
    host: int | None = None
    hot_buffer: int | None = None
    max_running: int
    link: int | None = None

    def known(self) -> dict[str, int]:
        """The limits that count, in the order of their names in the contract."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` is the least limit, `binding` its name, `lift` the cheapest change that lifts it."""

    requests: int
    binding: str
    lift: str
    limits: Limits
    headroom_bytes: int
    fits: bool
    why_not: str


def capacity_of(launch: Launch, scenario: Scenario, budget: Budget, pools: Pools) -> Capacity:
    """Limits, headroom and verdict of one scenario."""
    context = launch.loaded.spec.workload.context
    reserved = ceil_div(context, pools.page_tokens) * pools.page_tokens
    host_fit = _host_tokens_that_fit(launch, pools)
    limits = Limits(
        gpu=pools.logical_tokens // reserved if context <= pools.max_request_tokens else 0,
        host=None if host_fit is None else min(host_fit, pools.host_tokens) // reserved,
        hot_buffer=pools.tokens.best // pools.hot_buffer_tokens if scenario.offload else None,
        max_running=pools.request_cap,
    )
    known = limits.known()
    binding = min(known, key=lambda name: known[name])
    headroom = budget.free_bytes - sum(line.bytes for line in pools.lines if line.place == "gpu")
    short = host_fit is not None and host_fit < pools.host_tokens
    why_not = _why_not(launch, pools, budget.kv_bytes.best, known[binding], headroom, host_short=short)
    return Capacity(
        requests=known[binding],
        binding=binding,
        lift=_lift(launch, scenario, pools, limits, binding),
        limits=limits,
        headroom_bytes=headroom,
        fits=not why_not,
        why_not=why_not,
    )


def _host_tokens_that_fit(launch: Launch, pools: Pools) -> int | None:
    """Tokens of one rank's host pool that the node's memory holds; None when the memory is not known."""
    host_memory = (launch.loaded.spec.offload or Offload()).host_memory
    if not pools.host_tokens or host_memory == "auto":
        return None
    if host_memory == "here":
        host_memory = available_bytes(launch.loaded.where("offload.host_memory"))
    each = max(host_memory - pools.host_reserve_bytes, 0) // launch.ranks_per_node
    return each * pools.host_tokens // pools.host_bytes


def _why_not(launch: Launch, pools: Pools, kv_bytes: int, requests: int, headroom: int, *, host_short: bool) -> str:
    """The first reason why the plan does not fit, empty when it does."""
    if kv_bytes <= 0:
        return f"nothing is left for the cache ({gib(kv_bytes)}): weights and the reserve take it all"
    if pools.tokens.best == 0:
        return "the budget is smaller than one page of tokens"
    if host_short:
        needed = pools.host_bytes * launch.ranks_per_node + pools.host_reserve_bytes
        return f"the host pools need {size(needed)} on a node, with the 10 GiB that the engine keeps free"
    if headroom < 0:
        return f"it starts and then runs out: {gib(-headroom)} too much beside the pool"
    if requests == 0:
        return f"not one request of {launch.loaded.spec.workload.context:,} tokens fits"
    return ""


def _lift(launch: Launch, scenario: Scenario, pools: Pools, limits: Limits, binding: str) -> str:
    """The cheapest change that lifts the binding limit, up to the next one."""
    others = [value for name, value in limits.known().items() if name != binding]
    nxt = min(others, default=0)
    match binding:
        case "max_running":
            each = nxt * launch.data_parallel
            return f"max_running_requests {each:,}" if nxt > limits.max_running else "a larger pool"
        case "hot_buffer":
            slots = pools.tokens.best // max(nxt, 1) - pools.page_tokens
            least = launch.model.index_topk or 0
            slots = max(slots // pools.page_tokens * pools.page_tokens, least)
            current = pools.hot_buffer_tokens - pools.page_tokens
            if slots < current:
                return f"device_buffer_size {slots:,}"
            return "more memory for the pool: fewer weights on a rank, or a higher mem_fraction"
        case "host":
            needed = pools.host_bytes * launch.ranks_per_node + pools.host_reserve_bytes
            return f"{size(needed)} of host memory on a node"
        case _:
            if scenario.offload:
                return "a higher host_to_device_ratio, as long as the hot buffers still fit"
            return "offload, more ranks, or a higher mem_fraction"
