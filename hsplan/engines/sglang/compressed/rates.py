"""
Rates of DeepSeek-V4, what is fixed before tokens, and the slots of each pool that a budget gives.

Source: DSV4PoolConfigurator (pool_configurator.py) of 0.5.17 to 0.5.23. Double-precision sums keep the engine's order.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import CompressedPools
from hsplan.engines.sglang.cell import INDEX_BYTES
from hsplan.engines.sglang.compressed.sizing import PACKED_BYTES, PAGE, Entry, Sizing
from hsplan.units import ceil_div, floor_to

INDEX_VALUES = 128
STATE_VALUE_BYTES = 4  # fp32, SGLANG_DSV4_COMPRESS_STATE_DTYPE
LOW_INDEX_BYTES = 68  # ratio 1 and 2: 64 B of fp4 values and 4 of scales
LOW_INDEX_PAGE = 64


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
    """From 0.5.21 on: padded pages; windows are in the rate only where no cap rules."""
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
    """Before 0.5.21: 584 B an entry, whatever is stored; windows always grow with the tokens."""
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
