"""MLA and DSA: tokens from the budget, the tensors allocated for them, and the request tables beside them."""

from __future__ import annotations

from hsplan.engines.base import Budget, Buffer, Launch, Layout, Line, Pools, Rates, Scenario, Step
from hsplan.engines.sglang.buffers import offload_buffers, pool_buffers, request_buffers
from hsplan.engines.sglang.cell import INDEX_BYTES
from hsplan.engines.sglang.hisparse import (
    HOST_RESERVE_BYTES,
    Offloaded,
    loads_of,
    longest_held,
    offload_of,
    speculation_refusal,
)
from hsplan.engines.sglang.memory import after_pool_lines, workspace_bytes
from hsplan.engines.sglang.requests import Requests, requests_of
from hsplan.spec import Offload
from hsplan.units import floor_to


def ratio_of(launch: Launch, scenario: Scenario) -> float:
    """Logical tokens for each device token: host_to_device_ratio under offload, else 1."""
    return (launch.loaded.spec.offload or Offload()).host_to_device_ratio if scenario.offload else 1


def tokens_of(budget_bytes: int, rates: Rates, page: int, max_total_tokens: int | None) -> int:
    """Budget // cell in whole pages, never above --max-total-tokens."""
    tokens = floor_to(max(budget_bytes, 0) // rates.charged, page)
    return tokens if max_total_tokens is None else floor_to(min(tokens, max_total_tokens), page)


def pools_of(launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
    """Tokens of the budget, and every tensor and table that is then allocated."""
    row, deployment, release, rates = layout.row, launch.loaded.spec.deployment, launch.release, layout.token_rates
    tokens = budget.kv_bytes.map(lambda b: tokens_of(b, rates, row.page_tokens, deployment.max_total_tokens))
    ratio = ratio_of(launch, scenario)
    logical = int(tokens.best * ratio) * deployment.dcp
    page = row.page_tokens * deployment.dcp
    table_page = page if release.has("table_in_dcp_pages") else row.page_tokens
    requests = requests_of(
        deployment, release, tokens=tokens.best, context_len=launch.context_len, page_tokens=table_page
    )
    offloaded = offload_of(launch, layout, requests, logical, ratio) if scenario.offload else Offloaded()
    lines = (
        *_pool_lines(launch, scenario, layout, tokens.best, ratio),
        *offloaded.lines,
        *after_pool_lines(launch, requests, layout, scenario, workspace=workspace_bytes(launch, layout.row)),
    )
    slots = offloaded.hot_tokens - row.page_tokens
    loads = loads_of(launch, layout, slots=slots) if scenario.offload else None

    def buffers() -> tuple[Buffer, ...]:
        held = offload_buffers(launch, layout, requests, slots, logical) if scenario.offload else ()
        return (*pool_buffers(launch, scenario, layout, tokens.best, ratio), *held, *request_buffers(requests))

    return Pools(
        tokens=tokens,
        logical_tokens=logical,
        request_cap=requests.cap,
        max_request_tokens=longest_held(tokens.best, logical, launch.context_len, offload=scenario.offload),
        page_tokens=page,
        host_tokens=offloaded.host_tokens,
        host_bytes=offloaded.host_bytes,
        host_reserve_bytes=HOST_RESERVE_BYTES if scenario.offload else 0,
        hot_buffer_tokens=offloaded.hot_tokens,
        hot_scratch_tokens=offloaded.scratch_tokens,
        hot_pool_tokens=tokens.best if scenario.offload else 0,
        prompt_tokens_a_slot=int(deployment.disaggregation is None),
        swap_in=None if isinstance(loads, str) else loads,
        not_modelled=(loads,) if isinstance(loads, str) else (),
        refusal=speculation_refusal(launch, requests, slots) if scenario.offload else None,
        lines=lines,
        buffers=buffers,
        explain=lambda: _steps(launch, scenario, layout, budget, requests, tokens.best, logical, ratio),
        notes=offloaded.notes,
    )


def _steps(
    launch: Launch,
    scenario: Scenario,
    layout: Layout,
    budget: Budget,
    requests: Requests,
    tokens: int,
    logical: int,
    ratio: float,
) -> tuple[Step, ...]:
    name, row = launch.release.name, layout.row
    found = f"{budget.kv_bytes.best:,} B // {layout.token_rates.charged:,} B"
    capped = launch.loaded.spec.deployment.max_total_tokens
    if capped is not None:
        found = f"min({found}, max_total_tokens {capped:,})"
    return (
        Step(
            "device tokens",
            f"{found} in pages of {row.page_tokens} = {tokens:,}",
            f"SGLang {name}: config_from_budget",
        ),
        *_logical_step(scenario, tokens, logical, ratio, name),
        Step("request cap of a rank", requests.formula, f"SGLang {name}: resolve_max_num_reqs"),
    )


def _logical_step(scenario: Scenario, tokens: int, logical: int, ratio: float, name: str) -> tuple[Step, ...]:
    if not scenario.offload:
        return ()
    return (
        Step("logical tokens", f"int({tokens:,} × {ratio:g}) = {logical:,}", f"SGLang {name}: host_to_device_ratio"),
    )


def _pool_lines(launch: Launch, scenario: Scenario, layout: Layout, tokens: int, ratio: float) -> list[Line]:
    """The tensors that the engine prints as the KV cache: rows with a spare page, index-K by pages."""
    row, deployment, plan = layout.row, launch.loaded.spec.deployment, launch.plan
    page, drafts = row.page_tokens, deployment.draft_layers
    layers = layout.token_rates.stored_kv // row.bytes
    copies = deployment.dcp if plan.has_indexer and launch.release.has("dsa_dcp") else 1
    index_slots = int(tokens * ratio) * copies
    index_rows = floor_to(index_slots + page + 1, page)
    lines = [
        Line(
            name="KV rows",
            bytes=(tokens + page) * row.bytes * layers,
            formula=f"({tokens:,} + {page}) tokens × {row.bytes} B × {layers} layers",
            evidence="engine_code",
        )
    ]
    if layout.index_layers:
        lines.append(
            Line(
                name="index-K",
                bytes=index_rows * INDEX_BYTES * layout.index_layers,
                formula=f"{index_rows:,} tokens × {INDEX_BYTES} B × {layout.index_layers} layers",
                evidence="engine_code",
            )
        )
    if drafts:
        grows = scenario.offload and launch.release.has("draft_times_ratio")
        kv_rows = (int(tokens * ratio) if grows else tokens) * deployment.dcp + page * deployment.dcp
        draft_index = index_rows if plan.has_indexer else 0
        if plan.has_indexer and not scenario.offload:
            draft_index = kv_rows
        lines.append(
            Line(
                name="draft KV pool",
                bytes=(kv_rows * row.bytes + draft_index * INDEX_BYTES) * drafts,
                formula=f"{drafts} layers × ({kv_rows:,} × {row.bytes} B + {draft_index:,} × {INDEX_BYTES} B), "
                "never elided",
                evidence="engine_code",
            )
        )
    return lines
