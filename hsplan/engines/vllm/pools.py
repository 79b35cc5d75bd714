"""Blocks from the budget, the numbers that vLLM prints for them, and everything that is allocated."""

from __future__ import annotations

from hsplan.engines.base import Blocks, Budget, Buffer, Launch, Line, Pools, Refusal, Step
from hsplan.engines.vllm.groups import BlockPool, Part
from hsplan.engines.vllm.late import after_pool
from hsplan.engines.vllm.printed import Demand, Printed, gpu_concurrency, gpu_requests, printed
from hsplan.units import gib

PRINTED = "vLLM {}: get_kv_cache_capacity"


def pools_of(launch: Launch, budget: Budget, pool: BlockPool) -> Pools:
    """The pool without HiSparse."""
    release, length, flight = launch.release, launch.context_len, launch.extra.scheduler.in_flight_tokens
    each = pool.printed_blocks(length, flight)

    def num_blocks(kv_bytes: int) -> int:
        return max(kv_bytes, 0) // pool.block_bytes

    def print_of(kv_bytes: int) -> Printed:
        return printed(release, num_blocks(kv_bytes), length, each, pool.block_tokens)

    found, best = num_blocks(budget.kv_bytes.best), print_of(budget.kv_bytes.best)
    usable = _usable_bytes(launch, budget.kv_bytes.best, pool.block_bytes)
    requests = gpu_requests(found, _demand(launch, pool, launch.loaded.spec.workload.context)) if pool.slab else None
    return Pools(
        tokens=budget.kv_bytes.map(lambda b: print_of(b).tokens),
        logical_tokens=best.tokens if pool.slab else found * pool.block_tokens,
        request_cap=launch.extra.scheduler.max_num_seqs,
        max_request_tokens=pool.longest(usable, length, flight),
        page_tokens=pool.block_tokens,
        gpu_requests=requests,
        blocks=_blocks(launch, pool, found, each, best),
        refusal=_refusal(launch, pool, usable),
        lines=(*_pool_lines(pool, found), *after_pool(launch)),
        buffers=lambda: _buffers(pool, found),
        explain=lambda: _steps(launch, budget, pool, found, each, best),
    )


def usable_blocks(launch: Launch, num_blocks: int) -> int:
    """Blocks of which the start-up check makes requests: block 0 is the null block."""
    return max(num_blocks - int(launch.release.has("null_block_reserved")), 0)


def _usable_bytes(launch: Launch, kv_bytes: int, block_bytes: int) -> int:
    """The same in bytes, where blocks of the check have a size of their own."""
    return max(kv_bytes - block_bytes * int(launch.release.has("null_block_reserved")), 0)


def _demand(launch: Launch, pool: BlockPool, tokens: int) -> Demand:
    """Blocks of a request that is admitted, and of one that decodes: the windows of the tokens in flight differ."""
    scheduler = launch.extra.scheduler
    admission, rest = scheduler.in_flight_tokens, scheduler.decode_in_flight_tokens
    return Demand(pool.blocks(tokens, admission), pool.blocks(tokens, rest))


def _blocks(launch: Launch, pool: BlockPool, found: int, each: int, best: Printed) -> Blocks:
    """Where groups lie over each other: bytes of a token, and those of a request whatever its length, apart."""
    if not pool.slab:
        return Blocks(bytes_per_block=pool.block_bytes, num_blocks=found, max_concurrency=best.concurrency)
    length = launch.context_len
    return Blocks(
        bytes_per_block=pool.block_bytes,
        num_blocks=found,
        max_concurrency=best.concurrency,
        steady_state_concurrency=gpu_concurrency(found, _demand(launch, pool, length)),
        bytes_per_full_token=pool.block_bytes / pool.block_tokens,
        fixed_bytes_per_request=(each - pool.groups[0].blocks(length, 0)) * pool.block_bytes,
    )


def _refusal(launch: Launch, pool: BlockPool, usable: int) -> Refusal | None:
    """`_check_enough_kv_cache_memory`: a request of max_model_len must fit."""
    length, flight = launch.context_len, launch.extra.scheduler.in_flight_tokens
    needed = pool.blocks(length, flight) * pool.check_bytes
    if needed <= usable:
        return None
    return too_long(launch, needed, usable, pool.longest(usable, length, flight))


def too_long(launch: Launch, needed: int, there: int, longest: int) -> Refusal:
    """The engine's own message; `longest`, its estimated maximum length, is a cure if it holds workload.context."""
    why = (
        f"vLLM does not start: one request of max_model_len {launch.context_len:,} needs {gib(needed)}, "
        f"{gib(there)} are there"
    )
    enough = longest >= launch.loaded.spec.workload.context
    return Refusal(why, f"max_model_len {longest:,}" if enough else "a shorter context, or a higher mem_fraction")


def _pool_lines(pool: BlockPool, num_blocks: int) -> list[Line]:
    """A line for each part of the one group, or one for the slab."""
    if pool.slab:
        formula = f"{num_blocks:,} blocks × {pool.block_bytes:,} B, shared by {len(pool.groups)} groups"
        size = num_blocks * pool.block_bytes
        return [Line(name=pool.slab, bytes=size, formula=formula, evidence="engine_code")]
    return [
        Line(
            name=part.name,
            bytes=num_blocks * part.page_bytes * part.layers,
            formula=f"{num_blocks:,} blocks × {part.rows} tokens × {part.row_bytes * part.layers:,} B",
            evidence="engine_code",
        )
        for part in pool.groups[0].parts
    ]


def _buffers(pool: BlockPool, num_blocks: int) -> tuple[Buffer, ...]:
    """A tensor a layer; in a slab those of the largest group, and what is beside them."""
    group = max(pool.groups, key=lambda group: group.page_bytes)

    def rows(part: Part) -> tuple[Buffer, ...]:
        line, count = pool.slab or part.name, part.layers
        page = Buffer(line=line, shape=(num_blocks, part.rows, part.row_bytes), count=count)
        return page, Buffer(line=line, shape=(num_blocks, part.padding), count=count)

    held = [buffer for part in group.parts for buffer in rows(part)]
    if pool.slab:
        held.append(Buffer(line=pool.slab, shape=(num_blocks, pool.block_bytes - group.page_bytes)))
    return tuple(buffer for buffer in held if buffer.bytes)


def _steps(
    launch: Launch, budget: Budget, pool: BlockPool, num_blocks: int, each: int, best: Printed
) -> tuple[Step, ...]:
    name, length = launch.release.name, launch.context_len
    blocks = f"{budget.kv_bytes.best:,} B // {pool.block_bytes:,} B a block = {num_blocks:,}"
    if launch.release.has("tokens_by_concurrency"):
        size = f"int({num_blocks:,} / {each:,} blocks a request × {length:,}) = {best.tokens:,}"
    else:
        size = f"{num_blocks:,} × {pool.block_tokens:,} tokens = {best.tokens:,}"
    steps = (
        Step("blocks", blocks, f"vLLM {name}: get_kv_cache_config_from_groups, the least of all stages"),
        Step("GPU KV cache size, tokens", size, PRINTED.format(name)),
        Step(f"maximum concurrency for {length:,} tokens", f"{best.concurrency:.2f}x", PRINTED.format(name)),
    )
    if not pool.slab:
        return steps
    need = _demand(launch, pool, launch.loaded.spec.workload.context)
    source = "admission of one request, all others decoding"
    found = f"1 + ({num_blocks:,} − {need.admission:,}) // {need.steady:,} = {gpu_requests(num_blocks, need):,}"
    return (*steps, Step("requests by the GPU pool", found, source))
