"""
The byte budget of one rank, and what is loaded before it.

budget = ceil(gpu_memory_utilization × visible memory) − weights − what the profiling run measures
(`determine_available_memory`, vLLM 0.24.0 to 0.33.0), or --kv-cache-memory-bytes as given.
"""

from __future__ import annotations

from math import ceil

from hsplan.engines.base import Budget, Buffer, Evidence, Interval, Launch, Line, Scenario, Step, exactly
from hsplan.engines.loading import RankWeights
from hsplan.engines.vllm.caches import kind_of
from hsplan.engines.vllm.hisparse import TABLES, tables
from hsplan.engines.vllm.memory import WORKSPACE, Reserved, context_bytes, profiled, visible_bytes
from hsplan.engines.vllm.scenarios import drafts_on, indexers_priced, layers_of
from hsplan.errors import Problem, UnsupportedError
from hsplan.units import GIB, gib

# A weight difference from the inventory, against what the logs of sglang #30531 show.
WEIGHT_DIFFERENCE_UNCERTAINTY = 0.03
EACH_STAGE = "the given kv_budget is taken for every pipeline stage; an estimate is that of the stage that binds"


def budget_of(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> Budget:
    """
    The given budget, shifted by indexers and tables that differ from the scenario as launched, or the estimate.

    Raises UnsupportedError when weights are not known and no budget is given.
    """
    given, weights = launch.loaded.spec.deployment.kv_budget, launch.extra.weights[launch.plan.stages.index(stage)]
    if given != "auto":
        return _given_budget(launch, scenario, stage, given, weights)
    if isinstance(weights, str):
        remedy = "give weights.bytes_per_rank, weights.path or deployment.kv_budget"
        what = f"weights per rank are not known: {weights}"
        raise UnsupportedError(Problem(where=launch.loaded.where("weights"), what=what, remedy=remedy))
    return _estimated_budget(launch, scenario, stage, weights)


def table_buffers(launch: Launch, scenario: Scenario) -> tuple[Buffer, ...]:
    """HiSparse tensors beside the pool, of every index group of the model; none without offload."""
    rows, top_k = launch.extra.hot_rows, launch.model.index_topk
    if not scenario.offload or not isinstance(rows, int) or top_k is None:
        return ()
    groups = layers_of(launch, scenario, launch.plan.stages[-1]).index
    return tables(launch.release, launch.extra.scheduler, top_k, rows, groups)


def _table_bytes(launch: Launch, scenario: Scenario) -> int:
    return sum(buffer.bytes for buffer in table_buffers(launch, scenario))


def _table_lines(launch: Launch, scenario: Scenario) -> list[Line]:
    size = _table_bytes(launch, scenario)
    if not size:
        return []
    scheduler, rows = launch.extra.scheduler, launch.extra.hot_rows
    formula = f"residency, LRU order and swap rows of {scheduler.max_num_seqs:,} requests × {rows:,} rows, per indexer"
    return [Line(name=TABLES, bytes=size, formula=formula, evidence="engine_code")]


def _outside_lines(launch: Launch) -> list[Line]:
    """What the driver hides, and the context that lies outside gpu_memory_utilization."""
    hidden = launch.gpu.reported_bytes - visible_bytes(launch.gpu).best
    context = context_bytes(launch.extra.world)
    return [
        Line(name="hidden from CUDA", bytes=hidden, formula="reported less visible memory", evidence="derived"),
        Line(name="CUDA context", bytes=context, formula="before the engine's first snapshot", evidence="assumed"),
    ]


def _given_budget(
    launch: Launch, scenario: Scenario, stage: tuple[int, int], given: int, weights: RankWeights | str
) -> Budget:
    extra = launch.extra
    kv = exactly(given)
    indexer = 0 if isinstance(weights, str) else weights.indexer
    fewer = indexers_priced(launch, extra.as_launched, stage) - indexers_priced(launch, scenario, stage)
    if fewer and indexer:
        freed = fewer * indexer
        doubt = int(abs(freed) * WEIGHT_DIFFERENCE_UNCERTAINTY)
        kv += Interval(freed - doubt, freed, freed + doubt)
    beside = _table_bytes(launch, scenario)
    kv += exactly(_table_bytes(launch, extra.as_launched) - beside)
    requested = ceil(visible_bytes(launch.gpu).best * extra.utilization)
    implied = max(requested - kv.best - beside, 0)
    line = Line(
        name="loaded before the pool",
        bytes=implied,
        formula=f"{requested:,} B requested − {kv.best:,} B budget" + (f" − {beside:,} B tables" if beside else ""),
        evidence="derived",
    )
    lines = (*_outside_lines(launch), line, *_table_lines(launch, scenario))

    def explain() -> tuple[Step, ...]:
        formula = f"given for {extra.as_launched.name}: {given:,} B = {gib(given, 3)}"
        steps = (Step("KV budget", formula, "--kv-cache-memory-bytes"),)
        if kv == exactly(given):
            return steps
        shifted = f"less indexers and {TABLES} that differ: {kv.best:,} B"
        return (*steps, Step("KV budget of this scenario", shifted, "vLLM: determine_available_memory"))

    notes = (EACH_STAGE,) if len(launch.plan.stages) > 1 else ()
    return Budget(kv_bytes=kv, lines=lines, free_bytes=_free(launch, lines), explain=explain, notes=notes)


def _estimated_budget(launch: Launch, scenario: Scenario, stage: tuple[int, int], weights: RankWeights) -> Budget:
    extra = launch.extra
    indexers = indexers_priced(launch, scenario, stage)
    target = weights.base + indexers * weights.indexer
    draft = weights.draft if drafts_on(launch, stage) else 0
    reserve = kind_of(launch.model).reserve(launch, stage)
    reserve += profiled(launch, sum(part.bytes.best for part in reserve if part.name == WORKSPACE))
    beside = _table_lines(launch, scenario)
    requested = visible_bytes(launch.gpu).map(lambda visible: ceil(visible * extra.utilization))
    kv = requested - exactly(target + draft + sum(line.bytes for line in beside))
    for part in reserve:
        kv -= part.bytes
    formula = f"{weights.formula} + {indexers} indexers × {weights.indexer:,} B"
    weight_evidence: Evidence = "measured" if weights.exact else "engine_code"
    lines = [
        *_outside_lines(launch),
        Line(name="weights", bytes=target, formula=formula, evidence=weight_evidence),
        *([Line(name="draft weights", bytes=draft, formula="MTP layers", evidence="engine_code")] if draft else []),
        *beside,
        *(Line(name=p.name, bytes=p.bytes.best, formula=p.formula, evidence=p.evidence) for p in reserve),
    ]

    def explain() -> tuple[Step, ...]:
        return _steps(launch, requested, kv, target + draft, reserve)

    return Budget(kv_bytes=kv, lines=tuple(lines), free_bytes=_free(launch, lines), explain=explain)


def _free(launch: Launch, lines: tuple[Line, ...] | list[Line]) -> int:
    return launch.gpu.reported_bytes - sum(line.bytes for line in lines)


def _steps(
    launch: Launch, requested: Interval, kv: Interval, weights: int, reserve: list[Reserved]
) -> tuple[Step, ...]:
    source = f"vLLM {launch.release.name}: determine_available_memory"
    parts = " − ".join(f"{part.bytes.best / GIB:.2f} {part.name}" for part in reserve)
    visible = visible_bytes(launch.gpu).best
    return (
        Step(
            "requested memory",
            f"ceil({visible:,} B visible × {launch.extra.utilization:g}) = {requested.best:,} B",
            source,
        ),
        Step("KV budget", f"{gib(requested.best)} − {weights / GIB:.2f} weights − {parts} = {gib(kv.best)}", source),
        Step("range of the KV budget", f"{gib(kv.low)} to {gib(kv.high)}", "logs of H100, RTX PRO 6000 and GB10 runs"),
    )
