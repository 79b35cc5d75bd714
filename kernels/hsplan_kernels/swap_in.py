"""
Swap-in: resolve top-k token ids to hot-buffer rows, evict the least recently used, load the missed rows.

Two launches. `resolve` runs one program a request: a token→slot map that survives between steps answers hits with K
lookups; only when something misses, a few passes over the slots find the victims (`victims`). `copy_planned` spreads
all missed rows of the batch over a fixed grid and reads them from pinned host memory by pointer; where the host pool
is large, in address order, which takes a launch more (`address_order`). Launches without address order are made ready
while the one before ends, and wait for it. No host sync, no allocation.

Eviction order: step of last use, then token id, smaller first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hsplan_kernels import address_order
from hsplan_kernels.address_order import copy_in_order, count_in_buckets, write_order
from hsplan_kernels.arrays import check_array, check_pool, rows_and_columns
from hsplan_kernels.state import BUCKETS, MissPlan, SwapState
from hsplan_kernels.victims import oldest, one_a_lane, ranks

MAX_TOP_K = 2**14  # places in the top-k are int16 below −1
RESOLVE_WARPS = 16
SLOTS_PER_WARP = 1024
CHUNK = 1024
COPY_PROGRAMS = 128  # with 2 rows a program, the fastest of those tried on an H200
COPY_ROWS = 2
COPY_WARPS = 1


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

    Raises ValueError for tensors of other shapes or types or with gaps, for a plan of another K, for fewer requests or
    for a smaller host pool, and for a K that is no power of two or above B or 16384.
    """
    n, k = rows_and_columns("top_k", top_k)
    check_array("top_k", top_k, (n, k), torch.int32)
    check_array("out", out, (n, k), torch.int32)
    check_array("request_rows", request_rows, (n,), torch.int32)
    check_array("seq_lens", seq_lens, (n,), torch.int32)
    check_array("num_real", num_real, (1,), torch.int32)
    check_array("step", step, (1,), torch.int32)
    if k < 1 or k & (k - 1) or k > min(state.slots, MAX_TOP_K):
        raise ValueError(f"top-k {k} with {state.slots} slots: give a power of two, not above the slots or {MAX_TOP_K}")
    if plan.src.shape[0] < n or plan.src.shape[1] != k:
        raise ValueError(f"a plan for {list(plan.src.shape)} entries, top-k of {[n, k]}: give new_plan those")
    if plan.sorted_src is not None and state.host_limit > BUCKETS << plan.bucket_bits:
        raise ValueError(f"a plan for fewer than {state.host_limit} host rows: give new_plan pool_rows")
    overlap = plan.sorted_src is None and _can_overlap(top_k)
    warps = max(RESOLVE_WARPS, triton.next_power_of_2(state.slots) // SLOTS_PER_WARP)
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
        plan.numbers,
        plan.buckets,
        state.host_limit,
        state.max_tokens,
        state.slots_and_page,
        K=k,
        B=state.slots,
        SLOTS=triton.next_power_of_2(state.slots),
        LANES=min(warps * 32, k),
        CHUNK=min(k, CHUNK),
        BUCKETS=BUCKETS if plan.sorted_src is not None else 0,
        BUCKET_BITS=plan.bucket_bits,
        OVERLAP=overlap,
        num_warps=warps,
        launch_pdl=overlap,
    )
    if n < plan.counts.shape[0]:
        plan.counts[n:].zero_()
    if plan.sorted_src is not None:
        write_order[(n,)](
            plan.src,
            plan.dst,
            plan.counts,
            plan.numbers,
            plan.buckets,
            plan.sorted_src,
            plan.sorted_dst,
            K=k,
            CHUNK=min(k, address_order.CHUNK),
            BUCKETS=BUCKETS,
            BUCKET_BITS=plan.bucket_bits,
            num_warps=address_order.WARPS,
        )


def copy_planned(plan: MissPlan, host: torch.Tensor, device: torch.Tensor) -> None:
    """
    Load the rows of a plan: `host` uint8 [host rows, row bytes], pinned; `device` uint8 [device rows, row bytes].

    Row bytes and both starts are multiples of 16. A layer that shares another's top-k calls this alone, with its own
    pools. They must hold the rows that the plan names: those are not checked, no call looks at what a tensor holds.

    Raises ValueError for rows that are unequal or no multiple of 16 bytes, and for pools of other types, with gaps or
    with another start.
    """
    check_pool("host", host)
    check_pool("device", device)
    row_bytes = host.shape[1]
    if device.shape[1] != row_bytes:
        raise ValueError(f"rows of {row_bytes} and {device.shape[1]} bytes: give equal ones")
    if plan.sorted_src is not None:
        _copy_sorted(plan, host, device)
        return
    n, k = plan.src.shape
    units = row_bytes // 16
    _copy[(min(COPY_PROGRAMS, triton.cdiv(n * k, COPY_ROWS)),)](
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
        OVERLAP=_can_overlap(device),
        num_warps=COPY_WARPS,
        launch_pdl=_can_overlap(device),
    )


def _copy_sorted(plan: MissPlan, host: torch.Tensor, device: torch.Tensor) -> None:
    n = plan.counts.shape[0]
    copy_in_order[(address_order.copy_programs(host.numel()),)](
        plan.sorted_src,
        plan.sorted_dst,
        plan.counts,
        host.view(torch.int64),
        device.view(torch.int64),
        n,
        UNITS=host.shape[1] // 16,
        TILE=address_order.COPY_UNITS,
        REQUESTS=triton.next_power_of_2(n),
        num_warps=address_order.COPY_WARPS,
    )


def _can_overlap(tensor: torch.Tensor) -> bool:
    """Whether programs may start before those of the launch before have ended: from Hopper on."""
    return tensor.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(tensor.device) >= (9, 0)


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
    p_numbers,
    p_buckets,
    host_limit,
    max_tokens,
    request_stride,
    K: tl.constexpr,
    B: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    BUCKETS: tl.constexpr,
    BUCKET_BITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    i_n = tl.program_id(0).to(tl.int64)
    o_k = one_a_lane(K)
    ids = tl.load(p_top_k + i_n * K + o_k)
    seq_len = tl.load(p_seq_lens + i_n)
    row = tl.load(p_request_rows + i_n).to(tl.int64)
    now = tl.load(p_step)
    limit = tl.where(i_n < tl.load(p_num_real), tl.minimum(seq_len, max_tokens), 0)
    base = (row * request_stride).to(tl.int32)
    searched = tl.where(seq_len > B, limit, 0)  # a short request is all resident
    inside = (ids >= 0) & (ids < searched)
    newest = inside & (ids == seq_len - 1)
    look = inside & (ids != seq_len - 1)

    p_where = p_token_slots + row * max_tokens
    p_steps = p_slot_steps + row * B
    p_tokens = p_slot_tokens + row * B
    slot = tl.load(p_where + ids, mask=look, other=-1).to(tl.int32)
    hit = look & (slot >= 0) & (slot < B)
    tl.store(p_steps + slot, now, mask=hit)
    result = tl.where(hit, base + slot, tl.where(newest, base + B, -1))
    result = tl.where((ids >= 0) & (ids < limit - searched), base + ids, result)

    missing = look & (slot < 0)
    host = tl.load(p_host_rows + row * max_tokens + ids, mask=missing, other=-1)
    backed = missing & (host >= 0) & (host < host_limit)
    # Of equal ids the one whose mark survives loads the row.
    tl.store(p_where + ids, (-2 - o_k).to(tl.int16), mask=backed)
    tl.debug_barrier()
    mark = tl.load(p_where + ids, mask=backed, other=0).to(tl.int32)
    first = backed & (mark == -2 - o_k)
    count = tl.sum(first.to(tl.int32), 0)
    tl.store(p_counts + i_n, count)
    if count > 0:
        entry = i_n * K
        _make_room(
            p_steps,
            p_tokens,
            p_where,
            p_src + entry,
            p_dst + entry,
            p_scratch + entry,
            p_numbers + entry,
            p_buckets,
            ids,
            host,
            first,
            count,
            now,
            base,
            max_tokens,
            K,
            B,
            SLOTS,
            LANES,
            CHUNK,
            BUCKETS,
            BUCKET_BITS,
        )
        tl.debug_barrier()
        loaded = tl.load(p_where + ids, mask=backed, other=-1).to(tl.int32)
        result = tl.where(backed, base + loaded, result)
    tl.store(p_out + i_n * K + o_k, result)


@triton.jit
def _make_room(
    p_steps,
    p_tokens,
    p_where,
    p_src,
    p_dst,
    p_scratch,
    p_numbers,
    p_buckets,
    ids,
    host,
    first,
    count,
    now,
    base,
    max_tokens,
    K: tl.constexpr,
    B: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    BUCKETS: tl.constexpr,
    BUCKET_BITS: tl.constexpr,
):
    """Give each of the first a slot of the oldest, and write the plan."""
    if BUCKETS:
        number = count_in_buckets(p_buckets, host, first, BUCKET_BITS)  # under way while victims are found
    o_s = one_a_lane(SLOTS)
    step = tl.maximum(tl.load(p_steps + o_s, mask=o_s < B, other=now), -1)
    token = tl.load(p_tokens + o_s, mask=o_s < B, other=-1)
    token = tl.where((token >= 0) & (token < max_tokens), token, -1)  # no state may lead outside of the map
    chosen = oldest(step, token, now, count, SLOTS, LANES)
    rank, at = ranks(first, chosen, K, SLOTS, LANES)
    # Both lists are written by number and read back by number; device rows then take the place of the missed ids.
    tl.store(p_src + rank, host, mask=first)
    tl.store(p_dst + rank, ids, mask=first)
    if BUCKETS:
        tl.store(p_numbers + rank, number, mask=first)
    # Equal empty slots can be too many: the first ones serve.
    tl.store(p_scratch + at, (token.to(tl.int64) << 32) | o_s, mask=chosen & (at < count))
    tl.debug_barrier()
    for start in range(0, count, CHUNK):
        o_m = start + one_a_lane(CHUNK)
        _replace(p_steps, p_tokens, p_where, p_dst, p_scratch, now, base, o_m, o_m < count, B)


@triton.jit
def _replace(p_steps, p_tokens, p_where, p_dst, p_victims, now, base, o_m, inside, B: tl.constexpr):
    """Put the missed tokens number `o_m` in the place of their victims."""
    victim = tl.load(p_victims + o_m, mask=inside, other=0)
    token = tl.load(p_dst + o_m, mask=inside, other=0)
    old = (victim >> 32).to(tl.int32)
    slot = tl.minimum((victim & 0x7FFF).to(tl.int32), B - 1)  # what no call of this state wrote, if steps did not grow
    tl.store(p_where + old, (slot * 0 - 1).to(tl.int16), mask=inside & (old >= 0))
    tl.store(p_tokens + slot, token, mask=inside)
    tl.store(p_steps + slot, now, mask=inside)
    tl.store(p_where + token, slot.to(tl.int16), mask=inside)
    tl.store(p_dst + o_m, base + slot, mask=inside)


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
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    o_n = tl.arange(0, REQUESTS)
    counts = tl.load(p_counts + o_n, mask=o_n < n, other=0)
    ends = tl.cumsum(counts, 0)
    total = tl.sum(counts, 0)
    o_u = tl.arange(0, LANES)[None, :, None]
    o_e = tl.arange(0, 2)[None, None, :]
    hop = tl.num_programs(0) * ROWS
    j = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = _entry(j, counts, ends, K)
    # The first of one request need not wait for its count; what lies past it in the plan is not used.
    src = tl.load(p_src + at, mask=at < n * K, other=0)
    dst = tl.load(p_dst + at, mask=at < n * K, other=0)
    for _ in range(tl.program_id(0) * ROWS, total, hop):
        mask = (j < total)[:, None, None] & (o_u < UNITS) & (o_e < 2)
        values = tl.load(p_host + src[:, None, None] * (UNITS * 2) + o_u * 2 + o_e, mask=mask, other=0)
        # While the rows are under way, look the next ones up.
        j += hop
        at = _entry(j, counts, ends, K)
        src = tl.load(p_src + at, mask=j < total, other=0)
        rows = dst.to(tl.int64)[:, None, None]
        dst = tl.load(p_dst + at, mask=j < total, other=0)
        tl.store(p_device + rows * (UNITS * 2) + o_u * 2 + o_e, values, mask=mask)


@triton.jit
def _entry(j, counts, ends, K: tl.constexpr):
    """Where in the plan the j-th row of the batch stands."""
    if counts.shape[0] == 1:
        return j.to(tl.int64)
    before = ends[None, :] <= j[:, None]
    request = tl.sum(before.to(tl.int32), 1).to(tl.int64)
    return request * K + j - tl.sum(tl.where(before, counts[None, :], 0), 1)
