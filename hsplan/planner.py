"""
plan(): from a spec to the capacity of a deployment, the whole flow on one screen.

    spec → model and its layers → the engine's answers → per scenario: row and cell → budget → pools → limits
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hsplan.advice import Retry
from hsplan.calibration import Calibration, Reference, calibrated, read_calibration, reference_of
from hsplan.capacity import Capacity, capacity_of, host_range_note
from hsplan.engines import SCENARIOS, Engine, Launch, Scenario, engine_of
from hsplan.errors import HsplanError, InputError, Problem
from hsplan.families import LayerPlan, Model, read_model
from hsplan.fitted import differences
from hsplan.result import Plan, ScenarioPlan
from hsplan.spec import Loaded, changed, load_spec
from hsplan.steptime import step_profile
from hsplan.units import ceil_div

CLIPPED_OUTPUT = 4096  # of a request, that SGLang admits it for (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)
SAME_CACHE = "the model has no skip-TopK layers: the same as without elision"
SHARED_KEYS = "layers that reuse top-k have no index key of their own in this model: the same as without elision"


def plan(
    spec: str | os.PathLike[str] | Mapping[str, Any],
    *,
    calibration: str | os.PathLike[str] | Calibration | None = None,
    **overrides: Any,
) -> Plan:
    """
    Price a deployment in the four scenarios, as the engine release itself would.

    `spec` is a path (YAML, config.json or a model folder), the name of a shipped spec, or a mapping; `overrides` are
    leaf keys of the spec (`tp=4`, `kv_budget="134.127GiB"`, `engine="sglang@0.5.17"`) or whole sections. A mapping
    is read, never changed. `calibration` is what `hsplan calibrate` made of a server's log, or the file that holds it:
    the budget then is that of the same server with what the spec changes.

    Raises InputError (exit code 2) for wrong input and UnsupportedError (3) for models, releases and combinations
    that hsplan does not know.
    """
    loaded = load_spec(spec, overrides)
    if isinstance(calibration, str | os.PathLike):
        calibration = read_calibration(Path(calibration))
    elif not isinstance(calibration, Calibration | None):
        what = f"a calibration is what `hsplan calibrate` made or its file, not {type(calibration).__name__}"
        raise InputError(Problem(where="calibration", what=what, remedy="give the path of the file"))
    return _plan(loaded, read_model(loaded), calibration)


def replan(plan: Plan, **values: Any) -> Plan:
    """The same deployment with other leaf values of its spec; raises as `plan` does."""
    return _plan(changed(plan.launch.loaded, values), plan.launch.model, None)


def _plan(loaded: Loaded, model: Model, calibration: Calibration | None) -> Plan:
    engine = engine_of(loaded)
    launch = engine.resolve(loaded, model)
    reference = None if calibration is None else reference_of(calibration, engine, loaded, model)
    as_launched = engine.as_launched(launch).name
    scenarios = {scenario.name: _price(engine, launch, scenario, reference) for scenario in SCENARIOS}
    return Plan(
        name=loaded.title or model.architecture,
        engine=engine.name,
        launch=launch,
        as_launched=as_launched,
        scenarios=scenarios,
        notes=(
            *_notes(loaded, launch),
            *_calibrated_notes(calibration, launch),
            *link_notes(scenarios),
            *_launched_notes(scenarios[as_launched]),
            *_host_notes(launch, scenarios[as_launched]),
            *_prompt_notes(launch, scenarios[as_launched]),
            *_bf16_notes(launch, scenarios[as_launched]),
        ),
        not_modelled=(*launch.not_modelled, *_not_loaded(scenarios)),
    )


def _price(engine: Engine, launch: Launch, scenario: Scenario, reference: Reference | None) -> ScenarioPlan:
    applies = engine.applies(launch, scenario)
    layout = engine.layout(launch, scenario)
    if isinstance(layout, str):
        return ScenarioPlan(scenario=scenario, engine_applies=False, reason=layout)
    budget = engine.budget(launch, scenario)
    if reference is not None:
        budget = calibrated(reference, launch, budget)
    pools = engine.pools(launch, scenario, layout, budget)
    capacity = capacity_of(launch, scenario, budget, pools, _retry(engine, launch, scenario, reference))
    return ScenarioPlan(
        scenario=scenario,
        engine_applies=applies,
        reason=_same_cache(launch.plan) if scenario.elided else "",
        layout=layout,
        budget=budget,
        pools=pools,
        capacity=capacity,
    )


def _same_cache(plan: LayerPlan) -> str:
    """Why elision changes nothing; empty when it does."""
    if plan.elidable:
        return ""
    return SHARED_KEYS if plan.skip_layers else SAME_CACHE


def _retry(engine: Engine, launch: Launch, scenario: Scenario, reference: Reference | None) -> Retry:
    def retry(**values: Any) -> Capacity | None:
        try:
            other = engine.resolve(changed(launch.loaded, values), launch.model)
            return _price(engine, other, scenario, reference).capacity
        except HsplanError:
            return None

    return retry


def _launched_notes(entry: ScenarioPlan) -> tuple[str, ...]:
    return tuple(note for part in (entry.budget, entry.pools) if part is not None for note in part.notes)


def _host_notes(launch: Launch, entry: ScenarioPlan) -> Iterator[str]:
    """What of host memory is uncertain: whether it holds the most tokens, and whether it feeds all GPUs at once."""
    pools = entry.pools
    if pools is None:
        return
    if note := host_range_note(launch, pools):
        yield note
    loads = pools.swap_in
    if loads is not None and loads.gpus > 1 and loads.host_gb_s is None:
        yield (
            f"host memory is taken to feed the links of all {loads.gpus} GPUs of a node at once; "
            "--host-gb-s says what it gives"
        )


def _prompt_notes(launch: Launch, entry: ScenarioPlan) -> Iterator[str]:
    """How long prompts may be for so many requests, where each is read into the slots that hot buffers lie in."""
    pools, capacity, context = entry.pools, entry.capacity, launch.loaded.spec.workload.context
    if pools is None or capacity is None or not pools.prompt_tokens_a_slot or not pools.hot_pool_tokens:
        return
    kept, requests = pools.kept_tokens, capacity.requests
    longest = (pools.hot_pool_tokens - (requests - 1) * kept) * pools.prompt_tokens_a_slot - pools.page_tokens
    if requests and longest < context:
        spare = pools.hot_pool_tokens - ceil_div(context + pools.page_tokens, pools.prompt_tokens_a_slot)
        few = 0 if spare < 0 else 1 + spare // kept
        of_rank = " of a rank" if launch.data_parallel > 1 else ""
        yield (
            "until it is read, a prompt takes device slots for its whole length, beside the hot buffers of the others: "
            f"all {requests:,} requests{of_rank} run together where a prompt and up to {CLIPPED_OUTPUT:,} tokens of "
            f"its output are at most {max(longest, 0):,} tokens; at {context:,} tokens {few:,} do"
        )


def _bf16_notes(launch: Launch, entry: ScenarioPlan) -> tuple[str, ...]:
    """Where weights leave no room for a cache, that bf16 is what the model's silence was taken for."""
    spec, budget = launch.loaded.spec, entry.budget
    if budget is None or budget.kv_bytes.best > 0 or launch.model.quantization is not None or spec.weights != "auto":
        return ()
    return ("the model has no quantization_config: its weights are priced as bf16; --checkpoint prices another format",)


def link_notes(scenarios: Mapping[str, ScenarioPlan]) -> tuple[str, ...]:
    """What the times of loading assume of the host link, each once."""
    loads = (entry.pools.swap_in for entry in scenarios.values() if entry.pools is not None)
    return tuple(dict.fromkeys(note for found in loads if found is not None for note in found.assumptions()))


def _not_loaded(scenarios: Mapping[str, ScenarioPlan]) -> tuple[str, ...]:
    """What is not known of the pools of any scenario, each once."""
    pools = (entry.pools for entry in scenarios.values() if entry.pools is not None)
    return tuple(dict.fromkeys(what for found in pools for what in found.not_modelled))


def _calibrated_notes(calibration: Calibration | None, launch: Launch) -> Iterator[str]:
    if calibration is None:
        return
    runs = ", ".join(f"{run.fraction:g}" for run in calibration.runs)
    yield f"the budget is calibrated by the log of {len(calibration.runs)} run(s) at memory fraction {runs}"
    logged, planned = calibration.deployment.release, launch.release.name
    if logged != planned:
        yield f"the log is of release {logged}: what {planned} changes of the budget is as modelled, not as logged"


def _notes(loaded: Loaded, launch: Launch) -> list[str]:
    ignored = launch.model.ignored_fields
    return [
        *launch.notes,
        *(f"not verified against an original: {what}" for what in loaded.unverified),
        *step_notes(loaded),
        *_draft_notes(loaded),
        *([f"config fields ignored as harmless: {', '.join(ignored[:8])}"] if ignored else []),
    ]


def _draft_notes(loaded: Loaded) -> Iterator[str]:
    deployment = loaded.spec.deployment
    if deployment.num_speculative_tokens and not deployment.draft_layers:
        yield "tokens are drafted without layers of their own, as from n-grams: --draft-layers counts those of MTP"


def step_notes(loaded: Loaded) -> list[str]:
    """What the stored step profile is of, what a wished time without a step means, and what tokens/s count."""
    workload, deployment = loaded.spec.workload, loaded.spec.deployment
    found = []
    if workload.step is None and workload.tpot_ms is not None:
        found.append(
            f"tpot_ms {workload.tpot_ms:g} limits the loading alone: without --step-ms the rest of a step counts as 0"
        )
    if isinstance(workload.step_ms, str):
        profile = step_profile(workload.step_ms)
        other = "; ".join(differences(loaded, profile))
        found.append(f"step_ms {profile.profile}: {profile.summary}{other and f'; not of this deployment: {other}'}")
    if workload.step is not None and (deployment.num_speculative_tokens or deployment.draft_layers):
        found.append("tokens/s and tpot_ms count one token of a request a step: no draft accepted")
    return found
