"""A plan cut down to what Triton's interpreter runs in seconds: a few layers, two requests, a few hundred tokens."""

from __future__ import annotations

import msgspec

from hsplan.engines import Buffer
from hsplan.gpu.decode import Sizes
from hsplan.gpu.scale import pools_of
from hsplan.planner import replan
from hsplan.result import Plan, ScenarioPlan
from hsplan.units import TIB

TOP_K = 16
SLOTS = 32
CONTEXT = 256
REQUESTS = 2
MOST_LAYERS = 8
TOKENS = 320
MOST_STEPS = 200  # the requests must be longer than a hot buffer at the first


def small_plan(plan: Plan, scenario: str) -> ScenarioPlan:
    """The scenario by the same rules, with pools of 320 device tokens and twice as many in host memory."""
    small = replan(
        plan,
        kv_budget=TIB,
        max_total_tokens=TOKENS,
        max_running_requests=REQUESTS * plan.launch.data_parallel,
        host_to_device_ratio=2,
    )
    return small.scenarios[scenario]


def small_sizes(plan: Plan, entry: ScenarioPlan, steps: int) -> Sizes:
    """Sizes of the run: layers up to the first one that computes top-k after one that shares it, at most eight."""
    assert entry.layout is not None  # noqa: S101 - the scenario is available
    owners = plan.launch.plan.owners[slice(*entry.layout.stage)]
    shares = owners.index(False) if False in owners else 1
    layers = owners.index(True, shares) + 1 if True in owners[shares:] else len(owners)
    return Sizes(
        owners=owners[: min(layers, MOST_LAYERS)],
        row_bytes=entry.layout.row.bytes,
        top_k=TOP_K,
        slots=SLOTS,
        page_tokens=pools_of(entry).page_tokens,
        requests=REQUESTS,
        context=CONTEXT,
        steps=steps,
    )


def first_layers(buffers: tuple[Buffer, ...], owners: tuple[bool, ...]) -> tuple[Buffer, ...]:
    """The pools of the first `len(owners)` layers: index-K for those that own it, no tables and no draft layers."""
    counts = {"KV rows": len(owners), "host KV pool": len(owners), "index-K": sum(owners)}
    cut = []
    for buffer in buffers:
        if buffer.line in counts:
            elided = buffer.line == "index-K" and not buffer.shape[0]
            count = len(owners) - sum(owners) if elided else counts[buffer.line]
            cut.append(msgspec.structs.replace(buffer, count=count))
    return tuple(cut)
