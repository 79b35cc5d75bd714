"""
The best offload settings of a deployment: hot-buffer size, host_to_device_ratio and running requests, searched.

A setting is better when it yields more tokens a second (with `workload.step_ms`) or holds more requests (without),
within `workload.tpot_ms` if that is given; of equals the one with the least host memory, then the least loading, then
the smallest buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from hsplan.advice import MOST_SLOTS
from hsplan.planner import replan
from hsplan.result import Plan
from hsplan.trial import Setting, Trial, tried, with_requests
from hsplan.units import floor_to

SLOT_SHARES = (1, 1.5, 2, 3, 4, 6, 8, 12, 16)  # of top-k
MOST_RATIO = 64
NOISE = 0.01  # a smaller share of tokens or requests is no difference
LEAST_CONTEXT, MOST_CONTEXT = 4096, 2**20


class LeftOut(msgspec.Struct, frozen=True):
    """A buffer size without any setting, None for the deployment without offload, and why."""

    device_buffer_size: int | None
    why: str


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """
    The best setting with offload (None when none fits) and its plan, the best without, and that of each buffer size.

    `left_out`: what has no setting. `pays_from`: the least power of two of context from which offload pays; None if
    none is.
    """

    best: Setting | None
    plan: Plan | None
    without: Setting | None
    sizes: tuple[Setting, ...]
    left_out: tuple[LeftOut, ...]
    pays_from: int | None

    @property
    def top(self) -> Setting | None:
        """The best of all, with offload or without."""
        both = (setting for setting in (self.best, self.without) if setting is not None)
        return max(both, key=lambda setting: setting.worth, default=None)

    @property
    def gain(self) -> float | None:
        """What the best with offload yields over the best without, less 1; None without the two."""
        return None if self.best is None or self.without is None else self.best.yields / self.without.yields - 1

    @property
    def pays(self) -> bool:
        """Whether offload yields more than the best without it, by more than the noise."""
        return _pays(self.best, self.without)


def tuned(plan: Plan) -> Tuned:
    """
    Search the settings of a plan's deployment; everything that is not searched stays as given.

    Raises what `plan` raises for deployments that the engine refuses whatever the settings are.
    """
    found = (_without(plan), *_search(plan))
    without, *sizes = (None if isinstance(entry, LeftOut) else entry for entry in found)
    settings = tuple(setting for setting in sizes if setting is not None)
    best = _best(settings)
    return Tuned(
        best=best,
        plan=None if best is None else _replanned(plan, best),
        without=without,
        sizes=settings,
        left_out=tuple(entry for entry in found if isinstance(entry, LeftOut)),
        pays_from=_pays_from(plan),
    )


def _search(plan: Plan) -> tuple[Setting | LeftOut, ...]:
    """The best setting of each buffer size, or why it has none."""
    top_k, page = plan.launch.model.index_topk or 0, 64
    sizes = {floor_to(min(int(top_k * share), MOST_SLOTS), page) for share in SLOT_SHARES}
    return tuple(_of_size(plan, slots) for slots in sorted(sizes))


def _of_size(plan: Plan, slots: int) -> Setting | LeftOut:
    """The best ratio of a buffer size, bound by what keeps the next ones from holding more."""
    tries = list(_tries(plan, slots))
    best = _best(entry.setting for entry in tries)
    if best is None:
        said = next((entry for entry in tries if entry.stop != "gpu"), tries[-1])
        return LeftOut(slots, said.why)
    if best.binding != "gpu" or best.host_to_device_ratio is None:
        return best
    after = tries[best.host_to_device_ratio :]
    if any(entry.setting is not None and entry.setting.requests > best.requests for entry in after):
        return msgspec.structs.replace(best, binding="tokens_s")
    return msgspec.structs.replace(best, binding=next((entry.stop for entry in after if entry.stop != "gpu"), "ratio"))


def _tries(plan: Plan, slots: int) -> Iterator[Trial]:
    """
    More host tokens for each device token let more requests in, until their hot buffers fill the device.

    So the ratio rises until the hot buffers bind. An engine with a host pool of its own size has no ratio.
    """
    if plan.engine != "sglang":
        yield tried(plan, _offload_keys(slots, None))
        return
    for ratio in range(1, MOST_RATIO + 1):
        found = tried(plan, _offload_keys(slots, ratio))
        yield found
        if found.last:
            return


def _offload_keys(slots: int, ratio: int | None) -> dict[str, int]:
    """The leaf keys of an offload setting."""
    return {"device_buffer_size": slots} | ({} if ratio is None else {"host_to_device_ratio": ratio})


def _replanned(plan: Plan, best: Setting) -> Plan:
    return with_requests(plan, best.requests, _offload_keys(best.device_buffer_size or 0, best.host_to_device_ratio))


def _without(plan: Plan) -> Setting | LeftOut:
    """The deployment without offload, at the longest max_model_len that starts if the given one does not."""
    bare = replan(plan, offload=None)
    length = _startable(bare)
    found = tried(bare, {} if length is None else {"max_model_len": length})
    return LeftOut(None, found.why) if found.setting is None else found.setting


def _startable(plan: Plan) -> int | None:
    """
    The longest max_model_len of the workload's context or more that starts; None where the given one does.

    Running requests take memory too: the given length is tried with one, others with as many as the shortest runs.
    """

    def starts(requests: int, length: int) -> bool:
        pools = with_requests(plan, requests, {"max_model_len": length}).launched.pools
        return pools is not None and pools.refusal is None

    low, high = plan.launch.loaded.spec.workload.context, plan.launch.context_len
    if plan.launched.pools is None or starts(1, high):
        return None
    least = tried(plan, {"max_model_len": low}).setting
    if least is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if starts(least.requests, middle) else (low, middle - 1)
    return low


def longest_context(plan: Plan) -> int:
    """The longest context of those that are searched, tokens."""
    return min(MOST_CONTEXT, plan.launch.context_len)


def _pays_from(plan: Plan) -> int | None:
    """The least context at which offload pays, of the powers of two that it takes."""
    context = LEAST_CONTEXT
    while context <= longest_context(plan):
        at = replan(plan, context=context)
        without = _without(at)
        best = _best(entry for entry in _search(at) if isinstance(entry, Setting))
        if _pays(best, without if isinstance(without, Setting) else None):
            return context
        context *= 2
    return None


def _best(settings: Iterable[Setting | None]) -> Setting | None:
    known = (setting for setting in settings if setting is not None)
    return max(known, key=lambda setting: setting.worth, default=None)


def _pays(best: Setting | None, without: Setting | None) -> bool:
    if best is None:
        return False
    return without is None or best.yields > (1 + NOISE) * without.yields
