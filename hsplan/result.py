"""The result of planning, and its stable JSON form (`hsplan.plan/1`)."""

from __future__ import annotations

from typing import Any

import msgspec

from hsplan.capacity import Capacity, Limits, host_pools
from hsplan.engines import Budget, CompressedPools, Interval, Launch, Layout, Pools, Rates, Scenario
from hsplan.version import __version__

SCHEMA = "hsplan.plan/1"
# Keys of a scenario that are null when it is not available.
SCENARIO_KEYS = (
    "row", "bytes_per_token", "compressed", "kv_budget_bytes", "kv_budget_bytes_range", "max_total_num_tokens",
    "max_total_num_tokens_range", "logical_tokens", "max_request_tokens", "host_pool_bytes", "blocks", "ledger",
    "concurrency", "headroom_bytes", "fits", "why_not", "cure", "deployment",
)  # fmt: skip


class ScenarioPlan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One scenario: whether the engine runs it, and its numbers.

    `layout`, `budget`, `pools` and `capacity` are None when it is not available; `reason` then says why.
    """

    scenario: Scenario
    engine_applies: bool
    reason: str = ""
    layout: Layout | None = None
    budget: Budget | None = None
    pools: Pools | None = None
    capacity: Capacity | None = None

    @property
    def available(self) -> bool:
        """Whether the scenario has numbers."""
        return self.pools is not None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment priced in all four scenarios. `as_launched` names the one that the given flags start."""

    name: str
    engine: str
    launch: Launch
    as_launched: str
    scenarios: dict[str, ScenarioPlan]
    notes: tuple[str, ...]
    not_modelled: tuple[str, ...]

    @property
    def launched(self) -> ScenarioPlan:
        """The scenario as launched; it is always available."""
        return self.scenarios[self.as_launched]

    @property
    def fits(self) -> bool:
        """Whether the deployment as launched starts, keeps running and holds one request."""
        capacity = self.launched.capacity
        return capacity is not None and capacity.fits

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the contract `hsplan.plan/1`: bytes and tokens are ints."""
        launch, plan = self.launch, self.launch.plan
        owners = plan.owner_ids
        return {
            "schema": SCHEMA,
            "hsplan_version": __version__,
            "name": self.name,
            "model": {
                "family": launch.model.family,
                "architecture": launch.model.architecture,
                "layers": len(plan.pattern),
                "index_owner_layers": len(owners),
                "skip_topk_layers": plan.skip_layers,
                "index_owner_ids": owners,
                "ignored_fields": list(launch.model.ignored_fields),
            },
            "engine": {"name": self.engine, "release": launch.release.name},
            "gpu": {
                "name": launch.gpu.name,
                "reported_bytes": launch.gpu.reported_bytes,
                "ranks_per_node": launch.ranks_per_node,
            },
            "ranks": _ranks(launch),
            "workload": msgspec.to_builtins(launch.loaded.spec.workload),
            "as_launched": self.as_launched,
            "scenarios": {name: _scenario(entry, launch) for name, entry in self.scenarios.items()},
            "notes": list(self.notes),
            "not_modelled": list(self.not_modelled),
        }


def _ranks(launch: Launch) -> dict[str, int]:
    """Group sizes as resolved."""
    given = launch.loaded.spec.deployment
    sizes = ("pp", "dp", "dp_attention", "ep", "cp", "dcp", "pcp", "nodes")
    return {"tp": launch.tp, **{name: getattr(given, name) for name in sizes}, "per_node": launch.ranks_per_node}


def _scenario(entry: ScenarioPlan, launch: Launch) -> dict[str, Any]:
    head = {"engine_applies": entry.engine_applies, "available": entry.available, "reason": entry.reason or None}
    layout, budget, pools, capacity = entry.layout, entry.budget, entry.pools, entry.capacity
    if layout is None or budget is None or pools is None or capacity is None:
        return {**head, **dict.fromkeys(SCENARIO_KEYS)}
    row = layout.row
    return {
        **head,
        "row": {
            "format": row.format,
            "bytes": row.bytes,
            "attention_backend": row.attention_backend,
            "kv_cache_dtype": row.kv_cache_dtype,
            "page_tokens": row.page_tokens,
        },
        "bytes_per_token": _rates(layout.rates),
        "compressed": _compressed(pools.compressed),
        "kv_budget_bytes": budget.kv_bytes.best,
        "kv_budget_bytes_range": _range(budget.kv_bytes),
        "max_total_num_tokens": pools.tokens.best,
        "max_total_num_tokens_range": _range(pools.tokens),
        "logical_tokens": pools.logical_tokens,
        "max_request_tokens": pools.max_request_tokens,
        "host_pool_bytes": pools.host_bytes,
        "blocks": msgspec.to_builtins(pools.blocks),
        "ledger": [msgspec.to_builtins(line) for line in (*budget.lines, *pools.lines)],
        "concurrency": {
            "requests": capacity.requests,
            "binding": capacity.binding,
            "lift": capacity.lift,
            "swap_in_ms": capacity.swap_in_ms,
            "step_ms": capacity.step_ms,
            "tokens_s": capacity.tokens_s,
            "limits": _limits(capacity.limits),
        },
        "headroom_bytes": capacity.headroom_bytes,
        "fits": capacity.fits,
        "why_not": capacity.why_not or None,
        "cure": capacity.cure or None,
        "deployment": {
            "tokens": pools.tokens.best * launch.data_parallel,
            "logical_tokens": pools.logical_tokens * launch.data_parallel,
            "requests": capacity.requests * launch.data_parallel,
            "host_bytes_per_node": pools.host_bytes * host_pools(launch, pools),
        },
    }


def _limits(limits: Limits) -> dict[str, int | None]:
    """The five of the contract; `tpot_ms` only where it limits."""
    found = {name: getattr(limits, name) for name in limits.__struct_fields__}
    return found if limits.tpot_ms is not None else {name: found[name] for name in found if name != "tpot_ms"}


def _rates(rates: Rates | None) -> dict[str, int | None]:
    """Null where no one rate a token exists."""
    if rates is None:
        return dict.fromkeys(Rates.__struct_fields__)
    return {**msgspec.to_builtins(rates), "charged": rates.charged or None}


def _compressed(pools: CompressedPools | None) -> dict[str, float | None] | None:
    """The rates may be fractional; bytes and tokens are ints."""
    if pools is None:
        return None
    return {**msgspec.to_builtins(pools), "swa_fixed_bytes": int(pools.swa_fixed_bytes)}


def _range(interval: Interval) -> list[int]:
    return [interval.low, interval.high]
