"""
The human form of one plan: a title, the four scenarios side by side, notes and a verdict.

A `Plan` goes in, text of at most `width` columns comes out. A row of the table is one line of `ROWS`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import msgspec

from hsplan.capacity import Capacity
from hsplan.cli.output import width
from hsplan.cli.tables import number, table
from hsplan.engines import Budget, Interval, Layout, Pools
from hsplan.plan import Plan, ScenarioPlan
from hsplan.units import GIB

NONE = "–"
PARALLEL = ("tp", "pp", "dp", "dp_attention", "ep", "cp", "dcp", "pcp", "draft_layers", "disaggregation", "layer_range")


class Priced(msgspec.Struct, frozen=True):
    """A scenario that has numbers, with its plan and its gain over the baseline."""

    plan: Plan
    entry: ScenarioPlan
    layout: Layout
    budget: Budget
    pools: Pools
    capacity: Capacity


def priced(plan: Plan, name: str) -> Priced | None:
    """The numbers of a scenario; None when it is not available."""
    entry = plan.scenarios[name]
    layout, budget, pools, capacity = entry.layout, entry.budget, entry.pools, entry.capacity
    if layout is None or budget is None or pools is None or capacity is None:
        return None
    return Priced(plan, entry, layout, budget, pools, capacity)


def gain(plan: Plan, name: str) -> float | None:
    """Logical tokens of a scenario over those of the baseline, less 1; None where there is nothing to compare."""
    scenario, baseline = priced(plan, name), priced(plan, "baseline")
    if scenario is None or baseline is None or baseline.pools.logical_tokens == 0:
        return None
    return scenario.pools.logical_tokens / baseline.pools.logical_tokens - 1


def best_gain(plan: Plan) -> tuple[str, float] | None:
    """The scenario with the most logical tokens and its gain, when there is any gain."""
    gains = [(found, name) for name in plan.scenarios if (found := gain(plan, name)) is not None]
    most, name = max(gains, key=lambda pair: pair[0], default=(0.0, ""))
    return (name, most) if most > 0 else None


def percent(share: float | None) -> str:
    """A gain for a reader: `+16.6 %`."""
    return NONE if share is None else f"{100 * share:+.1f} %"


def requests_words(plan: Plan) -> str:
    """What one request of the workload is: `requests of 32,768`."""
    return f"requests of {plan.launch.loaded.spec.workload.context:,}"


def title(plan: Plan) -> str:
    """Name, release, GPUs, parallelism, and the budget's range where it is uncertain: one line."""
    launch, deployment = plan.launch, plan.launch.loaded.spec.deployment
    gpus = launch.ranks_per_node * deployment.nodes
    shown = {"tp": launch.tp} | {
        key: value for key in PARALLEL if key != "tp" and (value := getattr(deployment, key)) not in (1, 0, None)
    }
    parts = [
        f"{plan.name}: {plan.engine} {launch.release.name}",
        f"{gpus} × {launch.gpu.name}" + (f" in {deployment.nodes} nodes" if deployment.nodes > 1 else ""),
        " ".join(f"{key} {value}" for key, value in shown.items()),
    ]
    budget = plan.launched.budget
    if budget is not None and budget.kv_bytes.low != budget.kv_bytes.high:
        parts.append(f"KV budget {_gib(budget.kv_bytes.low)} to {_gib(budget.kv_bytes.high)} GiB")
    return ", ".join(parts)


def scenario_table(plan: Plan) -> str:
    """The four scenarios side by side; rows that say nothing for any of them are left out."""
    columns = {name: priced(plan, name) for name in plan.scenarios}
    heads = [name + ("\nas launched" if name == plan.as_launched else "\n") for name in columns]
    rows = []
    for label, cell in _rows(plan):
        cells = [NONE if column is None else cell(column) for column in columns.values()]
        if any(text != NONE for text in cells):
            rows.append([label, *cells])
    rows.append(["engine runs it", *map(_runs, plan.scenarios.values())])
    return table(["\n", *heads], rows, strong=1 + list(columns).index(plan.as_launched))


def _rows(plan: Plan) -> list[tuple[str, Callable[[Priced], str]]]:
    """The rows of the table: label, and the text of a scenario."""
    uncertain = any(p and p.pools.tokens.low != p.pools.tokens.high for p in (priced(plan, n) for n in plan.scenarios))
    dp = plan.launch.data_parallel
    return [
        ("device tokens", lambda p: number(p.pools.tokens.best)),
        ("  at least", lambda p: number(p.pools.tokens.low) if uncertain else NONE),
        ("  at most", lambda p: number(p.pools.tokens.high) if uncertain else NONE),
        ("logical tokens", lambda p: number(p.pools.logical_tokens) if _logical_differs(plan) else NONE),
        ("gain over baseline", lambda p: NONE if p.entry.scenario.name == "baseline" else percent(gain(plan, p.entry.scenario.name))),
        ("B/token, charged", lambda p: number(p.layout.rates.charged)),
        ("B/token, stored", lambda p: number(_stored(p))),
        ("  index-K in it", lambda p: number(p.layout.rates.stored_index) if p.layout.rates.stored_index else NONE),
        ("KV row", lambda p: f"{p.layout.row.bytes} B {p.layout.row.format}"),
        ("backend", lambda p: p.layout.row.attention_backend.replace("/", "/\n")),
        ("KV budget, GiB", lambda p: _gib(p.budget.kv_bytes.best)),
        ("  at least", lambda p: _bound(p.budget.kv_bytes, p.budget.kv_bytes.low, show=uncertain)),
        ("  at most", lambda p: _bound(p.budget.kv_bytes, p.budget.kv_bytes.high, show=uncertain)),
        (requests_words(plan), lambda p: number(p.capacity.requests)),
        ("  by GPU pool", lambda p: number(p.capacity.limits.gpu)),
        ("  by host memory", _host_limit),
        ("  by hot buffers", lambda p: number(p.capacity.limits.hot_buffer)),
        ("  by max running", lambda p: number(p.capacity.limits.max_running)),
        ("  by host link", lambda p: number(p.capacity.limits.link)),
        ("what binds", lambda p: p.capacity.binding),
        ("host GiB, rank", lambda p: _gib(p.pools.host_bytes) if p.pools.host_bytes else NONE),
        ("host GiB, node", lambda p: _gib(p.pools.host_bytes * plan.launch.ranks_per_node) if p.pools.host_bytes else NONE),
        (f"tokens, {dp} DP ranks", lambda p: number(p.pools.logical_tokens * dp) if dp > 1 else NONE),
        (f"requests, {dp} DP", lambda p: number(p.capacity.requests * dp) if dp > 1 else NONE),
        ("headroom, GiB", lambda p: _gib(p.capacity.headroom_bytes)),
        ("fits", lambda p: "yes" if p.capacity.fits else "NO"),
    ]  # fmt: skip


def remarks(plan: Plan) -> str:
    """Below the table: what lifts the limits, why a scenario is as it is, notes, and what is not modelled."""
    lines: list[str] = []
    for name, entry in plan.scenarios.items():
        lines += (_wrapped(f"{name}: ", text) for text in _reasons(plan, entry))
    lines += (_wrapped("note: ", note) for note in plan.notes)
    lines += (_wrapped("not modelled: ", what) for what in plan.not_modelled)
    return "\n".join(lines)


def verdict(plan: Plan) -> str:
    """The last line: whether it fits as launched, what it holds, and the best gain."""
    launched = priced(plan, plan.as_launched)
    assert launched is not None  # noqa: S101 - the scenario as launched always has numbers
    capacity = launched.capacity
    if not capacity.fits:
        return f"{plan.as_launched}, as launched, does not fit: {capacity.why_not}"
    best = best_gain(plan)
    more = f"; {best[0]} would hold {percent(best[1])}" if best and best[0] != plan.as_launched else ""
    held = f"{capacity.requests:,} {requests_words(plan)} tokens ({capacity.binding} binds)"
    return f"{plan.as_launched}, as launched, fits: {launched.pools.logical_tokens:,} tokens, {held}{more}"


def _reasons(plan: Plan, entry: ScenarioPlan) -> Iterator[str]:
    capacity = entry.capacity
    if capacity is None:
        yield f"unavailable: {entry.reason}"
        return
    if entry.reason:
        yield entry.reason
    if not entry.engine_applies:
        yield f"{plan.engine} {plan.launch.release.name} does not run it; it shows what a change of the engine would bring"
    if capacity.why_not:
        yield f"does not fit: {capacity.why_not}"
    yield f"{capacity.binding} binds; lifted by {capacity.lift}"


def _runs(entry: ScenarioPlan) -> str:
    if not entry.available:
        return "unavailable"
    return "yes" if entry.engine_applies else "no"


def _stored(p: Priced) -> int:
    rates = p.layout.rates
    return rates.stored_kv + rates.stored_index + rates.stored_draft


def _host_limit(p: Priced) -> str:
    if p.entry.scenario.offload and p.capacity.limits.host is None:
        return "open"
    return number(p.capacity.limits.host)


def _logical_differs(plan: Plan) -> bool:
    found = (entry.pools for entry in plan.scenarios.values())
    return any(pools is not None and pools.logical_tokens != pools.tokens.best for pools in found)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:,.2f}"


def _bound(budget: Interval, n_bytes: int, *, show: bool) -> str:
    return _gib(n_bytes) if show and budget.low != budget.high else NONE


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        head + text, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
