"""vLLM's answers to the questions of `hsplan.engines.base.Engine`."""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Budget, Flag, Launch, Layout, Pools, Row, Scenario, Step
from hsplan.engines.loading import RankWeights, Shards, weights_of_rank
from hsplan.engines.vllm.budget import budget_of
from hsplan.engines.vllm.caches import cache_of, kind_of
from hsplan.engines.vllm.flags import flags_of
from hsplan.engines.vllm.groups import BlockPool, rates_of
from hsplan.engines.vllm.hisparse import hot_rows
from hsplan.engines.vllm.launch import (
    Scheduler,
    check_deployment,
    max_model_len,
    ranks_of,
    scheduler_of,
    stage_sizes,
)
from hsplan.engines.vllm.memory import visible_bytes
from hsplan.engines.vllm.offloaded import offloaded_pools, offloaded_rates
from hsplan.engines.vllm.pools import pools_of
from hsplan.engines.vllm.releases import release_of
from hsplan.engines.vllm.rows import takes_dcp
from hsplan.engines.vllm.scenarios import applies, indexers_held, launched_scenario
from hsplan.engines.vllm.shards import shards_of, with_ropes
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import LayerPlan, Model, layer_plan
from hsplan.hardware import Gpu, gpu_named
from hsplan.spec import Deployment, Loaded

UTILIZATION = (0.90, 0.92)  # gpu_memory_utilization when it is not given, before 0.20.0 and since


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's own answers; `weights` of each stage, `hot_rows` and `no_offload` of the offload scenarios."""

    row: Row
    scheduler: Scheduler
    utilization: float
    world: int
    weights: tuple[RankWeights | str, ...]
    hot_rows: int | Problem
    no_offload: str | None
    as_launched: Scenario


class VLLM:
    """The engine; stateless, one instance serves all plans."""

    name = "vllm"

    def resolve(self, loaded: Loaded, model: Model) -> Launch:
        """Release, ranks, stages, weights; raises InputError or UnsupportedError."""
        release = release_of(loaded)
        deployment = loaded.spec.deployment
        gpu = gpu_named(deployment.gpu, loaded.where("deployment.gpu"))
        ranks = ranks_of(loaded)
        notes = check_deployment(loaded, model, gpu, ranks)
        cache = cache_of(loaded, model)
        notes += cache.check(loaded, model, release)
        plan = layer_plan(model, release.schedule, stage_sizes, loaded)
        length, length_notes = max_model_len(loaded, model)
        row = cache.row(model, gpu, release, deployment, ranks.tp)
        if isinstance(row, str):
            what = f"vLLM {release.name} refuses this deployment: {row}"
            chosen = (key for key in ("page_size", "attention_backend") if getattr(deployment, key) != "auto")
            where = loaded.where(f"deployment.{next(chosen, 'gpu')}")
            raise UnsupportedError(Problem(where=where, what=what))
        if plan.has_indexer and deployment.dcp > 1 and not takes_dcp(row, release):
            notes.append(f"vLLM {release.name} as published does not run {row.attention_backend} with DCP")
        no_offload = cache.no_offload(model, release, deployment, row)
        scheduler = scheduler_of(deployment, gpu, release, length)
        held = tuple(indexers_held(release, plan, stage) for stage in plan.stages)
        weights = _weights(loaded, model, plan, gpu, shards_of(deployment, ranks, model, release), held)
        utilization = _utilization(deployment, new=release.has("utilization_092"))
        return Launch(
            loaded=loaded,
            model=model,
            plan=plan,
            gpu=gpu,
            release=release,
            tp=ranks.tp,
            ranks_per_node=ranks.per_node,
            data_parallel=deployment.dp,
            context_len=length,
            notes=(*release.notes, *model.notes, *notes, *length_notes),
            not_modelled=_not_modelled(loaded, weights),
            can_offload=no_offload is None,
            fraction=utilization,
            fraction_of=visible_bytes(gpu),
            extra=Extra(
                row=row,
                scheduler=scheduler,
                utilization=utilization,
                world=ranks.moe * deployment.pp,
                weights=weights,
                hot_rows=hot_rows(loaded, model, gpu, release, scheduler),
                no_offload=no_offload,
                as_launched=launched_scenario(release, plan, offload=loaded.spec.offload is not None),
            ),
        )

    def as_launched(self, launch: Launch) -> Scenario:
        """The scenario that the given flags start."""
        extra: Extra = launch.extra
        return extra.as_launched

    def applies(self, launch: Launch, scenario: Scenario) -> bool:
        """Whether the build runs the scenario for some choice of the offload flags."""
        return applies(launch, scenario)

    def layout(self, launch: Launch, scenario: Scenario) -> Layout | str:
        """Row and rates of the stage that has the fewest blocks, or the reason why it is not available."""
        if scenario.offload:
            reason = _offload_refused(launch, launched=scenario == self.as_launched(launch))
            if reason is not None:
                return reason
        stage = _binding_stage(launch, scenario)
        pool = _pool(launch, scenario, stage)
        return Layout(
            row=launch.extra.row,
            rates=offloaded_rates(launch, scenario, stage) if scenario.offload else rates_of(pool),
            stage=stage,
            index_layers=pool.index_layers,
            explain=lambda: _page_steps(launch, pool),
        )

    def budget(self, launch: Launch, scenario: Scenario) -> Budget:
        """Bytes for the cache on the stage that has the fewest blocks."""
        return budget_of(launch, scenario, _binding_stage(launch, scenario))

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Blocks and everything that is allocated for them."""
        if scenario.offload:
            return offloaded_pools(launch, scenario, layout, budget)
        return pools_of(launch, budget, _pool(launch, scenario, layout.stage))

    def flags(self, launch: Launch, pools: Pools) -> tuple[Flag, ...]:
        """Launch flags that offload is about."""
        return flags_of(launch, pools)


def _pool(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:
    return kind_of(launch.model).pool(launch, scenario, stage)


def _page_steps(launch: Launch, pool: BlockPool) -> tuple[Step, ...]:
    """The pages of each group with their numbers."""
    source = f"vLLM {launch.release.name}: get_kv_cache_groups"
    steps = []
    for group in pool.groups:
        pages = " + ".join(f"{part.page_bytes:,} B × {part.layers} {part.name}" for part in group.parts)
        kept = "" if group.window is None else f", window {group.window}"
        rows = group.block_tokens
        held = f"a ring of {rows} rows a request" if group.ring else f"blocks of {rows} tokens"
        name = f"page of all layers, {held}{kept}"
        steps.append(Step(name, f"{pages} = {group.page_bytes:,} B", source))
    return tuple(steps)


def _utilization(deployment: Deployment, *, new: bool) -> float:
    return UTILIZATION[new] if deployment.mem_fraction == "auto" else deployment.mem_fraction


def _weights(
    loaded: Loaded, model: Model, plan: LayerPlan, gpu: Gpu, shards: Shards, held: tuple[int, ...]
) -> tuple[RankWeights | str, ...]:
    """Weights of a rank of each stage; the indexer's wk is always fused with weights_proj, in bf16."""
    fused = msgspec.structs.replace(model, indexer_fused=plan.has_indexer)
    return tuple(
        weights_of_rank(
            loaded,
            with_ropes(fused, stage, drafts=stage == plan.stages[-1]),
            msgspec.structs.replace(plan, stages=(stage,)),
            gpu,
            shards,
            held_indexers=indexers,
        )
        for stage, indexers in zip(plan.stages, held, strict=True)
    )


def _offload_refused(launch: Launch, *, launched: bool) -> str | None:
    """Why the offload scenarios are not available; raises what the engine raises when it is launched with offload."""
    extra: Extra = launch.extra
    if extra.no_offload is not None:
        if launched:
            what = f"vLLM {launch.release.name} refuses these flags: {extra.no_offload}"
            raise UnsupportedError(Problem(where=launch.loaded.where("offload"), what=what))
        return extra.no_offload
    if isinstance(extra.hot_rows, Problem):
        if launched:
            raise InputError(extra.hot_rows)
        return extra.hot_rows.what
    return None


def _binding_stage(launch: Launch, scenario: Scenario) -> tuple[int, int]:
    """The pipeline stage with the fewest blocks: the engine gives every rank as many as the poorest has."""
    stages = launch.plan.stages
    if len(stages) == 1:
        return stages[0]

    def blocks(stage: tuple[int, int]) -> int:
        return budget_of(launch, scenario, stage).kv_bytes.best // _pool(launch, scenario, stage).block_bytes

    return min(stages, key=blocks)


def _not_modelled(loaded: Loaded, weights: tuple[RankWeights | str, ...]) -> tuple[str, ...]:
    deployment = loaded.spec.deployment
    found = []
    if deployment.kv_budget != "auto" and isinstance(weights[0], str):
        found.append(f"weights ({weights[0]}): all scenarios have the same budget")
    if deployment.dp > 1:
        found.append("buffers of all-to-all libraries, beyond the range of the MoE inputs of other replicas")
    if deployment.nodes > 1:
        found.append("buffers of multi-node communication, beyond the range of communication")
    return tuple(found)
