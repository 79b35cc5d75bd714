"""
What the budget of one pipeline stage of DeepSeek-V4 is divided by: layers, entries, rings, and window slots.

Source: DSV4PoolConfigurator and compute_swa_request_cap (pool_configurator.py), kv_layout.py and
deepseek_v4_compress_state.py of 0.5.17 to 0.5.23; builds of May 2026 by a log (15,955.85 B a token).
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.pools import ratio_of
from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.requests import is_speculative, reserved_slots
from hsplan.families import Compressed
from hsplan.spec import Deployment
from hsplan.units import ceil_div

PAGE = 256
PACKED_BYTES = 584  # of an entry: 448 fp8, 64 × 2 rope, 8 of scales
DEFAULT_WINDOW_RATIO = 0.1
EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
LAUNCHER_REQUESTS = 256  # deepseek_v4_hook.py, where none are given
PREFIX_TAILS = 4  # for each running request, when the radix cache is on
MAY_2026 = ("2026-05-01", "2026-05-31")


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

    `padded`: the rule of 0.5.21 and later, by padded pages and, where requests are given, `cap_slots` of windows;
    else windows grow with the tokens by `window_ratio`. `index_padded`: index keys have as many pages as entries.
    `by_token`: the rule of May 2026. `drafts` is 0 without speculation; `requested` the running requests of a rank
    when they are given.
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
    index_padded: bool
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
        index_padded=release.has("v4_index_padded"),
        by_token=by_token,
        drafts=draft_tokens(deployment) if is_speculative(deployment) else 0,
        shrink=ratio_of(launch, scenario),
        requested=requested,
        extra_slots=reserved_slots(deployment, release),
        context_len=launch.context_len,
    )


def requested_of(deployment: Deployment, release: Release) -> int | None:
    """
    Running requests of a rank as given, None where the pool code estimates them.

    With drafts it is never left alone: the launcher has set a number before the 48 of speculation could be.
    """
    given = deployment.max_running_requests
    if given == "auto":
        if not is_speculative(deployment):
            return None
        given = LAUNCHER_REQUESTS
    each = given // deployment.dp_attention
    return max(1, each) if release.has("at_least_one_request") else each


def _cap_slots(launch: Launch, scenario: Scenario, window: int, requested: int | None) -> int | None:
    """
    Window slots by the request cap and the kept prefix tails, or None where a ratio rules (from 0.5.21 on).

    Pipeline stages run without the overlap schedule: one prefill chunk is in flight, and drafts take whole pages.
    """
    deployment = launch.loaded.spec.deployment
    if requested is None or deployment.swa_full_tokens_ratio is not None:
        return None
    drafts = draft_tokens(deployment)
    overlaps = deployment.pp == 1 and deployment.layer_range is None
    step = 2 * drafts if is_speculative(deployment) and overlaps else PAGE
    cap = (window + EVICTION_INTERVAL * drafts + PAGE + step) * max(1, requested)
    decodes = deployment.disaggregation == "decode"
    if decodes:
        cap += (window + PAGE) * reserved_slots(deployment, launch.release)
    else:
        cap += (2 if overlaps else 1) * chunk_tokens(launch) + PAGE
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
