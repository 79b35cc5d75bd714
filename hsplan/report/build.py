"""Specs in, a `Report` out: every spec planned as it is launched, or refused with what `estimate` says."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hsplan.capacity import host_pools
from hsplan.errors import HsplanError, InputError, Problem, printable, shown
from hsplan.planner import plan as make_plan
from hsplan.report.settings import settings_of
from hsplan.report.value import SCHEMA, Entry, Figures, LedgerLine, Planned, Refused, Report
from hsplan.result import Plan, ScenarioPlan
from hsplan.version import __version__


def report(specs: Sequence[str]) -> Report:
    """
    Price every spec (a shipped name or a path).

    Raises InputError when two specs have one name: a report of later could not be compared with it.
    """
    entries = tuple(map(_entry, specs))
    twice = [name for name, count in Counter(entry.name for entry in entries).items() if count > 1]
    if twice:
        remedy = "give one of them another `name`"
        raise InputError([Problem(what=f"two specs are named {shown(name)}", remedy=remedy) for name in twice])
    return Report(schema=SCHEMA, hsplan_version=__version__, specs=entries)


def _entry(source: str) -> Entry:
    try:
        plan = make_plan(source)
    except HsplanError as error:
        refused = Refused(error.exit_code, tuple(error.lines()))
        return Entry(name=_stem(source), source=printable(source), sha256="", planned=None, refused=refused)
    spec = msgspec.structs.replace(plan.launch.loaded.spec, name=None)
    digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()
    name = printable(plan.name)[:500]
    return Entry(name=name, source=printable(source), sha256=digest, planned=_planned(plan), refused=None)


def _stem(source: str) -> str:
    return printable(Path(source).name.removesuffix(".yaml"))[:500] or "-"


def _planned(plan: Plan) -> Planned:
    launch, launched = plan.launch, plan.launched
    assert launched.budget is not None  # noqa: S101
    assert launched.pools is not None  # noqa: S101
    return Planned(
        settings=settings_of(launch.loaded.spec),
        engine=plan.engine,
        release=launch.release.name,
        gpu=launch.gpu.name,
        gpus=launch.ranks_per_node * launch.loaded.spec.deployment.nodes,
        context=launch.loaded.spec.workload.context,
        as_launched=plan.as_launched,
        scenarios={name: _figures(plan, entry) for name, entry in plan.scenarios.items()},
        ledger=(
            *(LedgerLine(line.name, line.bytes, line.place, line.scope, "budget") for line in launched.budget.lines),
            *(LedgerLine(line.name, line.bytes, line.place, line.scope, "pool") for line in launched.pools.lines),
        ),
        left_out_bytes=launched.budget.free_bytes - launched.budget.kv_bytes.best,
        data_parallel=launch.data_parallel,
    )


def _figures(plan: Plan, entry: ScenarioPlan) -> Figures | None:
    layout, budget, pools, capacity = entry.layout, entry.budget, entry.pools, entry.capacity
    if layout is None or budget is None or pools is None or capacity is None:
        return None
    if pools.compressed is not None:
        rate: float | None = pools.compressed.bytes_per_full_token
    else:
        rate = (layout.rates.charged if layout.rates else 0) or None
    return Figures(
        engine_applies=entry.engine_applies,
        tokens=pools.tokens.best,
        tokens_range=[pools.tokens.low, pools.tokens.high],
        logical_tokens=pools.logical_tokens,
        requests=capacity.requests,
        binding=capacity.binding,
        kv_budget_bytes=budget.kv_bytes.best,
        bytes_per_token=rate,
        row_bytes=layout.row.bytes,
        host_bytes_per_node=pools.host_bytes * host_pools(plan.launch, pools),
        headroom_bytes=capacity.headroom_bytes,
        fits=capacity.fits,
        why_not=capacity.why_not or None,
    )
