"""Which scenario a build runs, the layers it then holds, and its indexers."""

from __future__ import annotations

from hsplan.engines.base import SCENARIOS, Launch, Scenario
from hsplan.engines.vllm.pages import Layers
from hsplan.engines.vllm.releases import Release
from hsplan.families import LayerPlan


def launched_scenario(release: Release, plan: LayerPlan, *, offload: bool) -> Scenario:
    """The scenario that the given flags start; without keys of skip layers there is nothing to elide."""
    elided = plan.elidable > 0 and release.has("elision")
    return next(s for s in SCENARIOS if (s.elided, s.offload) == (elided, offload))


def applies(launch: Launch, scenario: Scenario) -> bool:
    """Whether the build runs the scenario for some choice of the offload flags, all else unchanged."""
    latent = launch.model.kv is None
    if latent and launch.plan.has_indexer and launch.loaded.spec.deployment.indexer_kv_dtype == "mxfp4":
        return False  # no DSA indexer of 0.24.0 to 0.33.0 stores fp4 keys
    release: Release = launch.release
    return launch.plan.elidable == 0 or release.has("elision") == scenario.elided


def layers_of(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> Layers:
    """Layers of a stage of an MLA or DSA model; MTP layers stand on the last stage and always own an indexer."""
    first, end = stage
    leaders = launch.plan.owners[first:end] if scenario.elided else (True,) * (end - first)
    return Layers(leaders + (True,) * drafts_on(launch, stage), launch.plan.has_indexer)


def drafts_on(launch: Launch, stage: tuple[int, int]) -> int:
    """Draft layers of a stage: all of them on the last one."""
    return launch.loaded.spec.deployment.draft_layers if stage == launch.plan.stages[-1] else 0


def indexers_held(release: Release, plan: LayerPlan, stage: tuple[int, int]) -> int:
    """Indexer modules on a stage: since #46600 only those of owner layers."""
    if not plan.has_indexer:
        return 0
    return plan.owners_in(*stage) if release.has("elision_of_weights") else plan.indexed_in(*stage)


def indexers_priced(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> int:
    """Indexers of a scenario: what the build holds where it runs it, else what the scenario's name says."""
    if not launch.plan.has_indexer:
        return 0
    if applies(launch, scenario):
        return indexers_held(launch.release, launch.plan, stage)
    return launch.plan.owners_in(*stage) if scenario.elided else launch.plan.indexed_in(*stage)
