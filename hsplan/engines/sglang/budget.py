"""
The byte budget of one rank, and what is loaded before it.

budget = int(avail − pre × (1 − mem_fraction_static) − multimodal reserve), both minima over all ranks
(`_profile_available_bytes`, SGLang 0.5.17 to 0.5.23).
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Budget, Interval, Launch, Line, Scenario, Step, exactly
from hsplan.engines.loading import RankWeights
from hsplan.engines.sglang.memory import before_weights_evidence, loading_overhead
from hsplan.engines.sglang.scenarios import indexers_priced
from hsplan.errors import Problem, UnsupportedError
from hsplan.units import MIB, gib

# A weight difference from the inventory, against what the two logs of PR #30531 show.
WEIGHT_DIFFERENCE_UNCERTAINTY = 0.03
# Computed weights may be this much too large before a given budget contradicts them.
WEIGHT_DOUBT = 0.05
MULTIMODAL_RESERVE_BYTES = 100 * MIB


class Held(msgspec.Struct, frozen=True):
    """What a rank of the fullest stage holds in a scenario: its weights and that many indexers."""

    weights: RankWeights
    indexers: int

    @property
    def bytes(self) -> int:
        """Bytes of the target."""
        return self.weights.base + self.indexers * self.weights.indexer


def held_by(launch: Launch, scenario: Scenario) -> Held | str:
    """The stage that holds most, since every rank takes the least that is free; or why weights are not known."""
    stages = []
    for stage, weights in zip(launch.plan.stages, launch.extra.weights, strict=True):
        if isinstance(weights, str):
            return weights
        stages.append(Held(weights, indexers_priced(launch, scenario, stage)))
    return max(stages, key=lambda held: held.bytes)


def budget_of(launch: Launch, scenario: Scenario) -> Budget:
    """
    The given budget, shifted by the indexers that differ from the scenario as launched, or the estimate.

    Raises UnsupportedError when weights are not known and no budget is given.
    """
    given = launch.loaded.spec.deployment.kv_budget
    if given != "auto":
        return _given_budget(launch, scenario, given)
    held = held_by(launch, scenario)
    if isinstance(held, str):
        remedy = "give weights.bytes_per_rank, weights.path or deployment.kv_budget"
        what = f"weights per rank are not known: {held}"
        raise UnsupportedError(Problem(where=launch.loaded.where("weights"), what=what, remedy=remedy))
    return _estimated_budget(launch, held)


def _given_budget(launch: Launch, scenario: Scenario, given: int) -> Budget:
    extra = launch.extra
    pre, kv, freed, known, late = extra.before_weights.best, exactly(given), 0, 0, 0
    launched, held = held_by(launch, extra.as_launched), held_by(launch, scenario)
    if isinstance(launched, Held) and isinstance(held, Held):
        late = 0 if launch.release.has("draft_loaded_first") else held.weights.draft
        freed, known = launched.bytes - held.bytes, held.bytes + held.weights.draft - late
    if freed:
        doubt = int(abs(freed) * WEIGHT_DIFFERENCE_UNCERTAINTY)
        kv += Interval(freed - doubt, freed, freed + doubt)
    outside, reserve = pre - int(pre * extra.memory.fraction), _multimodal_reserve(launch)
    implied = pre - outside - reserve - kv.best
    formula = f"{pre:,} B free − {outside:,} B outside the fraction − {kv.best:,} B budget"
    if reserve:
        formula = f"{formula} − {reserve:,} B multimodal"

    def explain() -> tuple[Step, ...]:
        first = f"given for {extra.as_launched.name}: {given:,} B = {gib(given, 3)}"
        shift = f"{given:,} + {freed:,} B of indexers ± 3 % = {kv.best:,} B"
        steps = (Step("KV budget", first, "deployment.kv_budget"),)
        return (*steps, Step("KV budget of this scenario", shift, "weights of #30531")) if freed else steps

    loaded = max(implied, 0)
    line = Line(name="loaded before the pool", bytes=loaded, formula=formula, evidence="derived")
    return Budget(
        kv_bytes=kv,
        lines=(_outside_line(launch), line, *([_draft_line(late)] if late else [])),
        free_bytes=pre - loaded - late,
        explain=explain,
        notes=_contradiction(implied, known),
    )


def _contradiction(implied: int, known: int) -> tuple[str, ...]:
    """A given budget that leaves less for the weights than they take: the verdict then rests on the budget alone."""
    if implied >= known * (1 - WEIGHT_DOUBT):
        return ()
    leaves = gib(max(implied, 0))
    loaded = f"{leaves} for what is loaded before the pool, but the weights of this spec take {gib(known)}"
    return (f"the given kv_budget leaves {loaded}: check the budget, mem_fraction or the checkpoint's format",)


def _multimodal_reserve(launch: Launch) -> int:
    """Bytes that are neither loaded nor in the budget."""
    reserved = launch.model.multimodal and launch.release.has("multimodal_reserve")
    return MULTIMODAL_RESERVE_BYTES if reserved else 0


def _draft_line(size: int) -> Line:
    formula = "MTP layers, and embedding and head of the draft's own"
    return Line(name="draft weights", bytes=size, formula=formula, evidence="engine_code")


def _outside_line(launch: Launch) -> Line:
    extra = launch.extra
    gpu = launch.gpu
    taken = gpu.reported_bytes - extra.before_weights.best
    formula = f"{gpu.reported_bytes:,} B reported − {extra.before_weights.best:,} B free before weights"
    return Line(
        name="context, driver, communication", bytes=taken, formula=formula, evidence=before_weights_evidence(gpu.name)
    )


def _estimated_budget(launch: Launch, held: Held) -> Budget:
    """Budget = int(avail − pre × (1 − fraction) − multimodal reserve); every rank takes the least avail."""
    extra = launch.extra
    release = launch.release
    pre, fraction = extra.before_weights, extra.memory.fraction
    weights, target = held.weights, held.bytes
    counted_draft = weights.draft if release.has("draft_loaded_first") else 0
    overhead = loading_overhead(launch.gpu, exact=weights.exact)
    reserve = _multimodal_reserve(launch)
    kv = pre.map(lambda free: int(free * fraction)) - exactly(target + counted_draft + reserve) - overhead
    lines = [
        _outside_line(launch),
        Line(
            name="weights",
            bytes=target,
            formula=f"{weights.formula} + {held.indexers} indexers × {weights.indexer:,} B",
            evidence="measured" if weights.exact else "engine_code",
        ),
        Line(
            name="allocator and loading overhead",
            bytes=overhead.best,
            formula="by the logs of four runs",
            evidence="engine_log",
        ),
    ]
    if weights.draft:
        lines.append(_draft_line(weights.draft))
    loaded = target + weights.draft + overhead.best

    def explain() -> tuple[Step, ...]:
        source = f"SGLang {release.name}: _profile_available_bytes"
        return (
            Step("mem_fraction_static", extra.memory.formula, f"SGLang {release.name}: handle_gpu_memory_settings"),
            Step(
                "KV budget",
                f"int({pre.best:,} B free × {fraction:g}) − {target:,} B weights"
                + (f" − {counted_draft:,} B draft" if counted_draft else "")
                + f" − {overhead.best:,} B overhead"
                + (f" − {reserve:,} B multimodal" if reserve else "")
                + f" = {kv.best:,} B = {gib(kv.best, 3)}",
                source,
            ),
            Step(
                "range of the KV budget",
                f"free before weights {gib(pre.low)} to {gib(pre.high)}, "
                f"overhead {gib(overhead.low)} to {gib(overhead.high)}: {gib(kv.low, 3)} to {gib(kv.high, 3)}",
                "logs of H200, H20, RTX PRO 6000, GB300 and MI355X runs",
            ),
        )

    return Budget(kv_bytes=kv, lines=tuple(lines), free_bytes=pre.best - loaded, explain=explain)
