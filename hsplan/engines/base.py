"""
What an engine answers, and the values it answers with.

An engine is one folder and one line in `ENGINES`.
Bytes and tokens are ints; an `Interval` carries what is uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from hsplan.families import LayerPlan, Model
from hsplan.hardware import Gpu
from hsplan.spec import Loaded
from hsplan.swapin import SwapIn

ITEM_BYTES = {"uint8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4}
Evidence = Literal["measured", "engine_code", "engine_log", "derived", "assumed"]


class Scenario(msgspec.Struct, frozen=True):
    """One of the four ways to run a deployment; `elided`: index-K only where top-k is computed."""

    name: str
    elided: bool
    offload: bool


SCENARIOS = (
    Scenario("baseline", elided=False, offload=False),
    Scenario("elided", elided=True, offload=False),
    Scenario("offload", elided=False, offload=True),
    Scenario("elided+offload", elided=True, offload=True),
)


# gc=False: these hold numbers and texts only, the collector need not follow them; a plan makes a hundred.
class Interval(msgspec.Struct, frozen=True, gc=False):
    """An int that is known to lie in [low, high], `best` being the likeliest."""

    low: int
    best: int
    high: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.best + other.best, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.best - other.best, self.high - other.low)

    def map(self, function: Callable[[int], int]) -> Interval:
        """`function`, which must not decrease, of all three."""
        return Interval(function(self.low), function(self.best), function(self.high))


def exactly(value: int) -> Interval:
    """An interval without uncertainty."""
    return Interval(value, value, value)


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one token lies in one layer: `format` bf16, fp8_packed or fp8_raw; `bytes` stored, `charged` in the cell."""

    format: str
    bytes: int
    charged_bytes: int
    attention_backend: str
    kv_cache_dtype: str
    page_tokens: int


class Rates(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    Bytes per device token of one rank: `charged` is the cell, `draft` the draft term in it, the rest is stored.

    `charged` is 0 where the engine divides its budget by no rate.
    """

    charged: int
    draft: int
    stored_kv: int
    stored_index: int
    stored_draft: int


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the ledger: who takes how many bytes where, why, and how well that is known."""

    name: str
    bytes: int
    place: Literal["gpu", "host"] = "gpu"
    scope: Literal["rank", "node"] = "rank"
    formula: str
    evidence: Evidence


class Step(msgspec.Struct, frozen=True, gc=False):
    """One formula with its numbers, and the source of the rule: what `--explain` prints."""

    name: str
    formula: str
    source: str


# Formulas are written out only when somebody asks for them.
Explain = Callable[[], tuple[Step, ...]]


class Buffer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    Tensors that the engine allocates: `count` of one `shape`, counted in the ledger line `line`.

    Worked out from layers, pages and rows and never from the ledger, so that either can prove the other wrong.
    """

    line: str
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int16", "int32", "int64", "float32"] = "uint8"
    count: int = 1
    place: Literal["gpu", "host"] = "gpu"

    @property
    def bytes(self) -> int:
        """Bytes of all its tensors."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype] * self.count


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """
    The cache of one scenario before its size is known; `stage` is the pipeline stage that binds.

    `rates` is None where no one rate a token exists: `Pools.compressed` then has the rates and what is fixed.
    """

    row: Row
    rates: Rates | None
    stage: tuple[int, int]
    index_layers: int
    explain: Explain

    @property
    def token_rates(self) -> Rates:
        """The rates of a layout that has one rate a token."""
        assert self.rates is not None  # noqa: S101
        return self.rates


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What is left for the cache of one rank, the lines loaded before it, and all that is free then."""

    kv_bytes: Interval
    lines: tuple[Line, ...]
    free_bytes: int
    explain: Explain
    notes: tuple[str, ...] = ()


class CompressedPools(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    DeepSeek-V4's pools: tokens = (budget − fixed bytes) / bytes_per_full_token; the rates may be fractional.

    `bytes_per_swa_token` is of a slot of the window pool: part of the full rate when that pool grows with the tokens,
    else `swa_cap_tokens` slots are among the fixed bytes. The rest are slots of each pool, and of the state of ratio 4.
    """

    bytes_per_full_token: float
    bytes_per_swa_token: float
    swa_cap_tokens: int | None
    fixed_c128_state_bytes: int
    fixed_c2_state_bytes: int
    swa_fixed_bytes: float
    swa_tokens: int
    c4_tokens: int
    c128_tokens: int
    c4_state: int


class Blocks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    The pool of an engine that counts in blocks; what a scenario does not have is None and left out of the JSON.

    `max_concurrency` is the printed one, `steady_state_concurrency` that of requests at rest but for one: under offload
    they read from host memory, without it only DeepSeek-V4 differs at rest. Under offload: the blocks of the host pool
    and the bytes from one to the next, whether the ranks of a replica share that pool, and the groups that share the
    GPU pool, hot groups among them. DeepSeek-V4: bytes of a token of a request, and what a request of max_model_len is
    counted beside them.
    """

    bytes_per_block: int
    num_blocks: int
    max_concurrency: float | None = None
    steady_state_concurrency: float | None = None
    host_num_blocks: int | None = None
    host_block_stride: int | None = None
    shared_host_pool: bool | None = None
    device_groups: int | None = None
    hot_groups: int | None = None
    bytes_per_full_token: float | None = None
    fixed_bytes_per_request: int | None = None


class Flag(msgspec.Struct, frozen=True):
    """One launch flag with its value, and why it is there."""

    text: str
    reason: str


class Refusal(msgspec.Struct, frozen=True):
    """Why the engine stops at start-up with these pools, and what would let it start."""

    why: str
    cure: str


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """
    The allocated cache of one scenario.

    `tokens` are what the engine logs (max_total_num_tokens); `logical_tokens` what requests can address; `host_bytes`
    and `host_tokens` are of one rank, 0 without offload; `hot_buffer_tokens` the GPU slots a request keeps, of
    `hot_pool_tokens` in all, 0 where they are part of the pool; `hot_scratch_tokens` are those that drafts take beside
    them; `prompt_tokens_a_slot`: until it is read, a prompt has its whole length there, so many tokens a slot, 0 where
    it has not. `gpu_requests` are those of workload.context that the GPU pool holds, where whole pages of logical
    tokens do not say it. `host_sharers` ranks share one host pool; `host_is_sized`: the pool has a size of its own,
    which limits whatever memory the node has; the engine takes `host_share` of a node's memory, less
    `host_reserve_bytes`. `swap_in`: what a step loads from host memory, None where that is not modelled; `not_modelled`
    may say why. `buffers` gives the tensors behind the lines that have any.
    """

    tokens: Interval
    logical_tokens: int
    request_cap: int
    max_request_tokens: int
    page_tokens: int
    host_tokens: int = 0
    host_bytes: int = 0
    host_reserve_bytes: int = 0
    hot_buffer_tokens: int = 0
    hot_scratch_tokens: int = 0
    hot_pool_tokens: int = 0
    prompt_tokens_a_slot: int = 0
    gpu_requests: int | None = None
    host_sharers: int = 1
    host_is_sized: bool = False
    host_share: float = 1
    swap_in: SwapIn | None = None
    not_modelled: tuple[str, ...] = ()
    blocks: Blocks | None = None
    refusal: Refusal | None = None
    compressed: CompressedPools | None = None
    lines: tuple[Line, ...] = ()
    buffers: Callable[[], tuple[Buffer, ...]] = tuple
    explain: Explain = tuple
    notes: tuple[str, ...] = ()

    @property
    def kept_tokens(self) -> int:
        """Device tokens that a running request keeps in the hot pool."""
        return self.hot_buffer_tokens + self.hot_scratch_tokens

    def takes_only_shorter_than(self, context: int) -> bool:
        """Whether a request of so many tokens has room, but is longer than those that the engine takes."""
        return self.max_request_tokens < context <= self.logical_tokens


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """
    A deployment with every rank and release question answered; `extra` holds the engine's own answers.

    `can_offload`: whether some choice of the offload flags starts. The budget grows with `fraction` (of the memory,
    as resolved) by `fraction_of` bytes.
    `cap_ranks` of the data-parallel ranks divide max_running_requests among them; 1: each takes as many.
    """

    loaded: Loaded
    model: Model
    plan: LayerPlan
    gpu: Gpu
    release: Any
    tp: int
    ranks_per_node: int
    data_parallel: int
    cap_ranks: int = 1
    context_len: int
    notes: tuple[str, ...]
    not_modelled: tuple[str, ...]
    can_offload: bool = True
    fraction: float = 1
    fraction_of: Interval = Interval(0, 0, 0)
    extra: Any


class Engine(Protocol):
    """The questions an engine answers, in the order in which the planner asks them."""

    name: str

    def resolve(self, loaded: Loaded, model: Model) -> Launch:
        """Release, ranks, stages; raises InputError or UnsupportedError for what the engine refuses."""

    def as_launched(self, launch: Launch) -> Scenario:
        """The scenario that the given flags start."""

    def applies(self, launch: Launch, scenario: Scenario) -> bool:
        """Whether the release runs the scenario for some choice of the offload flags."""

    def layout(self, launch: Launch, scenario: Scenario) -> Layout | str:
        """Row and rates with the flags of the scenario, or the reason why it is not available."""

    def budget(self, launch: Launch, scenario: Scenario) -> Budget:
        """Bytes for the cache, by the engine's own rule or as given."""

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens and everything that is allocated for them."""

    def flags(self, launch: Launch, pools: Pools) -> tuple[Flag, ...]:
        """Launch flags of the scenario as launched that offload is about, each with its reason."""
