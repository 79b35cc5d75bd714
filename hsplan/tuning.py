"""
The best offload settings of a deployment: hot-buffer size, host_to_device_ratio and running requests, searched.

A setting is better when it yields more tokens a second (with `workload.step_ms`) or holds more requests (without),
within `workload.tpot_ms` if that is given; of equals the one with the least host memory, then the smallest buffer.
"""

from __future__ import annotations

import msgspec

from hsplan.advice import MOST_REQUESTS
from hsplan.capacity import host_pools
from hsplan.errors import HsplanError
from hsplan.planner import replan
from hsplan.result import Plan
from hsplan.units import floor_to

SLOT_SHARES = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)  # of top-k
MOST_SLOTS = 2**15 - 1
MOST_RATIO = 64
LEAST_CONTEXT, MOST_CONTEXT = 4096, 2**20


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """
    One way to run, and what it gives on one data-parallel rank.

    The first two are None without offload; `binding` is the limit that `max_running_requests` stops at. `tokens_s` and
    `step_ms` are None without a known step; `swap_in_ms` is the part of the step that loading takes.
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

    @property
    def worth(self) -> tuple[float, int, int]:
        """What is compared: the larger the better."""
        yields = self.requests if self.tokens_s is None else self.tokens_s
        return (yields, -self.host_bytes_per_node, -(self.device_buffer_size or 0))


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """
    The best setting with offload (None when none fits) and its plan, the best without, and that of each buffer size.

    `pays_from`: the least power of two of context from which offload is better; None if none is.
    """

    best: Setting | None
    plan: Plan | None
    without: Setting | None
    sizes: tuple[Setting, ...]
    pays_from: int | None

    @property
    def pays(self) -> bool:
        """Whether offload yields more than the best without it."""
        return _better(self.best, self.without)


def tuned(plan: Plan) -> Tuned:
    """
    Search the settings of a plan's deployment; everything that is not searched stays as given.

    Raises what `plan` raises for deployments that the engine refuses whatever the settings are.
    """
    sizes, without = _search(plan), _without(plan)
    best = max(sizes, key=lambda setting: setting.worth, default=None)
    return Tuned(
        best=best,
        plan=None if best is None else _replanned(plan, best),
        without=without,
        sizes=sizes,
        pays_from=_pays_from(plan),
    )


def _search(plan: Plan) -> tuple[Setting, ...]:
    """The best setting of each buffer size that has one."""
    top_k, page = plan.launch.model.index_topk or 0, 64
    sizes = {floor_to(int(top_k * share), page) for share in SLOT_SHARES}
    found = (_best_ratio(plan, slots) for slots in sorted(sizes) if slots <= MOST_SLOTS)
    return tuple(setting for setting in found if setting is not None)


def _best_ratio(plan: Plan, slots: int) -> Setting | None:
    """
    More host tokens for each device token let more requests in, until their hot buffers fill the device.

    So the ratio rises until the hot buffers bind, or the pools no longer fit. An engine with a host pool of its own
    size has no ratio.
    """
    if plan.engine != "sglang":
        return _priced(plan, slots, None)[0]
    best: Setting | None = None
    for ratio in range(1, MOST_RATIO + 1):
        setting, crossed = _priced(plan, slots, ratio)
        if setting is not None and _better(setting, best):
            best = setting
        if crossed:
            break
    return best


def _offload_keys(slots: int, ratio: int | None) -> dict[str, int]:
    """The leaf keys of an offload setting."""
    return {"device_buffer_size": slots} | ({} if ratio is None else {"host_to_device_ratio": ratio})


def _priced(plan: Plan, slots: int, ratio: int | None) -> tuple[Setting | None, bool]:
    """The setting with as many running requests as fit, and whether a higher ratio is of no use."""
    try:
        alone, most = _most_requests(plan, _offload_keys(slots, ratio))
    except HsplanError:
        return None, True
    priced = most or alone
    capacity = priced.launched.capacity
    if capacity is None:
        return None, True
    known = capacity.limits.known()
    crossed = known.get("hot_buffer", capacity.requests + 1) <= known["gpu"]
    return (None if most is None else _setting(most, slots, ratio)), crossed


def _most_requests(plan: Plan, values: dict[str, int]) -> tuple[Plan, Plan | None]:
    """
    The plan with one running request, and with as many as fit within `tpot_ms`; None where not one does.

    Tables and states grow with the running requests and take room from the pools, so what one of them leaves is the
    most that can be hoped for, and what a larger number leaves always fits.
    """
    alone = _with_requests(plan, 1, values)
    most: Plan | None = None
    low, high = 0, min(_by_pools(alone), MOST_REQUESTS // plan.launch.cap_ranks)
    probe = high
    while low < high:
        priced = _with_requests(plan, probe, values)
        if _runs(priced, probe):
            most, low = priced, probe
            probe = (low + high + 1) // 2
        else:
            high = probe - 1
            left = min(_by_pools(priced), high)
            probe = left if left > low else (low + high + 1) // 2
    return alone, most


def _by_pools(plan: Plan) -> int:
    """Requests by the limits that the running requests do not set themselves."""
    capacity = plan.launched.capacity
    known = {} if capacity is None else capacity.limits.known()
    return min((count for name, count in known.items() if name not in ("max_running", "link")), default=0)


def _runs(plan: Plan, requests: int) -> bool:
    """Whether the plan fits and runs so many requests at once, within the time per token where the step is known."""
    capacity, tpot_ms = plan.launched.capacity, plan.launch.loaded.spec.workload.tpot_ms
    if capacity is None or not capacity.fits or capacity.requests < requests:
        return False
    return tpot_ms is None or capacity.step_ms is None or capacity.step_ms <= tpot_ms


def _replanned(plan: Plan, best: Setting) -> Plan:
    return _with_requests(plan, best.requests, _offload_keys(best.device_buffer_size or 0, best.host_to_device_ratio))


def _with_requests(plan: Plan, requests: int, values: dict[str, int]) -> Plan:
    return replan(plan, max_running_requests=requests * plan.launch.cap_ranks, **values)


def _without(plan: Plan) -> Setting | None:
    """The deployment without offload, with as many running requests as fit and as the time per token allows."""
    _, most = _most_requests(replan(plan, offload=None), {})
    return None if most is None else _setting(most, None, None)


def _setting(plan: Plan, slots: int | None, ratio: int | None) -> Setting:
    capacity, pools = plan.launched.capacity, plan.launched.pools
    assert capacity is not None  # noqa: S101 - it is priced
    assert pools is not None  # noqa: S101
    return Setting(
        device_buffer_size=slots,
        host_to_device_ratio=ratio,
        max_running_requests=capacity.requests * plan.launch.cap_ranks,
        requests=capacity.requests,
        binding=_binding(plan),
        swap_in_ms=capacity.swap_in_ms or 0.0,
        step_ms=capacity.step_ms,
        tokens_s=capacity.tokens_s,
        host_bytes_per_node=pools.host_bytes * host_pools(plan.launch, pools),
        scenario=plan.as_launched,
    )


def _binding(plan: Plan) -> str:
    """The limit that one more running request meets; room on the GPU where its tables no longer fit."""
    capacity = plan.launched.capacity
    assert capacity is not None  # noqa: S101 - it is priced
    requests = capacity.requests + 1
    if requests > MOST_REQUESTS // plan.launch.cap_ranks:
        return "max_running"
    beyond = _with_requests(plan, requests, {}).launched.capacity
    known = {} if beyond is None else beyond.limits.known()
    met = [name for name, count in known.items() if count < requests and name != "max_running"]
    if not met and beyond is not None and beyond.fits:
        return "tpot_ms"
    return min(met, key=lambda name: known[name], default="gpu")


def _pays_from(plan: Plan) -> int | None:
    """The least power of two of context with a better setting under offload than without."""
    context, most = LEAST_CONTEXT, min(MOST_CONTEXT, plan.launch.context_len)
    while context <= most:
        at = replan(plan, context=context)
        best = max(_search(at), key=lambda setting: setting.worth, default=None)
        if _better(best, _without(at)):
            return context
        context *= 2
    return None


def _better(one: Setting | None, other: Setting | None) -> bool:
    if one is None:
        return False
    return other is None or one.worth > other.worth
