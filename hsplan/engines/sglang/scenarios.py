"""Which scenario a build runs, and how many indexers it then holds."""

from __future__ import annotations

from hsplan.engines.base import SCENARIOS, Launch, Row, Scenario
from hsplan.engines.sglang.cell import elides
from hsplan.engines.sglang.releases import Release
from hsplan.families import LayerPlan
from hsplan.spec import Deployment


def launched_scenario(release: Release, deployment: Deployment, plan: LayerPlan, *, offload: bool) -> Scenario:
    """The scenario that the given flags start; without keys of skip layers there is nothing to elide."""
    elided = plan.elidable > 0 and elides(release, deployment, offload=offload)
    return next(s for s in SCENARIOS if (s.elided, s.offload) == (elided, offload))


def row_of(launch: Launch, scenario: Scenario) -> Row | str:
    """The row with the scenario's flags, or why the engine refuses them."""
    found: Row | str = launch.extra.rows[scenario.offload]
    return found


def applies(launch: Launch, scenario: Scenario) -> bool:
    """Whether the build runs the scenario for some choice of the offload flags, all else unchanged."""
    if scenario.offload and isinstance(row_of(launch, scenario), str):
        return False
    if launch.plan.elidable == 0:
        return True  # elided and not elided are the same cache
    return elides(launch.release, launch.loaded.spec.deployment, offload=scenario.offload) == scenario.elided


def indexers_held(release: Release, plan: LayerPlan, stage: tuple[int, int]) -> int:
    """Indexer modules of a stage: since #30531 only those of owner layers, in every mode."""
    if not plan.has_indexer:
        return 0
    return plan.owners_in(*stage) if release.has("elision") else plan.indexed_in(*stage)


def indexers_priced(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> int:
    """Indexers of a stage and scenario: what the build holds where it runs it, else what the scenario's name says."""
    plan = launch.plan
    if not plan.has_indexer:
        return 0
    if applies(launch, scenario):
        return indexers_held(launch.release, plan, stage)
    return plan.owners_in(*stage) if scenario.elided else plan.indexed_in(*stage)
