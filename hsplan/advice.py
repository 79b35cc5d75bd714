"""
What makes a plan fit, or lifts its binding limit: every figure that is suggested has been priced first.

A `Retry` prices the same scenario with other values; it gives None where the engine refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Protocol

from hsplan.engines import Launch, Pools, Scenario
from hsplan.spec import Offload
from hsplan.units import MAX_BYTES, floor_to, need
from hsplan.wholestep import WholeStep

MORE_ROOM = "more ranks, a larger GPU, or a smaller checkpoint"
LESS_BESIDE = "a lower mem_fraction, or a smaller chunked_prefill_size"
MOST_REQUESTS = 2**24
MOST_RATIO = 1000  # that a spec may have
MOST_TRIES = 16
MOST_SLOTS = 2**15  # that engines count with 16 bits


class Outcome(Protocol):
    """What advice needs to know of a priced scenario."""

    @property
    def fits(self) -> bool:
        """Whether the deployment starts, keeps running and holds a request."""

    @property
    def requests(self) -> int:
        """Requests of one data-parallel rank."""


Retry = Callable[..., Outcome | None]


def host_cure(launch: Launch, pools: Pools, needed: int, retry: Retry) -> str:
    """The largest whole ratio with which the deployment fits, or `needed` bytes of host memory, as this one needs."""
    memory = f"{need(needed)} of host memory on a node"
    if not _fits(retry(host_memory=needed)):
        memory = f"{memory} and {LESS_BESIDE}"
    if pools.host_is_sized:
        return f"a smaller host_pool, or {memory}"
    whole = _lower_ratio(launch, retry)
    return memory if whole is None else f"host_to_device_ratio {whole}, or {memory}"


def length_cure(launch: Launch, scenario: Scenario, retry: Retry) -> str:
    """A shorter context, or the largest whole ratio that leaves a device pool long enough for one request."""
    shorter = f"a shorter context, or {MORE_ROOM}"
    if not scenario.offload:
        return shorter
    whole = _lower_ratio(launch, retry)
    return shorter if whole is None else f"host_to_device_ratio {whole}, or {shorter}"


def headroom_cure(launch: Launch, pools: Pools, retry: Retry) -> str:
    """Fewer running requests when their tables are large enough to give the room, else a smaller pool."""
    ranks = launch.cap_ranks
    fewer = _largest(1, pools.request_cap - 1, lambda n: _fits(retry(max_running_requests=n * ranks)))
    return LESS_BESIDE if fewer is None else f"max_running_requests {fewer * ranks:,}"


def time_cure(pools: Pools, step: WholeStep, retry: Retry) -> str:
    """A `tpot_ms` that one request meets, or the least hot buffer, in powers of two of this one, that does it."""
    longer = f"a {step.enough(1)} or more"
    if step.rest_is_too_long:
        return f"{longer}, or a shorter step"
    slots = 2 * (pools.hot_buffer_tokens - pools.page_tokens)
    while 0 < slots <= MOST_SLOTS:
        if _fits(retry(device_buffer_size=slots)):
            return f"{longer}, or device_buffer_size {slots:,}"
        slots *= 2
    return longer


def lift(
    launch: Launch,
    scenario: Scenario,
    pools: Pools,
    limits: dict[str, int],
    step: WholeStep,
    retry: Retry,
    *,
    fits: bool,
) -> str:
    """
    The cheapest change that lifts the binding limit: up to the next one, and no further than the GPU has room.

    Of limits that bind alike it lifts the first, and names the others; a host pool that holds what the GPU's does grows
    with it. A plan that does not fit (`fits`) is lifted as it is: what cures it is said elsewhere.
    """
    now = min(limits.values())
    binding, *alike = (name for name, value in limits.items() if value == now)
    alike = [name for name in alike if (binding, name) != ("gpu", "host")]

    def uncapped(**values: Any) -> Outcome | None:
        return retry(max_running_requests=min(2 * now * launch.cap_ranks, MOST_REQUESTS), **values)

    # No other change lets more requests in than may run.
    priced = uncapped if "max_running" in alike else retry
    change = _change(binding, launch, scenario, pools, limits, step, priced, fits=fits)
    also = f"{' and '.join(alike)} bind{'' if len(alike) > 1 else 's'} at {now:,} as well"
    return f"{change}; {also}" if alike else change


def _change(
    binding: str,
    launch: Launch,
    scenario: Scenario,
    pools: Pools,
    limits: dict[str, int],
    step: WholeStep,
    retry: Retry,
    *,
    fits: bool,
) -> str:
    now = limits[binding]
    nxt = min((value for name, value in limits.items() if name != binding), default=0)

    def more(outcome: Outcome | None) -> bool:
        return outcome is not None and outcome.requests > now and (outcome.fits or not fits)

    def holds(requests: int, outcome: Outcome | None) -> bool:
        # Tables and states grow with the cap and may leave less for the pool than it lets in.
        return more(outcome) and outcome is not None and outcome.requests >= requests

    most = launch.loaded.spec.deployment.max_total_tokens
    if binding == "gpu" and most is not None and pools.tokens.best + pools.page_tokens > most:
        return "a higher max_total_tokens"
    match binding:
        case "max_running":
            ranks = launch.cap_ranks
            highest = min(nxt, MOST_REQUESTS // ranks)
            cap = _largest(now + 1, highest, lambda n: holds(n, retry(max_running_requests=n * ranks)))
            if cap is None:
                return "a higher max_running_requests" if nxt == now else MORE_ROOM
            return f"max_running_requests {cap * ranks:,}"
        case "hot_buffer":
            slots = floor_to(pools.hot_pool_tokens // max(nxt, 1) - pools.page_tokens, pools.page_tokens)
            slots = max(slots, launch.model.index_topk or 0)
            smaller = slots < pools.hot_buffer_tokens - pools.page_tokens
            return f"device_buffer_size {slots:,}" if smaller and more(retry(device_buffer_size=slots)) else MORE_ROOM
        case "link":
            wider = 2 * (pools.hot_buffer_tokens - pools.page_tokens)
            larger = f"device_buffer_size {wider:,}, or " if wider > 0 and more(retry(device_buffer_size=wider)) else ""
            rest_ms = step.rest_ms(now + 1)
            slow_rest = rest_ms is not None and step.tpot_ms is not None and rest_ms > step.tpot_ms
            return f"{larger}a longer tpot_ms, or {'a shorter step' if slow_rest else 'a faster host link'}"
        case "tpot_ms":
            return f"a {step.enough(nxt)}, or a shorter step"
        case "host" if pools.host_is_sized and not more(retry(host_memory=MAX_BYTES)):
            return "a larger host_pool"
        case "host":
            return "more host memory on a node"
        case _ if not scenario.offload:
            offload = "offload, " if launch.can_offload else ""
            return f"{offload}more ranks, or a higher mem_fraction"
        case _ if limits.get("hot_buffer", 0) > limits["gpu"]:
            ratio = _ratio(launch)
            near = range(int(ratio) + 1, min(ceil(2 * ratio), int(ratio) + MOST_TRIES) + 1)
            higher = [n for n in (*near, ceil(4 * ratio)) if n <= MOST_RATIO]
            for memory, text in (({}, ""), ({"host_memory": MAX_BYTES}, "more host memory, and ")):
                found = next((n for n in higher if more(retry(host_to_device_ratio=n, **memory))), None)
                if found is not None:
                    return f"{text}host_to_device_ratio {found}"
            return MORE_ROOM
        case _:
            return MORE_ROOM


def _ratio(launch: Launch) -> float:
    return (launch.loaded.spec.offload or Offload()).host_to_device_ratio


def _lower_ratio(launch: Launch, retry: Retry) -> int | None:
    """The largest whole ratio below the given one with which the deployment fits."""
    return _largest(1, ceil(_ratio(launch)) - 1, lambda n: _fits(retry(host_to_device_ratio=n)))


def _fits(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.fits


def _largest(low: int, high: int, works: Callable[[int], bool]) -> int | None:
    """The largest of low…high that works, by bisection when `high` does not; only what was seen to work is given."""
    found = None
    probe = high
    while low <= high:
        if works(probe):
            found, low = probe, probe + 1
        else:
            high = probe - 1
        probe = (low + high) // 2
    return found
