"""
The four scenarios side by side: a `Plan` in, a title line and a table out.

A row of the table is one line of `_rows`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hsplan.capacity import host_pools
from hsplan.cli.figures import (
    NONE,
    Priced,
    gain,
    gib,
    milliseconds,
    number,
    percent,
    priced,
    rate,
    tokens_a_second,
)
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.engines import CompressedPools, Interval
from hsplan.errors import printable
from hsplan.result import Plan, ScenarioPlan
from hsplan.spec import Deployment

PARALLEL = ("pp", "dp", "dp_attention", "ep", "cp", "dcp", "pcp", "draft_layers", "disaggregation", "layer_range")
DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Deployment)}


def title(plan: Plan) -> str:
    """Name, release, GPUs, parallelism, and the budget's range where it is uncertain."""
    launch, deployment = plan.launch, plan.launch.loaded.spec.deployment
    set_keys = {key: value for key in PARALLEL if (value := getattr(deployment, key)) != DEFAULTS[key]}
    nodes = f" in {deployment.nodes} nodes" if deployment.nodes > 1 else ""
    parts = [
        f"{printable(plan.name)}: {plan.engine} {launch.release.name}",
        f"{launch.ranks_per_node * deployment.nodes} × {launch.gpu.name}{nodes}",
        *(f"{key} {value}" for key, value in {"tp": launch.tp, **set_keys}.items()),
    ]
    if deployment.max_running_requests != "auto":
        parts.append(f"max_running_requests {deployment.max_running_requests:,}")
    budget = plan.launched.budget
    if budget is not None and budget.kv_bytes.high <= 0:
        parts.append("no room for a cache")
    elif budget is not None and gib(budget.kv_bytes.low) != gib(budget.kv_bytes.high):
        parts.append(f"KV budget {gib(budget.kv_bytes.low)} to {gib(budget.kv_bytes.high)} GiB")
    return wrapped("", ", ".join(parts))


def scenario_table(plan: Plan) -> str:
    """The table; rows that say nothing for any scenario are left out."""
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
    """Label of each row, and the text of a scenario in it."""
    dp, length = plan.launch.data_parallel, plan.launch.context_len
    shared = any(entry.pools is not None and entry.pools.host_sharers > 1 for entry in plan.scenarios.values())
    return [
        ("KV cache, tokens" if _in_blocks(plan) else "device tokens", lambda p: number(p.pools.tokens.best)),
        ("  at least", lambda p: _low(p.pools.tokens, number)),
        ("  at most", lambda p: _high(p.pools.tokens, number)),
        (f"concurrency of {length:,}", _concurrency),
        ("  at rest", _at_rest),
        ("GPU blocks", lambda p: NONE if p.pools.blocks is None else number(p.pools.blocks.num_blocks)),
        ("B/block", lambda p: NONE if p.pools.blocks is None else number(p.pools.blocks.bytes_per_block)),
        ("host blocks", lambda p: NONE if p.pools.blocks is None else number(p.pools.blocks.host_num_blocks)),
        ("logical tokens", lambda p: number(p.pools.logical_tokens) if _logical_differs(plan) else NONE),
        ("gain over baseline", lambda p: NONE if p.name == "baseline" else percent(gain(plan, p.name))),
        ("B/token, charged", lambda p: number((p.layout.rates.charged if p.layout.rates else None) or None)),
        ("B/token, stored", lambda p: number(_stored(p))),
        ("  index-K in it", lambda p: number((p.layout.rates.stored_index if p.layout.rates else None) or None)),
        ("B/full token", lambda p: rate(_full_token(p))),
        ("fixed GiB, request", _fixed),
        ("B/window slot", lambda p: rate(p.pools.compressed and p.pools.compressed.bytes_per_swa_token)),
        ("window slots", lambda p: number(p.pools.compressed and p.pools.compressed.swa_tokens)),
        ("fixed GiB, windows", lambda p: gib(int(p.pools.compressed.swa_fixed_bytes)) if p.pools.compressed else NONE),
        ("fixed GiB, state", lambda p: gib(_state_bytes(p.pools.compressed)) if p.pools.compressed else NONE),
        ("KV row", lambda p: f"{p.layout.row.bytes:,} B {p.layout.row.format}"),
        ("backend", _backend),
        ("KV budget, GiB", lambda p: gib(p.budget.kv_bytes.best)),
        ("  at least", lambda p: _low(p.budget.kv_bytes, gib)),
        ("  at most", lambda p: _high(p.budget.kv_bytes, gib)),
        (f"requests of {plan.launch.loaded.spec.workload.context:,}", lambda p: number(p.capacity.requests)),
        ("  by GPU pool", lambda p: number(p.capacity.limits.gpu)),
        ("  by host memory", _host_limit),
        ("  by hot buffers", lambda p: number(p.capacity.limits.hot_buffer)),
        ("  by max running", lambda p: number(p.capacity.limits.max_running)),
        ("  by host link", lambda p: number(p.capacity.limits.link)),
        ("  by time per token", lambda p: number(p.capacity.limits.tpot_ms)),
        ("swap-in, ms a step", lambda p: milliseconds(p.capacity.swap_in_ms)),
        ("step, ms", lambda p: milliseconds(p.capacity.step_ms)),
        ("tokens/s", lambda p: _tokens_s(p, 1)),
        ("what binds", lambda p: p.capacity.binding),
        ("host GiB, pool" if shared else "host GiB, rank", lambda p: _host_gib(p, 1)),
        ("host GiB, node", lambda p: _host_gib(p, host_pools(plan.launch, p.pools))),
        (f"tokens, {dp} DP ranks", lambda p: number(p.pools.logical_tokens * dp) if dp > 1 else NONE),
        (f"requests, {dp} DP", lambda p: number(p.capacity.requests * dp) if dp > 1 else NONE),
        (f"tokens/s, {dp} DP", lambda p: _tokens_s(p, dp) if dp > 1 else NONE),
        ("headroom, GiB", lambda p: gib(p.capacity.headroom_bytes)),
        ("fits", lambda p: "yes" if p.capacity.fits else "NO"),
    ]


def _tokens_s(p: Priced, ranks: int) -> str:
    return tokens_a_second(None if p.capacity.tokens_s is None else p.capacity.tokens_s * ranks)


def _in_blocks(plan: Plan) -> bool:
    return any(entry.pools is not None and entry.pools.blocks is not None for entry in plan.scenarios.values())


def _concurrency(p: Priced) -> str:
    """As vLLM prints it; under offload that of requests which read from host memory."""
    if p.pools.blocks is None:
        return NONE
    printed, steady = p.pools.blocks.max_concurrency, p.pools.blocks.steady_state_concurrency
    found = steady if printed is None else printed
    return NONE if found is None else f"{found:,.2f}"


def _at_rest(p: Priced) -> str:
    """Requests of that length of which all but one decode, where the engine prints another figure."""
    blocks = p.pools.blocks
    if blocks is None or blocks.max_concurrency is None or blocks.steady_state_concurrency is None:
        return NONE
    return f"{blocks.steady_state_concurrency:,.2f}"


def _full_token(p: Priced) -> float | None:
    """Bytes of a token of DeepSeek-V4, by the pools of one engine or the blocks of the other."""
    if p.pools.compressed is not None:
        return p.pools.compressed.bytes_per_full_token
    return None if p.pools.blocks is None else p.pools.blocks.bytes_per_full_token


def _fixed(p: Priced) -> str:
    """What a printed request takes beside its tokens."""
    fixed = None if p.pools.blocks is None else p.pools.blocks.fixed_bytes_per_request
    return NONE if fixed is None else gib(fixed)


def _backend(p: Priced) -> str:
    """The name, broken where a table of four would be too wide."""
    return p.layout.row.attention_backend.replace("/", "/\n").replace("_mla_sparse", "_mla\n_sparse")


def _host_gib(p: Priced, pools: int) -> str:
    return gib(p.pools.host_bytes * pools) if p.pools.host_bytes else NONE


def _runs(entry: ScenarioPlan) -> str:
    if not entry.available:
        return "unavailable"
    return "yes" if entry.engine_applies else "no"


def _low(value: Interval, words: Callable[[int], str]) -> str:
    return NONE if value.low == value.high else words(value.low)


def _high(value: Interval, words: Callable[[int], str]) -> str:
    return NONE if value.low == value.high else words(value.high)


def _state_bytes(pools: CompressedPools) -> int:
    return pools.fixed_c128_state_bytes + pools.fixed_c2_state_bytes


def _stored(p: Priced) -> int | None:
    rates = p.layout.rates
    return None if rates is None else rates.stored_kv + rates.stored_index + rates.stored_draft


def _host_limit(p: Priced) -> str:
    if p.entry.scenario.offload and p.capacity.limits.host is None:
        return "open"
    return number(p.capacity.limits.host)


def _logical_differs(plan: Plan) -> bool:
    if _in_blocks(plan):
        return False
    found = (entry.pools for entry in plan.scenarios.values())
    return any(pools is not None and pools.logical_tokens != pools.tokens.best for pools in found)
