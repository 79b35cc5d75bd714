"""Blocks from the budget, the numbers that vLLM prints for them, and everything that is allocated."""

from __future__ import annotations

from hsplan.engines.base import Blocks, Budget, Buffer, Launch, Layout, Line, Pools, Refusal, Scenario, Step
from hsplan.engines.vllm.memory import graphs_taken, rejection_bytes
from hsplan.engines.vllm.pages import plain_page
from hsplan.engines.vllm.printed import blocks_of, printed, shards_of_tokens
from hsplan.engines.vllm.scenarios import layers_of
from hsplan.units import gib

PRINTED = "vLLM {}: get_kv_cache_capacity"


def pools_of(launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
    """The pool without HiSparse: one group, a block holds the pages of all layers of a stage."""
    deployment, release, row = launch.loaded.spec.deployment, launch.release, layout.row
    layers = layers_of(launch, scenario, layout.stage)
    page, index_row = row.page_tokens, launch.extra.index_row
    block_bytes = plain_page(row, index_row, layers)
    shards = shards_of_tokens(release, deployment.dcp, deployment.pcp)
    length = launch.context_len

    def num_blocks(kv_bytes: int) -> int:
        return max(kv_bytes, 0) // block_bytes

    found = num_blocks(budget.kv_bytes.best)
    best = printed(release, found, length, page, shards)
    usable = usable_blocks(launch, found)
    drafts = deployment.draft_layers if layout.token_rates.stored_draft else 0

    def buffers() -> tuple[Buffer, ...]:
        held = (
            Buffer(line="KV rows", shape=(found, page, row.bytes), count=layers.rows - drafts),
            Buffer(line="index-K", shape=(found, page, index_row), count=layers.index - (drafts if index_row else 0)),
            Buffer(line="draft KV pool", shape=(found, page, row.bytes + index_row), count=drafts),
        )
        return tuple(buffer for buffer in held if buffer.bytes)

    return Pools(
        tokens=budget.kv_bytes.map(lambda b: printed(release, num_blocks(b), length, page, shards).tokens),
        logical_tokens=found * page * shards,
        request_cap=launch.extra.scheduler.max_num_seqs,
        max_request_tokens=min(length, usable * page * shards),
        page_tokens=page * shards,
        blocks=Blocks(bytes_per_block=block_bytes, num_blocks=found, max_concurrency=best.concurrency),
        refusal=_refusal(launch, found, block_bytes, page, shards),
        lines=(*_pool_lines(layout, found), *after_pool(launch)),
        buffers=buffers,
        explain=lambda: _steps(launch, budget, block_bytes, found, best.tokens, best.concurrency, page, shards),
    )


def usable_blocks(launch: Launch, num_blocks: int) -> int:
    """Blocks of which the start-up check makes requests: block 0 is the null block."""
    return max(num_blocks - int(launch.release.has("null_block_reserved")), 0)


def _refusal(launch: Launch, num_blocks: int, block_bytes: int, page: int, shards: int) -> Refusal | None:
    """`_check_enough_kv_cache_memory`: a request of max_model_len must fit."""
    needed, usable = blocks_of(launch.context_len, page, shards), usable_blocks(launch, num_blocks)
    if needed <= usable:
        return None
    return too_long(launch, needed * block_bytes, usable * block_bytes, min(usable * page * shards, launch.context_len))


def too_long(launch: Launch, needed: int, there: int, longest: int) -> Refusal:
    """The engine's own message; `longest`, its estimated maximum length, is a cure if it holds workload.context."""
    why = (
        f"vLLM does not start: one request of max_model_len {launch.context_len:,} needs {gib(needed)}, "
        f"{gib(there)} are there"
    )
    enough = longest >= launch.loaded.spec.workload.context
    return Refusal(why, f"max_model_len {longest:,}" if enough else "a shorter context, or a higher mem_fraction")


def after_pool(launch: Launch) -> tuple[Line, ...]:
    """What is allocated after the pool and was not measured before it."""
    deployment = launch.loaded.spec.deployment
    lines = []
    size = rejection_bytes(launch, launch.extra.scheduler)
    if size:
        formula = "max_num_seqs × (1 + drafted tokens) × vocabulary × 4 B"
        lines.append(Line(name="rejection sampler logits", bytes=size, formula=formula, evidence="derived"))
    if deployment.cuda_graph_max_bs != 0 and not launch.release.has("graphs_estimated"):
        formula = "taken by GLM-5.1 TP8; the budget leaves nothing out for them"
        lines.append(Line(name="CUDA graphs", bytes=graphs_taken(deployment), formula=formula, evidence="engine_log"))
    return tuple(lines)


def _pool_lines(layout: Layout, num_blocks: int) -> list[Line]:
    page, rates = layout.row.page_tokens, layout.token_rates
    parts = (("KV rows", rates.stored_kv), ("index-K", rates.stored_index), ("draft KV pool", rates.stored_draft))
    return [
        Line(
            name=name,
            bytes=num_blocks * page * rate,
            formula=f"{num_blocks:,} blocks × {page} tokens × {rate:,} B",
            evidence="engine_code",
        )
        for name, rate in parts
        if rate
    ]


def _steps(
    launch: Launch,
    budget: Budget,
    block_bytes: int,
    num_blocks: int,
    tokens: int,
    concurrency: float,
    page: int,
    shards: int,
) -> tuple[Step, ...]:
    name, length = launch.release.name, launch.context_len
    blocks = f"{budget.kv_bytes.best:,} B // {block_bytes:,} B a block = {num_blocks:,}"
    if launch.release.has("tokens_by_concurrency"):
        each = blocks_of(length, page, shards)
        size = f"int({num_blocks:,} / {each:,} blocks a request × {length:,}) = {tokens:,}"
    else:
        size = f"{num_blocks:,} × {page} tokens × {shards} ranks = {tokens:,}"
    return (
        Step("blocks", blocks, f"vLLM {name}: get_kv_cache_config_from_groups, the least of all stages"),
        Step("GPU KV cache size, tokens", size, PRINTED.format(name)),
        Step(f"maximum concurrency for {length:,} tokens", f"{concurrency:.2f}x", PRINTED.format(name)),
    )
