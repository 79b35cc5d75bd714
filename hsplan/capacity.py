"""
Requests that a scenario holds: every limit, the one that binds, what lifts it, and whether the plan fits at all.

All figures are for one data-parallel rank.
"""

from __future__ import annotations

from math import ceil

import msgspec

from hsplan.engines import Budget, Explain, Launch, Layout, Pools, Scenario, Step
from hsplan.host import available_bytes
from hsplan.spec import Offload
from hsplan.units import ceil_div, gib, size

SOURCE = "limits of one data-parallel rank; a request keeps its whole context"
MORE_ROOM = "more ranks, a larger GPU, or a smaller checkpoint"
REQUEST_LINES = ("request to token table", "HiSparse request tables", "HiSparse speculative swap state")


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
    """
    `requests` is the least limit; `binding` names it, `lift` the cheapest change that lifts it.

    `why_not` and `cure` say why the plan does not fit and what would make it; both are empty when it does. `explain`
    writes out the limits.
    """

    requests: int
    binding: str
    lift: str
    limits: Limits
    headroom_bytes: int
    fits: bool
    why_not: str
    cure: str
    explain: Explain


def capacity_of(launch: Launch, scenario: Scenario, layout: Layout, budget: Budget, pools: Pools) -> Capacity:
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
    why_not, cure = _why_not(launch, layout, budget, pools, known[binding], headroom, host_fit if short else None)
    return Capacity(
        requests=known[binding],
        binding=binding,
        lift=_lift(launch, scenario, pools, limits, binding, headroom),
        limits=limits,
        headroom_bytes=headroom,
        fits=not why_not,
        why_not=why_not,
        cure=cure,
        explain=lambda: _steps(scenario, pools, reserved, host_fit, limits),
    )


def _steps(scenario: Scenario, pools: Pools, reserved: int, host_fit: int | None, limits: Limits) -> tuple[Step, ...]:
    steps = [Step("requests by the GPU pool", f"{pools.logical_tokens:,} // {reserved:,} = {limits.gpu:,}", SOURCE)]
    if limits.host is not None and host_fit is not None:
        formula = f"min({host_fit:,} tokens that fit, {pools.host_tokens:,}) // {reserved:,} = {limits.host:,}"
        steps.append(Step("requests by host memory", formula, SOURCE))
    if scenario.offload:
        formula = (
            f"{pools.tokens.best:,} device tokens // {pools.hot_buffer_tokens:,} a request = {limits.hot_buffer:,}"
        )
        steps.append(Step("requests by hot buffers", formula, SOURCE))
    return tuple(steps)


def _host_tokens_that_fit(launch: Launch, pools: Pools) -> int | None:
    """Tokens of one rank's host pool that the node's memory holds; None when the memory is not known."""
    host_memory = (launch.loaded.spec.offload or Offload()).host_memory
    if not pools.host_tokens or host_memory == "auto":
        return None
    if host_memory == "here":
        host_memory = available_bytes(launch.loaded.where("offload.host_memory"))
    each = max(host_memory - pools.host_reserve_bytes, 0) // launch.ranks_per_node
    return each * pools.host_tokens // pools.host_bytes


def _why_not(
    launch: Launch,
    layout: Layout,
    budget: Budget,
    pools: Pools,
    requests: int,
    headroom: int,
    host_fit: int | None,
) -> tuple[str, str]:
    """
    The first reason why the plan does not fit and what cures it, both empty when it fits.

    `host_fit` is the host tokens that fit when they are too few, else None.
    """
    if budget.kv_bytes.best <= 0:
        lack = gib(-budget.kv_bytes.best)
        return f"nothing is left for the cache: weights and the reserve need {lack} more than the card has", MORE_ROOM
    if pools.tokens.best == 0:
        return "the budget is smaller than one page of tokens", MORE_ROOM
    if host_fit is not None:
        needed = size(pools.host_bytes * launch.ranks_per_node + pools.host_reserve_bytes)
        reason = f"the host pools need {needed} on a node, with the 10 GiB that the engine keeps free"
        return reason, _host_cure(launch, layout, budget, host_fit, needed)
    if headroom < 0:
        reason = f"it starts and then runs out: {gib(-headroom)} too much beside the pool"
        return reason, _headroom_cure(launch, pools, -headroom)
    if requests == 0:
        context = launch.loaded.spec.workload.context
        return f"not one request of {context:,} tokens fits", "a shorter context, or " + MORE_ROOM
    return "", ""


def _host_cure(launch: Launch, layout: Layout, budget: Budget, host_fit: int, needed: str) -> str:
    """The largest whole ratio whose host pool fits: device tokens shrink as index-K grows with the ratio."""
    ratio = (launch.loaded.spec.offload or Offload()).host_to_device_ratio
    rates = layout.rates
    for whole in range(ceil(ratio) - 1, 0, -1):
        cell = rates.stored_kv + rates.stored_draft + rates.stored_index / ratio * whole
        if budget.kv_bytes.best / cell * whole <= host_fit:
            return f"host_to_device_ratio {whole}, or {needed} of host memory on a node"
    return f"{needed} of host memory on a node"


def _headroom_cure(launch: Launch, pools: Pools, lack: int) -> str:
    """Fewer running requests when their tables are large enough to give the room, else a smaller pool."""
    fewer = pools.request_cap - ceil_div(lack, _request_bytes(pools))
    if fewer >= 1:
        return f"max_running_requests {fewer * launch.data_parallel:,}"
    return "a lower mem_fraction, or a smaller chunked_prefill_size"


def _request_bytes(pools: Pools) -> int:
    """GPU bytes that one more running request takes beside the pool."""
    tables = sum(line.bytes for line in pools.lines if line.name in REQUEST_LINES)
    return max(tables // (pools.request_cap + 1), 1)


def _lift(launch: Launch, scenario: Scenario, pools: Pools, limits: Limits, binding: str, headroom: int) -> str:
    """The cheapest change that lifts the binding limit: up to the next one, and no further than the GPU has room."""
    others = [value for name, value in limits.known().items() if name != binding]
    nxt = min(others, default=0)
    match binding:
        case "max_running":
            nxt = min(nxt, limits.max_running + max(headroom, 0) // (2 * _request_bytes(pools)))
            each = nxt * launch.data_parallel
            return f"max_running_requests {each:,}" if nxt > limits.max_running else MORE_ROOM
        case "hot_buffer":
            slots = pools.tokens.best // max(nxt, 1) - pools.page_tokens
            least = launch.model.index_topk or 0
            slots = max(slots // pools.page_tokens * pools.page_tokens, least)
            current = pools.hot_buffer_tokens - pools.page_tokens
            return f"device_buffer_size {slots:,}" if slots < current else MORE_ROOM
        case "host":
            return "more host memory on a node"
        case _:
            if scenario.offload and limits.hot_buffer is not None and limits.hot_buffer > limits.gpu:
                memory = " and more host memory" if limits.host is not None else ""
                return f"a higher host_to_device_ratio{memory}, as long as the hot buffers still fit"
            if scenario.offload:
                return MORE_ROOM
            offload = "offload, " if launch.model.index_topk is not None else ""
            return f"{offload}more ranks, or a higher mem_fraction"
