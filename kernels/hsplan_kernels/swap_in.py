"""
Swap-in: resolve top-k token ids to hot-buffer rows, evict the least recently used, load the missed rows.

Two launches. `resolve` runs one program a request: a token→slot map that survives between steps answers hits with K
lookups; only when something misses, a few counting passes find the victims. `copy_planned` spreads all missed
rows of the batch over a fixed grid and reads them from pinned host memory by pointer. No host sync, no allocation.

Eviction order: step of last use, then token id, smaller first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hsplan_kernels.state import MissPlan, SwapState

RESOLVE_WARPS = 8
SLOTS_PER_WARP = 1024
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
        SLOTS=triton.next_power_of_2(state.slots),
        TOKENS=triton.next_power_of_2(state.max_tokens),
        num_warps=max(RESOLVE_WARPS, triton.next_power_of_2(state.slots) // SLOTS_PER_WARP),
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
    SLOTS: tl.constexpr,
    TOKENS: tl.constexpr,
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
                SLOTS,
                TOKENS,
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
def _victims(p_steps, p_tokens, p_victims, now, count, B: tl.constexpr, SLOTS: tl.constexpr, TOKENS: tl.constexpr):
    """Write the `count` slots that come first in (step, token) to p_victims, in slot order."""
    o_s = tl.arange(0, SLOTS)
    step = tl.load(p_steps + o_s, mask=o_s < B, other=now)
    token = tl.load(p_tokens + o_s, mask=o_s < B, other=-1)
    # Steps: octaves of age first, since most slots are young, then ninths of what is left.
    low, high, below, done = _narrow_octave(step, now, count)
    while low < high:
        width = (high - low + 9) // 9
        c0, c1, c2, c3 = _count(step, step < now, low, width)
        low, high, below, done = _narrow(c0, c1, c2, c3, count, low, high, width, below)
    threshold = low
    token_limit = tl.full([], TOKENS, tl.int32)
    if done == 0:
        # Ties in the threshold's step: the smallest tokens of them.
        take = count - below
        token_low = tl.full([], 0, tl.int32)
        token_high = tl.full([], TOKENS - 1, tl.int32)
        under = tl.full([], 0, tl.int32)
        while token_low < token_high:
            width = (token_high - token_low + 9) // 9
            c0, c1, c2, c3 = _count(token, step == threshold, token_low, width)
            token_low, token_high, under, done = _narrow(c0, c1, c2, c3, take, token_low, token_high, width, under)
        token_limit = token_low
    chosen = (step < threshold) | ((step == threshold) & (token <= token_limit))
    at = tl.cumsum(chosen.to(tl.int32), 0) - 1
    # Equal empty slots can be too many: the first ones serve.
    tl.store(p_victims + at, o_s, mask=chosen & (at < count))


@triton.jit
def _pair(key, inside, t0, t1):
    """How many keys are at most t0 and t1: two 16-bit counters in one word, so that one sum counts both."""
    return tl.sum(tl.where(inside & (key <= t0), 1, 0) + tl.where(inside & (key <= t1), 1 << 16, 0), 0)


@triton.jit
def _count(key, inside, low, width):
    """How many keys are at most low + i·width − 1 for i = 1…8, two a word."""
    t = low - 1
    c0 = _pair(key, inside, t + width, t + 2 * width)
    c1 = _pair(key, inside, t + 3 * width, t + 4 * width)
    c2 = _pair(key, inside, t + 5 * width, t + 6 * width)
    c3 = _pair(key, inside, t + 7 * width, t + 8 * width)
    return c0, c1, c2, c3


@triton.jit
def _of(i: tl.constexpr, c0, c1, c2, c3):
    """The i-th of the eight counts."""
    word = c0 if i < 2 else (c1 if i < 4 else (c2 if i < 6 else c3))
    return (word >> (16 * (i % 2))) & 0xFFFF


@triton.jit
def _narrow(c0, c1, c2, c3, need, low, high, width, below):
    """The ninth of [low, high] that holds the `need`-th key, the keys below it, and whether it ends on it exactly."""
    ninth = 0
    done = 0
    end = high
    for i in tl.static_range(8):
        c = _of(i, c0, c1, c2, c3)
        less = c < need
        ninth += less.to(tl.int32)
        below = tl.where(less, c, below)
        exact = (c == need) & (done == 0)
        end = tl.where(exact, low + (i + 1) * width - 1, end)
        done = tl.where(exact, 1, done)
    start = low + ninth * width
    new_high = tl.minimum(start + width - 1, high)
    return tl.where(done == 1, end, start), tl.where(done == 1, end, new_high), below, done


@triton.jit
def _narrow_octave(step, now, need):
    """As `_narrow`, with ages 256, 128, … 2 as the bounds, over all steps before `now`."""
    c0 = _pair(step, step < now, now - 256, now - 128)
    c1 = _pair(step, step < now, now - 64, now - 32)
    c2 = _pair(step, step < now, now - 16, now - 8)
    c3 = _pair(step, step < now, now - 4, now - 2)
    low = tl.full([], -1, tl.int32)
    high = now - 1
    below = 0
    done = 0
    found = 0
    for i in tl.static_range(8):
        c = _of(i, c0, c1, c2, c3)
        bound = now - (256 >> i)
        less = c < need
        low = tl.where(less, tl.maximum(bound + 1, -1), low)
        below = tl.where(less, c, below)
        first = (c >= need) & (found == 0)
        exact = first & (c == need)
        high = tl.where(first, bound, high)
        low = tl.where(exact, bound, low)
        done = tl.where(exact, 1, done)
        found = tl.where(first, 1, found)
    return low, tl.maximum(high, -1), below, done


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
