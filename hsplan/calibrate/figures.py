"""
Every printed figure beside the plan's: a `Server` and its `Log` in, rows out.

A row knows by how much it may miss before the log is of another server than the spec.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hsplan.calibrate import pins
from hsplan.calibrate.lines import SGLANG
from hsplan.calibrate.log import Log
from hsplan.calibrate.server import Server
from hsplan.calibration import Window
from hsplan.engines import Interval
from hsplan.engines.base import exactly
from hsplan.units import GIB

GB = 10**9
ROUNDING = GIB // 100  # two figures with half a digit each
WEIGHTS_SLACK = 0.05
MEMORY_SLACK = GIB // 4  # what may come and go between the lines that print free memory
EXACT = 0
ROW_KEYS = "kv_cache_dtype, attention_backend, release, draft_layers, disaggregation, hierarchical_cache"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """
    One row: `predicted` and `logged` in bytes or counts, shown in `unit` of `scale`.

    `slack`: how far outside of `predicted` the log contradicts the spec; None: never. `keys` of the spec decide it, and
    the memory fraction where `of_fraction` is true.
    """

    line: str
    predicted: Interval
    logged: float
    unit: str = "GiB"
    scale: int = GIB
    half: int = GIB // 200
    slack: int | None = None
    keys: str = ""
    of_fraction: bool = False

    @property
    def miss(self) -> float:
        """How far the log lies outside of what the plan and the printed digits allow; 0 inside."""
        return max(self.predicted.low - self.logged - self.half, self.logged - self.predicted.high - self.half, 0)

    @property
    def contradicts(self) -> bool:
        """Whether the log is of another server."""
        return self.slack is not None and self.miss > self.slack


def figures(server: Server, log: Log, by_pool: Window | None) -> list[Figure]:
    """All rows that this log has, in the order of a start."""
    memory = _memory if server.engine.name == SGLANG else _available
    parts = [_weights(server, log), memory(server, log, by_pool), _pool(server, log)]
    return [figure for part in parts for figure in part]


def _weights(server: Server, log: Log) -> Iterator[Figure]:
    before = log.window("free_before")
    if before is not None:
        yield Figure(line="free before weights", predicted=server.launch.fraction_of, logged=_middle(before))
    target, draft = pins.weights(log)
    size, over = server.line_bytes("weights"), server.line_bytes("allocator and loading overhead")
    if target is not None and size:
        slack = int(size * WEIGHTS_SLACK) + GIB
        yield Figure(line="weights", predicted=Interval(size, size + over, size + 2 * over), logged=_middle(target),
                     slack=slack, keys="weights, tp, ep, release")  # fmt: skip
    draft_size = server.line_bytes("draft weights")
    if draft is not None:
        yield Figure(line="draft weights", predicted=exactly(draft_size), logged=_middle(draft),
                     slack=None if draft_size else 0, keys="draft_layers")  # fmt: skip


def _memory(server: Server, log: Log, by_pool: Window | None) -> Iterator[Figure]:
    """SGLang: free memory after weights, and the budget that it leaves against the one that the pool took."""
    after, by_memory = log.least("free_after"), pins.budget_by_memory(server, log)
    if after is not None:
        outside = server.launch.fraction_of.map(lambda free: int(free * (1 - server.launch.fraction)))
        yield Figure(line="free after weights", predicted=server.budget.kv_bytes + outside, logged=_middle(after))
    if by_memory is not None and by_pool is not None:
        yield _budgets("KV budget, by free memory", by_pool, by_memory, of_fraction=True)


def _budgets(line: str, by_pool: Window, by_memory: Window, *, of_fraction: bool = False) -> Figure:
    """The budget that the pool took, against the one that printed memory leaves: a wrong row or layer shows here."""
    return Figure(
        line=line,
        predicted=Interval(by_pool.low, (by_pool.low + by_pool.high) // 2, by_pool.high),
        logged=_middle(by_memory),
        half=(by_memory.high - by_memory.low) // 2,
        slack=MEMORY_SLACK,
        keys=ROW_KEYS,
        of_fraction=of_fraction,
    )


def _available(server: Server, log: Log, by_pool: Window | None) -> Iterator[Figure]:
    """vLLM: the budget, and the need of one request where the start failed for it."""
    budget = log.least("budget")
    if budget is not None:
        yield Figure(line="available KV cache memory", predicted=server.budget.kv_bytes, logged=_middle(budget))
        if by_pool is not None:
            yield _budgets("KV budget, by its blocks", by_pool, budget)
    need, blocks = log.window("need"), server.pools.blocks
    if need is not None and blocks is not None:
        pages = -(-server.launch.context_len // server.pools.page_tokens)
        yield Figure(line="KV cache of one request", predicted=exactly(pages * blocks.bytes_per_block),
                     logged=_middle(need), slack=ROUNDING, keys="kv_cache_dtype, attention_backend, release, "
                     "draft_layers, max_model_len")  # fmt: skip


def _pool(server: Server, log: Log) -> Iterator[Figure]:
    tokens = pins.logged_tokens(log)
    if tokens is not None:
        name = "max_total_num_tokens" if server.engine.name == SGLANG else "GPU KV cache size"
        yield _count(name, server.pools.tokens, tokens, "tokens")
        yield from _pool_bytes(server, log, tokens)
    contexts = log.numbers("context")
    if contexts:
        yield _count("longest request", exactly(server.launch.context_len), int(contexts[-1]), "tokens",
                     slack=EXACT, keys="max_model_len")  # fmt: skip
    running = log.numbers("max_running")
    if running:
        yield _count("max_running_requests", exactly(server.pools.request_cap), int(running[0]), "requests")
    host = log.numbers("host_pool")
    if host and server.pools.host_bytes:
        yield Figure(line="host pool", predicted=exactly(server.pools.host_bytes), logged=float(host[-1]) * GB,
                     unit="GB", scale=GB, half=GB // 200)  # fmt: skip


def _pool_bytes(server: Server, log: Log, tokens: int) -> Iterator[Figure]:
    """The printed sizes of SGLang's pools against those of the logged tokens; larger one: the target's."""
    sizes = log.numbers("pool")
    found = pins.budget_by_pool(server, log)
    if not sizes or found is None or server.pools.compressed is not None:
        return
    lines = {line.name: line.bytes for line in server.pools_at(found.low).lines}
    target, draft = lines.get("KV rows", 0) + lines.get("index-K", 0), lines.get("draft KV pool", 0)
    yield Figure(line=f"KV pool of {tokens:,} tokens", predicted=exactly(target), logged=float(sizes[-1]) * GIB,
                 slack=ROUNDING, keys=ROW_KEYS)  # fmt: skip
    if len(sizes) > 1 and not server.scenario.offload:
        yield Figure(line=f"draft pool of {tokens:,} tokens", predicted=exactly(draft), logged=float(sizes[0]) * GIB,
                     slack=ROUNDING, keys="draft_layers, kv_cache_dtype")  # fmt: skip


def _count(
    line: str, predicted: Interval, logged: int, unit: str, *, slack: int | None = None, keys: str = ""
) -> Figure:
    return Figure(line=line, predicted=predicted, logged=logged, unit=unit, scale=1, half=0, slack=slack, keys=keys)


def _middle(window: Window) -> float:
    return (window.low + window.high) / 2
