"""The pools under HiSparse: indexer, hot and resident groups on the GPU, the rows of all tokens on the host."""

from __future__ import annotations

from hsplan.engines.base import Blocks, Budget, Buffer, Launch, Layout, Line, Pools, Rates, Refusal, Scenario, Step
from hsplan.engines.loads import swap_in_of
from hsplan.engines.vllm.budget import table_buffers
from hsplan.engines.vllm.hisparse import HOST_SHARE, SPARE_HOST_BLOCKS, HostPool, host_pool
from hsplan.engines.vllm.late import after_pool
from hsplan.engines.vllm.pages import Packing, packing
from hsplan.engines.vllm.pools import too_long, usable_blocks
from hsplan.engines.vllm.printed import Demand, demand, gpu_concurrency, gpu_requests, steady_state
from hsplan.engines.vllm.rows import index_bytes
from hsplan.engines.vllm.scenarios import drafts_on, layers_of
from hsplan.units import GIB, ceil_div, gib

POOL, HOST = "index-K, hot and resident rows", "host KV pool"


def offloaded_pools(launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
    """GPU and host pool of a layout that HiSparse takes."""
    row, length = layout.row, launch.context_len
    layers = layers_of(launch, scenario, layout.stage)
    packed = packing(row.page_tokens, row.bytes, index_bytes(launch.model, launch.loaded.spec.deployment), layers)
    need, context = (_demand(launch, packed, row.page_tokens, n) for n in (length, launch.loaded.spec.workload.context))
    num_blocks = max(budget.kv_bytes.best, 0) // packed.block
    host_page = row.page_tokens * row.bytes * layers.rows
    host = host_pool(launch, host_page, need, context, num_blocks)

    def tokens(kv_bytes: int) -> int:
        blocks = max(kv_bytes, 0) // packed.block
        return steady_state(blocks, host_pool(launch, host_page, need, context, blocks).blocks, need, length).tokens

    best = steady_state(num_blocks, host.blocks, need, length)
    requests = gpu_requests(num_blocks, context)
    loads = swap_in_of(launch, layout, slots=launch.extra.hot_rows, steps=launch.extra.scheduler.decode_query_len)
    return Pools(
        tokens=budget.kv_bytes.map(tokens),
        logical_tokens=best.tokens,
        request_cap=launch.extra.scheduler.max_num_seqs,
        max_request_tokens=min(length, _longest(launch, packed, row.page_tokens, num_blocks)),
        page_tokens=row.page_tokens,
        host_tokens=host.blocks * row.page_tokens,
        host_bytes=host.bytes,
        gpu_requests=requests,
        host_sharers=launch.tp if host.shared else 1,
        host_is_sized=True,
        host_share=HOST_SHARE,
        swap_in=None if isinstance(loads, str) else loads,
        not_modelled=(loads,) if isinstance(loads, str) else (),
        blocks=Blocks(
            bytes_per_block=packed.block,
            num_blocks=num_blocks,
            steady_state_concurrency=best.concurrency,
            host_num_blocks=host.blocks,
            host_block_stride=host.stride,
            shared_host_pool=host.shared,
            device_groups=packed.device_groups,
            hot_groups=len(packed.hot),
        ),
        refusal=_refusal(launch, packed, row.page_tokens, num_blocks, host, need),
        lines=(_gpu_line(packed, num_blocks), _host_line(host), *after_pool(launch)),
        buffers=lambda: _buffers(launch, scenario, packed, num_blocks, host),
        explain=lambda: _steps(launch, budget, packed, num_blocks, host, need, context, requests, best.tokens),
        notes=_notes(launch, host),
    )


def offloaded_rates(launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> Rates:
    """Only index-K lies on the GPU for every token, and no rate divides the budget."""
    size = index_bytes(launch.model, launch.loaded.spec.deployment)
    layers, drafts = layers_of(launch, scenario, stage), drafts_on(launch, stage)
    index, draft = size * (layers.index - drafts), size * drafts
    return Rates(charged=0, draft=draft, stored_kv=0, stored_index=index, stored_draft=draft)


def _demand(launch: Launch, packed: Packing, page_tokens: int, tokens: int) -> Demand:
    return demand(packed, tokens, page_tokens, launch.extra.hot_rows, launch.extra.scheduler.in_flight_tokens)


def _longest(launch: Launch, packed: Packing, page_tokens: int, num_blocks: int) -> int:
    """The longest request that is still admitted, in whole pages; at most max_model_len."""
    low, high = 0, ceil_div(launch.context_len, page_tokens)
    usable = usable_blocks(launch, num_blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if _demand(launch, packed, page_tokens, middle * page_tokens).admission <= usable:
            low = middle
        else:
            high = middle - 1
    return low * page_tokens


def _refusal(
    launch: Launch, packed: Packing, page_tokens: int, num_blocks: int, host: HostPool, need: Demand
) -> Refusal | None:
    """A request of max_model_len must be admitted, and must fit the host pool."""
    usable, least = usable_blocks(launch, num_blocks), need.host + SPARE_HOST_BLOCKS
    if need.admission > usable:
        longest = min(_longest(launch, packed, page_tokens, num_blocks), launch.context_len)
        return too_long(launch, need.admission * packed.block, usable * packed.block, longest)
    if host.blocks < (least if launch.release.has("hisparse_checks") else 1):
        size = ceil_div(least * host.stride, GIB)
        why = f"vLLM does not start: max_model_len {launch.context_len:,} needs {least:,} host blocks"
        return Refusal(f"{why}, host_pool has {host.blocks:,}", f"host_pool {size}GiB")
    return None


def _gpu_line(packed: Packing, num_blocks: int) -> Line:
    formula = f"{num_blocks:,} blocks × {packed.block:,} B, shared by {packed.device_groups} groups"
    return Line(name=POOL, bytes=num_blocks * packed.block, formula=formula, evidence="engine_code")


def _host_line(host: HostPool) -> Line:
    copies = "one mmap of the replica's ranks" if host.shared else "a copy on every rank"
    formula = f"{host.blocks:,} blocks × {host.stride:,} B, pinned, {copies}"
    return Line(name=HOST, bytes=host.bytes, place="host", formula=formula, evidence="engine_code")


def _buffers(
    launch: Launch, scenario: Scenario, packed: Packing, num_blocks: int, host: HostPool
) -> tuple[Buffer, ...]:
    return (
        *table_buffers(launch, scenario),
        Buffer(line=POOL, shape=(num_blocks, packed.block)),
        Buffer(line=HOST, shape=(host.blocks, host.stride), place="host"),
    )


def _notes(launch: Launch, host: HostPool) -> tuple[str, ...]:
    found = []
    if not host.given:
        asked = "the least that does not limit, as far as the node's memory goes"
        found.append(f"vLLM has no default for host_pool_gib: priced with {gib(host.bytes, 0)}, {asked}")
    if launch.extra.hot_rows % launch.extra.row.page_tokens:
        found.append(f"a hot buffer of {launch.extra.hot_rows} rows is rounded up to whole pages")
    return tuple(found)


def _steps(
    launch: Launch,
    budget: Budget,
    packed: Packing,
    num_blocks: int,
    host: HostPool,
    need: Demand,
    context: Demand,
    requests: int,
    tokens: int,
) -> tuple[Step, ...]:
    source, length = f"vLLM {launch.release.name}: hisparse/layout.py", launch.context_len
    on_gpu = gpu_concurrency(num_blocks, need)
    logged = min(num_blocks / need.admission, host.blocks / need.host)
    return (
        Step(
            "hot groups, layers in each",
            f"{', '.join(map(str, packed.hot))}: as many as fit {packed.index_page:,} B",
            source,
        ),
        Step("blocks", f"{budget.kv_bytes.best:,} B // {packed.block:,} B a block = {num_blocks:,}", source),
        Step("host blocks", f"pool // {host.stride:,} B = {host.blocks:,}", source),
        Step(
            f"steady-state concurrency for {length:,} tokens",
            f"min(1 + ({num_blocks:,} − {need.admission:,}) / {need.steady:,} = {on_gpu:.2f}, "
            f"{host.blocks:,} / {need.host:,}), {tokens:,} tokens",
            f"{source}, get_hisparse_steady_state_concurrency",
        ),
        Step(
            "GPU + host KV cache size, as logged",
            f"min({num_blocks:,} / {need.admission:,}, {host.blocks:,} / {need.host:,}) × {length:,} = "
            f"{int(logged * length):,} tokens: every request in admission",
            f"vLLM {launch.release.name}: get_kv_cache_capacity",
        ),
        Step(
            "requests by the GPU pool",
            f"1 + ({num_blocks:,} − {context.admission:,}) // {context.steady:,} = {requests:,}",
            "admission of one request, all others reading from host memory",
        ),
    )
