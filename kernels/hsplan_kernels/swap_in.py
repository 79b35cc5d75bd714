"""
Swap-in: resolve top-k token ids to hot-buffer rows, evict the least recently used, load the missed rows.

Two launches. `resolve` runs one program a request: a token→slot map that survives between steps answers hits with K
lookups; only when something misses, two to four histograms find the victims. `copy_planned` spreads all missed
rows of the batch over a fixed grid and reads them from pinned host memory by pointer. No host sync, no allocation.

Eviction order: step of last use, then token id, smaller first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hsplan_kernels.state import MissPlan, SwapState

AGE_BINS = 1024
CHUNK = 4096
RESOLVE_WARPS = 8
COPY_PROGRAMS = 128
COPY_ROWS = 4
COPY_WARPS = 4


def resolve(
    state: SwapState,
    plan: MissPlan,
    top_k: torch.Tensor,
    request_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    num_real: torch.Tensor,
    step: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """
    Device rows of `top_k` into `out`, the state moved on by one step, the rows to load into `plan`.

    `top_k`, `out`: int32 [n, K]; K a power of two. `request_rows`, `seq_lens`: int32 [n], request rows distinct;
    `num_real`, `step`: int32 [1] on the device, rows past `num_real` are padding and give −1; `step` grows by at
    least 1 between calls on one state. Ids that are negative or not below the length give −1. Duplicates give the
    same row and load once. The newest token (length − 1) has a slot of its own. A token that is on neither side
    (host row −1 or past the pool) gives −1 and takes no slot. Requests no longer than B tokens are all resident.
    """
    n, k = top_k.shape
    if k & (k - 1) or k > state.slots:
        raise ValueError(f"top-k {k} with {state.slots} slots: give a power of two, not above the slots")
    token_bits = (state.max_tokens - 1).bit_length()
    shift = max(token_bits - 10, 0)
    _resolve[(n,)](
        top_k,
        request_rows,
        seq_lens,
        num_real,
        step,
        state.host_rows,
        state.slot_tokens,
        state.slot_steps,
        state.token_slots,
        out,
        plan.scratch,
        plan.src,
        plan.dst,
        plan.counts,
        state.host_limit,
        state.max_tokens,
        state.slots_and_page,
        K=k,
        B=state.slots,
        CHUNK_SLOTS=min(triton.next_power_of_2(state.slots), CHUNK),
        BINS=AGE_BINS,
        SHIFT=shift,
        HIGH_BINS=2048,
        LOW_BINS=2 ** (shift + 1),
        num_warps=RESOLVE_WARPS,
    )


def copy_planned(plan: MissPlan, host: torch.Tensor, device: torch.Tensor) -> None:
    """
    Load the rows of a plan: `host` uint8 [host rows, row bytes], pinned; `device` uint8 [device rows, row bytes].

    Row bytes a multiple of 16. A layer that shares another's top-k calls this alone, with its own pools.
    """
    row_bytes = host.shape[1]
    if row_bytes % 16 or device.shape[1] != row_bytes:
        raise ValueError(f"rows of {row_bytes} and {device.shape[1]} bytes: give equal multiples of 16")
    n, k = plan.src.shape
    units = row_bytes // 16
    _copy[(COPY_PROGRAMS,)](
        plan.src,
        plan.dst,
        plan.counts,
        host.view(torch.int64),
        device.view(torch.int64),
        n,
        K=k,
        UNITS=units,
        LANES=triton.next_power_of_2(units),
        ROWS=COPY_ROWS,
        REQUESTS=triton.next_power_of_2(n),
        num_warps=COPY_WARPS,
    )


@triton.jit
def _resolve(
    p_top_k,
    p_request_rows,
    p_seq_lens,
    p_num_real,
    p_step,
    p_host_rows,
    p_slot_tokens,
    p_slot_steps,
    p_token_slots,
    p_out,
    p_scratch,
    p_src,
    p_dst,
    p_counts,
    host_limit,
    max_tokens,
    request_stride,
    K: tl.constexpr,
    B: tl.constexpr,
    CHUNK_SLOTS: tl.constexpr,
    BINS: tl.constexpr,
    SHIFT: tl.constexpr,
    HIGH_BINS: tl.constexpr,
    LOW_BINS: tl.constexpr,
):
    i_n = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, K)
    seq_len = tl.load(p_seq_lens + i_n)
    row = tl.load(p_request_rows + i_n).to(tl.int64)
    now = tl.load(p_step)
    limit = tl.where(i_n < tl.load(p_num_real), tl.minimum(seq_len, max_tokens), 0)
    ids = tl.load(p_top_k + i_n * K + o_k)
    base = (row * request_stride).to(tl.int32)
    valid = (ids >= 0) & (ids < limit)
    long = ids * 0 + seq_len > B
    newest = valid & long & (ids == seq_len - 1)
    look = valid & long & (ids != seq_len - 1)

    p_where = p_token_slots + row * max_tokens
    slot = tl.load(p_where + ids, mask=look, other=-1).to(tl.int32)
    hit = look & (slot >= 0) & (slot < B)
    tl.store(p_slot_steps + row * B + slot, now, mask=hit)
    missing = look & (slot < 0)
    result = tl.where(hit, base + slot, tl.where(newest, base + B, -1))
    result = tl.where(valid & (ids * 0 + seq_len <= B), base + ids, result)
    count = 0
    if tl.sum(missing.to(tl.int32), 0) > 0:
        host = tl.load(p_host_rows + row * max_tokens + ids, mask=missing, other=-1)
        backed = missing & (host >= 0) & (host < host_limit)
        # Of equal ids the one whose mark survives loads the row.
        tl.store(p_where + ids, (-2 - o_k).to(tl.int16), mask=backed)
        tl.debug_barrier()
        mark = tl.load(p_where + ids, mask=backed, other=0).to(tl.int32)
        first = backed & (mark == -2 - o_k)
        rank = tl.cumsum(first.to(tl.int32), 0) - 1
        count = tl.sum(first.to(tl.int32), 0)
        if count > 0:
            _victims(
                p_slot_steps + row * B,
                p_slot_tokens + row * B,
                p_scratch + i_n * K,
                now,
                count,
                B,
                CHUNK_SLOTS,
                BINS,
                SHIFT,
                HIGH_BINS,
                LOW_BINS,
            )
            tl.debug_barrier()
            victim = tl.load(p_scratch + i_n * K + rank, mask=first, other=0)
            old = tl.load(p_slot_tokens + row * B + victim, mask=first, other=-1)
            tl.store(p_where + old, (old * 0 - 1).to(tl.int16), mask=first & (old >= 0))
            tl.store(p_slot_tokens + row * B + victim, ids, mask=first)
            tl.store(p_slot_steps + row * B + victim, now, mask=first)
            tl.store(p_where + ids, victim.to(tl.int16), mask=first)
            tl.store(p_src + i_n * K + rank, host, mask=first)
            tl.store(p_dst + i_n * K + rank, base + victim, mask=first)
            tl.debug_barrier()
            loaded = tl.load(p_where + ids, mask=backed, other=-1).to(tl.int32)
            result = tl.where(backed, base + loaded, result)
    tl.store(p_counts + i_n, count)
    tl.store(p_out + i_n * K + o_k, result)


@triton.jit
def _victims(
    p_steps,
    p_tokens,
    p_victims,
    now,
    count,
    B: tl.constexpr,
    CHUNK_SLOTS: tl.constexpr,
    BINS: tl.constexpr,
    SHIFT: tl.constexpr,
    HIGH_BINS: tl.constexpr,
    LOW_BINS: tl.constexpr,
):
    """Write the `count` slots that come first in (step, token) to p_victims, in slot order."""
    o_bin = tl.arange(0, BINS)
    o_s = tl.arange(0, CHUNK_SLOTS)
    # Ages from 1; age 0 is a slot used in this step. The last bin holds all that is older.
    ages = tl.zeros([BINS], dtype=tl.int32)
    for c in range(0, B, CHUNK_SLOTS):
        step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
        ages += tl.histogram(tl.minimum(now - step, BINS - 1), BINS)
    at_least = tl.sum(ages, 0) - tl.cumsum(ages, 0) + ages
    age = tl.max(tl.where(at_least >= count, o_bin, 0), 0)
    threshold = now - age
    older = tl.sum(tl.where(o_bin > age, ages, 0), 0)
    if age == BINS - 1:
        threshold, older = _old_threshold(p_steps, now, count, B, CHUNK_SLOTS)
    take = count - older
    high = tl.full([], 1 << 30, tl.int32)
    low = tl.full([], 1 << 30, tl.int32)
    tied = 0
    for c in range(0, B, CHUNK_SLOTS):
        step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
        tied += tl.sum((step == threshold).to(tl.int32), 0)
    if tied > take:
        o_high = tl.arange(0, HIGH_BINS)
        highs = tl.zeros([HIGH_BINS], dtype=tl.int32)
        for c in range(0, B, CHUNK_SLOTS):
            step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
            token = tl.load(p_tokens + c + o_s, mask=c + o_s < B, other=-1)
            key = tl.where(step == threshold, (tl.maximum(token, 0) >> SHIFT) + 1, 0)
            highs += tl.histogram(key, HIGH_BINS)
        highs = tl.where(o_high == 0, 0, highs)
        up_to = tl.cumsum(highs, 0)
        high = tl.min(tl.where(up_to >= take, o_high, HIGH_BINS), 0) - 1
        rest = take - tl.sum(tl.where(o_high <= high, highs, 0), 0)
        o_low = tl.arange(0, LOW_BINS)
        lows = tl.zeros([LOW_BINS], dtype=tl.int32)
        for c in range(0, B, CHUNK_SLOTS):
            step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
            token = tl.maximum(tl.load(p_tokens + c + o_s, mask=c + o_s < B, other=-1), 0)
            inside = (step == threshold) & (token >> SHIFT == high)
            lows += tl.histogram(tl.where(inside, (token & ((1 << SHIFT) - 1)) + 1, 0), LOW_BINS)
        lows = tl.where(o_low == 0, 0, lows)
        low = tl.min(tl.where(tl.cumsum(lows, 0) >= rest, o_low, LOW_BINS), 0) - 1
    written = 0
    for c in range(0, B, CHUNK_SLOTS):
        step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
        token = tl.maximum(tl.load(p_tokens + c + o_s, mask=c + o_s < B, other=-1), 0)
        token_high, token_low = token >> SHIFT, token & ((1 << SHIFT) - 1)
        small = (token_high < high) | ((token_high == high) & (token_low <= low))
        chosen = (step < threshold) | ((step == threshold) & small)
        at = written + tl.cumsum(chosen.to(tl.int32), 0) - 1
        # Equal empty slots can be one too many: the first ones serve.
        tl.store(p_victims + at, c + o_s, mask=chosen & (at < count))
        written += tl.sum(chosen.to(tl.int32), 0)


@triton.jit
def _old_threshold(p_steps, now, count, B: tl.constexpr, CHUNK_SLOTS: tl.constexpr):
    """The largest step such that at least `count` slots are not newer, by bisection; and how many are older."""
    o_s = tl.arange(0, CHUNK_SLOTS)
    low = tl.full([], -1, tl.int32)
    high = now - 1
    while low < high:
        middle = low + (high - low) // 2
        found = 0
        for c in range(0, B, CHUNK_SLOTS):
            step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
            found += tl.sum((step <= middle).to(tl.int32), 0)
        if found >= count:
            high = middle
        else:
            low = middle + 1
    older = 0
    for c in range(0, B, CHUNK_SLOTS):
        step = tl.load(p_steps + c + o_s, mask=c + o_s < B, other=now)
        older += tl.sum((step < low).to(tl.int32), 0)
    return low, older


@triton.jit
def _copy(
    p_src,
    p_dst,
    p_counts,
    p_host,
    p_device,
    n,
    K: tl.constexpr,
    UNITS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    o_n = tl.arange(0, REQUESTS)
    counts = tl.load(p_counts + o_n, mask=o_n < n, other=0)
    ends = tl.cumsum(counts, 0)
    total = tl.sum(counts, 0)
    o_r = tl.arange(0, ROWS)
    o_u = tl.arange(0, LANES)[None, :, None]
    o_e = tl.arange(0, 2)[None, None, :]
    for j0 in range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS):
        j = j0 + o_r
        before = ends[None, :] <= j[:, None]
        request = tl.sum(before.to(tl.int32), 1).to(tl.int64)
        at = request * K + j - tl.sum(tl.where(before, counts[None, :], 0), 1)
        src = tl.load(p_src + at, mask=j < total, other=0)[:, None, None]
        dst = tl.load(p_dst + at, mask=j < total, other=0).to(tl.int64)[:, None, None]
        mask = (j < total)[:, None, None] & (o_u < UNITS) & (o_e < 2)
        values = tl.load(p_host + src * (UNITS * 2) + o_u * 2 + o_e, mask=mask, other=0)
        tl.store(p_device + dst * (UNITS * 2) + o_u * 2 + o_e, values, mask=mask)
