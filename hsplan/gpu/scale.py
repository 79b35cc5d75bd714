"""A plan made to fit the machine here: fewer tokens when the card or its host memory is smaller than planned."""

from __future__ import annotations

from dataclasses import dataclass

from hsplan.engines import Buffer, Line, Pools
from hsplan.errors import CannotRunError, Problem
from hsplan.gpu.decode import Sizes
from hsplan.planner import replan
from hsplan.result import Plan, ScenarioPlan
from hsplan.units import ceil_div, gib, size

SHRINK = 0.97
WEIGHTS = ("weights", "draft weights", "loaded before the pool")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A plan as it can be run here; `weight_bytes` stand in for weights, `notes` say what is smaller than planned."""

    plan: Plan
    entry: ScenarioPlan
    weight_bytes: int
    notes: tuple[str, ...]


def fitted(plan: Plan, scenario: str, *, gpu_bytes: int, host_bytes: int) -> Fitted:
    """
    Fewer tokens until pools and weights fit into `gpu_bytes` and the host pool into `host_bytes`.

    Raises CannotRunError when not even the request tables, or a host pool of one page, fit.
    """
    entry, notes = plan.scenarios[scenario], []
    weights = sum(line.bytes for line in lines_of(entry) if line.name in WEIGHTS)
    if weights + bytes_of(pools_of(entry).buffers(), "gpu") > gpu_bytes and weights > gpu_bytes // 2:
        notes.append(f"no room is kept for the weights, {gib(weights)}")
        weights = 0
    planned = tokens = pools_of(entry).tokens.best
    page, why = pools_of(entry).page_tokens, ""
    while short := _short_of(entry, gpu_bytes - weights, host_bytes):
        tokens = int(tokens * SHRINK) // page * page
        if tokens == 0:
            raise CannotRunError(_too_small(entry, short, gpu_bytes - weights, host_bytes))
        plan, why = replan(plan, max_total_tokens=tokens), short
        entry = plan.scenarios[scenario]
    if tokens < planned:
        notes.append(f"pools of {tokens:,} device tokens instead of {planned:,}: {why} is smaller than planned")
    return Fitted(plan=plan, entry=entry, weight_bytes=weights, notes=tuple(notes))


def sizes_of(fit: Fitted, *, steps: int, free_bytes: int) -> tuple[Sizes, tuple[str, ...]]:
    """
    What can be run on the pools of a fitted plan, and what about it is smaller than planned.

    `free_bytes`: GPU memory beside the pools, for traces and state. Raises CannotRunError when no request fits.
    """
    launch, entry = fit.plan.launch, fit.entry
    pools, top_k = pools_of(entry), launch.model.index_topk or 0
    assert entry.layout is not None  # noqa: S101 - the scenario is available
    first, end = entry.layout.stage
    slots = pools.hot_buffer_tokens - pools.page_tokens
    wanted = launch.loaded.spec.workload.context
    shortest = (slots + top_k + steps) * 16 // 15 + pools.page_tokens  # the shortest request is a sixteenth shorter
    context = min(max(wanted, shortest), pools.host_tokens)
    owners = launch.plan.owners[first:end]
    each = sum(owners) * (40 * context + 40 * slots) + 64 * slots * len(owners)
    limits = {
        "host memory": pools.host_tokens // (ceil_div(context, pools.page_tokens) * pools.page_tokens),
        "hot buffers": pools.tokens.best // pools.hot_buffer_tokens,
        "max_running_requests": pools.request_cap,
        "GPU memory beside the pools": free_bytes // each,
    }
    binding = min(limits, key=lambda name: limits[name])
    if context < shortest:
        what = f"no request of {shortest:,} tokens fits: the host pool holds {pools.host_tokens:,}"
        raise CannotRunError(Problem(what=what, remedy="give a larger --host-memory, or fewer --steps"))
    if limits[binding] < 1:
        what = f"no request of {shortest:,} tokens fits: {binding} holds {limits[binding]}"
        raise CannotRunError(Problem(what=what, remedy="give a larger --host-memory or a smaller --device-buffer-size"))
    notes = []
    if context != wanted:
        notes.append(f"requests of {context:,} tokens instead of {wanted:,}: shorter ones never leave the hot buffer")
    if binding == "GPU memory beside the pools":
        notes.append(f"{limits[binding]} requests at once: the traces of more do not fit beside the pools")
    sizes = Sizes(
        owners=owners,
        row_bytes=entry.layout.row.bytes,
        top_k=top_k,
        slots=slots,
        page_tokens=pools.page_tokens,
        requests=limits[binding],
        context=context,
        steps=steps,
    )
    return sizes, tuple(notes)


def bytes_of(buffers: tuple[Buffer, ...], place: str) -> int:
    """Bytes of the tensors of one place."""
    return sum(buffer.bytes for buffer in buffers if buffer.place == place)


def pools_of(entry: ScenarioPlan) -> Pools:
    """The pools of a scenario that is available."""
    assert entry.pools is not None  # noqa: S101
    return entry.pools


def lines_of(entry: ScenarioPlan) -> tuple[Line, ...]:
    """The whole ledger of a scenario that is available."""
    assert entry.budget is not None  # noqa: S101
    return (*entry.budget.lines, *pools_of(entry).lines)


def _too_small(entry: ScenarioPlan, short: str, gpu_bytes: int, host_bytes: int) -> Problem:
    """Why not even pools of a page fit."""
    buffers = pools_of(entry).buffers()
    if short == "GPU memory":
        tables = size(bytes_of(buffers, "gpu"))
        return Problem(
            what=f"the request tables alone take {tables}, there is room for {size(gpu_bytes)}",
            remedy="give a smaller --max-running-requests or --max-model-len",
        )
    what = f"the smallest host pool takes {size(bytes_of(buffers, 'host'))}, this machine gives {size(host_bytes)}"
    return Problem(what=what, remedy="give a larger --host-memory")


def _short_of(entry: ScenarioPlan, gpu_bytes: int, host_bytes: int) -> str:
    """The memory that is too small for the pools; empty when they fit."""
    buffers = pools_of(entry).buffers()
    if bytes_of(buffers, "gpu") > gpu_bytes:
        return "GPU memory"
    return "host memory" if bytes_of(buffers, "host") > host_bytes else ""
