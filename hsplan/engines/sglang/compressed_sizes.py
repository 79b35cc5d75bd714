"""
How SGLang divides a budget among DeepSeek-V4's pools: rates, what is fixed before tokens, and the slots of each pool.

Source: DSV4PoolConfigurator and compute_swa_request_cap (pool_configurator.py) of 0.5.17 to 0.5.23; builds of May 2026
by a log (15,955.85 B a token). Double-precision sums keep the engine's order.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import CompressedPools, Launch, Row, Scenario
from hsplan.engines.sglang.cell import INDEX_BYTES
from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.pools import ratio_of
from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.requests import SPECULATIVE_REQUESTS, is_speculative, reserved_slots
from hsplan.families import Compressed
from hsplan.spec import Deployment
from hsplan.units import ceil_div, floor_to

PAGE = 256
PACKED_BYTES = 584  # of an entry: 448 fp8, 64 × 2 rope, 8 of scales
INDEX_VALUES = 128
STATE_VALUE_BYTES = 4  # fp32, SGLANG_DSV4_COMPRESS_STATE_DTYPE
LOW_INDEX_BYTES = 68  # ratio 1 and 2: 64 B of fp4 values and 4 of scales
LOW_INDEX_PAGE = 64
DEFAULT_WINDOW_RATIO = 0.1
EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
PREFIX_TAILS = 4  # for each running request, when the radix cache is on
MAY_2026 = ("2026-05-01", "2026-05-31")
FIRST_RELEASE = "2026-08-08"  # 0.5.17


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stored entry of 512 values: its bytes, and what a page of them is padded to (1: not padded)."""

    format: str
    bytes: int
    align: int

    def page_bytes(self, entries: int) -> int:
        """Bytes of a page."""
        return ceil_div(entries * self.bytes, self.align) * self.align


ENTRIES = {
    entry.format: entry
    for entry in (
        Entry("v4_packed", PACKED_BYTES, 576),
        Entry("v4_uniform", 512, 1),  # trtllm: 512 fp8, scaled outside the cache
        Entry("v41", 528, 512),  # 512 fp8, 16 of scales
        Entry("v41_fp4", 288, 256),  # ratio 1 and 2 beside v41: 256 B of fp4, 32 of scales
    )
}


class Shape(msgspec.Struct, frozen=True, gc=False):
    """Layers of a stage: all, and those that store entries of each ratio."""

    layers: int
    c4: int
    c128: int
    c2: int = 0
    c1: int = 0


class Rings(msgspec.Struct, frozen=True, gc=False):
    """State rows: of ratio 4 for each page of windows, of the others for each request; wider under speculation."""

    c4: int
    c128: int
    c2: int


class Sizing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    What one stage's budget is divided by.

    `padded`: the rule of 0.5.22 and later, by padded pages and, where requests are given, `cap_slots` of windows;
    else windows grow with the tokens by `window_ratio`. `by_token`: the rule of May 2026. `drafts` is 0 without
    speculation; `requested` the running requests of a rank when they are given.
    """

    shape: Shape
    rings: Rings
    main: Entry
    low: Entry
    head_dim: int
    window: int
    window_ratio: float
    cap_slots: int | None
    padded: bool
    by_token: bool
    drafts: int
    shrink: float
    requested: int | None
    extra_slots: int
    context_len: int


def shape_of(kv: Compressed, stage: tuple[int, int], *, with_drafts: bool) -> Shape:
    """Layers of the stage; `with_drafts` counts the entries of draft layers too, as builds of May 2026 did."""
    first, end = stage
    ratios = kv.ratios[first:end]
    sources = [kv.ratios[i] for i in kv.sources if first <= i < end]
    drafts = kv.entries - len(kv.ratios) if with_drafts and end == len(kv.ratios) else 0
    return Shape(len(ratios) + drafts, ratios.count(4), ratios.count(128), sources.count(2), sources.count(1))


def rings_of(deployment: Deployment) -> Rings:
    """`get_compress_state_ring_size`."""
    if not is_speculative(deployment):
        return Rings(8, 128, 2)
    return Rings(16, 256, 1 << (draft_tokens(deployment) + 1).bit_length())


def has_may_rule(release: Release) -> bool:
    """Whether the state of ratio 128 is priced a token, and draft layers counted as layers."""
    return MAY_2026[0] <= release.date <= MAY_2026[1]


def sizing_of(launch: Launch, scenario: Scenario, row: Row, stage: tuple[int, int]) -> Sizing:
    """The stage with the flags of the scenario."""
    kv, deployment, release = launch.model.kv, launch.loaded.spec.deployment, launch.release
    assert isinstance(kv, Compressed)  # noqa: S101
    by_token, padded, main = has_may_rule(release), release.has("v4_window_cap"), ENTRIES[row.format]
    requested, ratio = requested_of(deployment, release), deployment.swa_full_tokens_ratio
    return Sizing(
        shape=shape_of(kv, stage, with_drafts=by_token),
        rings=rings_of(deployment),
        main=main,
        low=ENTRIES["v41_fp4"] if row.format == "v41" else main,
        head_dim=kv.head_dim,
        window=kv.window,
        window_ratio=DEFAULT_WINDOW_RATIO if ratio is None else ratio,
        cap_slots=_cap_slots(launch, scenario, kv.window, requested) if padded else None,
        padded=padded,
        by_token=by_token,
        drafts=draft_tokens(deployment) if is_speculative(deployment) else 0,
        shrink=ratio_of(launch, scenario),
        requested=requested,
        extra_slots=reserved_slots(deployment, release),
        context_len=launch.context_len,
    )


def requested_of(deployment: Deployment, release: Release) -> int | None:
    """Running requests of a rank as given; speculation sets its own default."""
    given = deployment.max_running_requests
    if given == "auto":
        if not is_speculative(deployment):
            return None
        given = SPECULATIVE_REQUESTS
    each = given // deployment.dp_attention
    return max(1, each) if release.has("at_least_one_request") else each


def _cap_slots(launch: Launch, scenario: Scenario, window: int, requested: int | None) -> int | None:
    """Window slots by the request cap and the kept prefix tails, or None where a ratio rules (from 0.5.22 on)."""
    deployment = launch.loaded.spec.deployment
    if requested is None or deployment.swa_full_tokens_ratio is not None:
        return None
    drafts = draft_tokens(deployment)
    step = 2 * drafts if is_speculative(deployment) else PAGE
    cap = (window + EVICTION_INTERVAL * drafts + PAGE + step) * max(1, requested)
    decodes = deployment.disaggregation == "decode"
    if decodes:
        cap += (window + PAGE) * reserved_slots(deployment, launch.release)
    else:
        cap += 2 * chunk_tokens(launch) + PAGE
    reuses = deployment.radix_cache and not scenario.offload and not decodes
    tails = PREFIX_TAILS * requested if reuses else 0
    return ceil_div(cap + tails * (window + PAGE), PAGE) * PAGE


def chunk_tokens(launch: Launch) -> int:
    """Prefill chunk of one rank: a given one is taken as it is, the engine's own is divided by DP attention."""
    deployment = launch.loaded.spec.deployment
    if deployment.chunked_prefill_size != "auto":
        return deployment.chunked_prefill_size
    chunk: int = launch.extra.memory.chunk_tokens
    return chunk // deployment.dp_attention


def _a_slot(entry: Entry, slots: int) -> float:
    """Bytes of an entry with the padding of its page; unpadded entries stay whole numbers."""
    return entry.bytes if entry.align == 1 else entry.page_bytes(slots) / slots


def _growth(sizing: Sizing) -> float:
    """A draft worker is priced as one more layer of everything."""
    return (sizing.shape.layers + 1) / sizing.shape.layers if sizing.drafts else 1


def state_page(sizing: Sizing) -> int:
    """Window slots that share one ring of ratio 4."""
    return PAGE if sizing.padded else sizing.window


def window_rate(sizing: Sizing) -> float:
    """Bytes of a window slot in every layer, with its share of the rings of ratio 4."""
    state = 4 * (sizing.head_dim + INDEX_VALUES) * STATE_VALUE_BYTES
    slot = _a_slot(sizing.main, PAGE) if sizing.padded else PACKED_BYTES
    rate = slot * sizing.shape.layers + sizing.rings.c4 / state_page(sizing) * state * sizing.shape.c4
    return rate * _growth(sizing) if sizing.padded else rate


def full_rate(sizing: Sizing) -> float:
    """Bytes that one token takes from the budget once the fixed parts are gone."""
    return (_padded_rate(sizing) if sizing.padded else _plain_rate(sizing)) * _growth(sizing)


def _padded_rate(sizing: Sizing) -> float:
    """0.5.22 and 0.5.23: padded pages; windows are in the rate only where no cap rules."""
    shape, main, low = sizing.shape, sizing.main, sizing.low
    ratio = 0 if sizing.cap_slots is not None else sizing.window_ratio
    alone = msgspec.structs.replace(sizing, drafts=0)
    parts = [
        ((1 / (4 * sizing.shrink) * _a_slot(main, PAGE // 4) + 1 / 4 * INDEX_BYTES), shape.c4),
        (1 / 128 * _a_slot(main, PAGE // 128), shape.c128),
        (_a_slot(low, PAGE) + LOW_INDEX_BYTES, shape.c1),
        ((_a_slot(low, PAGE // 2) + LOW_INDEX_BYTES) / 2, shape.c2),
    ]
    return ratio * window_rate(alone) + sum(rate * layers for rate, layers in parts if layers)


def _plain_rate(sizing: Sizing) -> float:
    """Before 0.5.22: 584 B an entry, whatever is stored; windows always grow with the tokens."""
    shape, ratio, ring = sizing.shape, sizing.window_ratio, sizing.rings.c4 / sizing.window
    rate = (
        ratio * PACKED_BYTES * shape.layers
        + 1 / (4 * sizing.shrink) * PACKED_BYTES * shape.c4
        + 1 / 128 * PACKED_BYTES * shape.c128
        + 1 / 4 * INDEX_BYTES * shape.c4
        + ratio * ring * (4 * sizing.head_dim * STATE_VALUE_BYTES) * shape.c4
        + ratio * ring * (4 * INDEX_VALUES * STATE_VALUE_BYTES) * shape.c4
    )
    if sizing.by_token:
        rate += ratio * (sizing.rings.c128 / sizing.window) * (2 * sizing.head_dim * STATE_VALUE_BYTES) * shape.c128
    return rate


def state_rows(ring: int, slots: int, ratio: int) -> int:
    """Rows of a state pool of `slots` rings: one ring and a row to spare, whole blocks of `ratio`."""
    return ceil_div(slots * ring + ring + 1, ratio) * ratio


def fixed_state(sizing: Sizing, requests: int) -> tuple[int, int]:
    """State bytes of ratio 128 and of ratio 2 for the running requests."""
    slots = requests + sizing.extra_slots + 1
    width = 2 * sizing.head_dim * STATE_VALUE_BYTES
    c128 = 0 if sizing.by_token else state_rows(sizing.rings.c128, slots, 128) * width * sizing.shape.c128
    return c128, state_rows(sizing.rings.c2, slots, 2) * width * sizing.shape.c2


def requests_priced(sizing: Sizing, budget_bytes: int) -> int:
    """Running requests whose state is taken from the budget: as given, else the engine's estimate."""
    if sizing.requested is not None:
        return sizing.requested
    tokens = int(max(budget_bytes, 0) / full_rate(sizing))
    return min(max(min(int(tokens / sizing.context_len * 512), 4096), 2048), tokens // 2)


def window_bytes(sizing: Sizing) -> float:
    """Bytes of a capped window pool with the state of ratio 4; 0 where windows are in the rate."""
    return 0 if sizing.cap_slots is None else sizing.cap_slots * window_rate(sizing)


def tokens_of(sizing: Sizing, budget_bytes: int) -> int:
    """Full tokens of a budget, in whole pages."""
    fixed = sum(fixed_state(sizing, requests_priced(sizing, budget_bytes))) + window_bytes(sizing)
    left, rate = max(budget_bytes - fixed, 0), full_rate(sizing)
    tokens = floor_to(int(left / rate), PAGE)
    while tokens > 0 and tokens * rate + _reserved_pages(sizing, tokens) > left:
        tokens -= PAGE
    return tokens


def _reserved_pages(sizing: Sizing, tokens: int) -> float:
    """Pages of ratio 1 and 2 beyond the tokens: one of entries, and what the index rounds up to."""
    if sizing.low.align == 1:
        return 0
    found = 0.0
    for ratio, layers in ((1, sizing.shape.c1), (2, sizing.shape.c2)):
        if layers:
            entries = PAGE * _a_slot(sizing.low, PAGE // ratio)
            index_slots = low_index_pages(tokens, ratio) * LOW_INDEX_PAGE
            found += (entries + (index_slots - tokens // ratio) * LOW_INDEX_BYTES) * layers
    return found


def low_index_pages(tokens: int, ratio: int) -> int:
    """Pages of the index of ratio 1 or 2."""
    return ceil_div((tokens + PAGE) // ratio + LOW_INDEX_PAGE, LOW_INDEX_PAGE)


def pools_of_tokens(sizing: Sizing, tokens: int, requests: int) -> CompressedPools:
    """Slots of every pool for `tokens`, and the rates that led there."""
    windows = sizing.cap_slots
    if windows is None:
        windows = floor_to(int(tokens * sizing.window_ratio), PAGE)
    c128_bytes, c2_bytes = fixed_state(sizing, requests)
    return CompressedPools(
        bytes_per_full_token=full_rate(sizing),
        bytes_per_swa_token=window_rate(sizing),
        swa_cap_tokens=sizing.cap_slots,
        fixed_c128_state_bytes=c128_bytes,
        fixed_c2_state_bytes=c2_bytes,
        swa_fixed_bytes=window_bytes(sizing),
        swa_tokens=windows,
        c4_tokens=int(tokens // (4 * sizing.shrink)),
        c128_tokens=tokens // 128,
        c4_state=windows // state_page(sizing) * sizing.rings.c4,
    )
