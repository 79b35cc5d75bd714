"""SGLang's answers to the questions of `hsplan.engines.base.Engine`."""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Budget, Flag, Interval, Launch, Layout, Pools, Row, Scenario
from hsplan.engines.loading import RankWeights, weights_of_rank
from hsplan.engines.ranks import longest_request
from hsplan.engines.sglang.budget import budget_of
from hsplan.engines.sglang.caches import CACHES
from hsplan.engines.sglang.flags import flags_of
from hsplan.engines.sglang.fraction import MemorySettings, memory_settings
from hsplan.engines.sglang.launch import check_deployment, common_notes, ranks_of, stage_sizes
from hsplan.engines.sglang.memory import before_weights
from hsplan.engines.sglang.releases import release_of
from hsplan.engines.sglang.rows import runs_on_aiter
from hsplan.engines.sglang.scenarios import applies, indexers_held, launched_scenario, row_of
from hsplan.engines.sglang.shards import shards_of
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model, layer_plan
from hsplan.hardware import gpu_named
from hsplan.spec import Loaded


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's own answers: cache rows, memory settings, weights or the reason why they are unknown."""

    rows: tuple[Row | str, Row | str]  # without and with offload
    memory: MemorySettings
    attention_tp: int
    weights: tuple[RankWeights | str, ...]  # of a rank of each stage
    before_weights: Interval
    as_launched: Scenario


class SGLang:
    """The engine; stateless, one instance serves all plans."""

    name = "sglang"

    def resolve(self, loaded: Loaded, model: Model) -> Launch:
        """Release, ranks, stages, weights; raises InputError or UnsupportedError."""
        release = release_of(loaded)
        deployment = loaded.spec.deployment
        gpu = gpu_named(deployment.gpu, loaded.where("deployment.gpu"))
        ranks = ranks_of(loaded)
        check_deployment(loaded, model)
        cache = CACHES[model.family]
        notes = [*cache.check(loaded, model, gpu, release, ranks), *common_notes(deployment, model, gpu, ranks)]
        plan = layer_plan(model, release.schedule, stage_sizes, loaded)
        context_len, context_notes = longest_request(
            loaded, model, stand_in="request tables are sized for workload.context"
        )
        on_aiter = context_len > 8192 and runs_on_aiter(model, gpu, deployment, ranks.tp)
        without, with_offload = (
            cache.row(model, gpu, release, deployment, ranks, offload=offload) for offload in (False, True)
        )
        shards = shards_of(loaded, model, gpu, release, ranks)

        def graph_mib(chunk_tokens: int) -> int:
            return cache.prefill_graph_mib(model, release, deployment, chunk_tokens)

        weights = tuple(
            weights_of_rank(
                loaded,
                model,
                msgspec.structs.replace(plan, stages=(stage,)),
                gpu,
                shards,
                held_indexers=indexers_held(release, plan, stage),
            )
            for stage in plan.stages
        )
        memory = memory_settings(model, gpu, release, deployment, tp=ranks.tp, aiter_mla=on_aiter, graph_mib=graph_mib)
        free = before_weights(gpu, deployment, ranks)
        return Launch(
            loaded=loaded,
            model=model,
            plan=plan,
            gpu=gpu,
            release=release,
            tp=ranks.tp,
            ranks_per_node=ranks.per_node,
            data_parallel=deployment.dp_attention,
            cap_ranks=deployment.dp_attention,
            context_len=context_len,
            notes=(*release.notes, *model.notes, *notes, *context_notes),
            not_modelled=_not_modelled(loaded, weights[0]),
            can_offload=not isinstance(with_offload, str),
            fraction=memory.fraction,
            fraction_of=free,
            extra=Extra(
                rows=(without, with_offload),
                memory=memory,
                attention_tp=ranks.attention_tp,
                weights=weights,
                before_weights=free,
                as_launched=launched_scenario(release, deployment, plan, offload=loaded.spec.offload is not None),
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
        """Row and rates with the flags of the scenario, or the reason why it is not available."""
        row = row_of(launch, scenario)
        if isinstance(row, str):
            if scenario == self.as_launched(launch):
                what = f"SGLang {launch.release.name} refuses these flags: {row}"
                key = "offload" if scenario.offload else "deployment.attention_backend"
                raise UnsupportedError(Problem(where=launch.loaded.where(key), what=what))
            return row
        found = CACHES[launch.model.family].layout(launch, scenario, row)
        if isinstance(found, Problem):
            if scenario == self.as_launched(launch):
                raise InputError(found)
            return found.what
        return found

    def budget(self, launch: Launch, scenario: Scenario) -> Budget:
        """Bytes for the cache, by the engine's own rule or as given."""
        return budget_of(launch, scenario)

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens and everything that is allocated for them."""
        return CACHES[launch.model.family].pools(launch, scenario, layout, budget)

    def flags(self, launch: Launch, pools: Pools) -> tuple[Flag, ...]:
        """Launch flags that offload is about."""
        return flags_of(launch, pools)


def _not_modelled(loaded: Loaded, weights: RankWeights | str) -> tuple[str, ...]:
    deployment = loaded.spec.deployment
    found = []
    if deployment.kv_budget != "auto" and isinstance(weights, str):
        found.append(f"weights ({weights}): all scenarios have the same budget")
    if deployment.hierarchical_cache:
        found.append("HiCache host pools: they hold history and do not raise the capacity")
    if deployment.nodes > 1 or deployment.moe_a2a_backend != "none":
        found.append("buffers of all-to-all and multi-node communication, beyond a wider range of free memory")
    return tuple(found)
