"""
Address order: the misses of a whole batch, bucket by bucket of host rows, so that a copy walks up the host pool.

In a pool of many GiB the GPU spends its time looking addresses up; neighbours in time that are neighbours in memory
share what was looked up. `resolve` counts its misses per bucket, and one more launch writes the order. No launch is
made ready early here: that took 13 to 25 µs more over 2.6 GiB, and saved 1.5 µs over 10.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hsplan_kernels.victims import one_a_lane

CHUNK = 512
WARPS = 8
COPY_UNITS = 1024  # of 16 bytes, under way in a program
COPY_WARPS = 16
LARGE_POOL_BYTES = 8 * 2**30


def copy_programs(pool_bytes: int) -> int:
    """
    Programs of `copy_in_order` for one layer's host pool, the fastest of 8 to 128 tried on an H200.

    Over 2.6 GiB 16 and fewer leave the link idle; over 10 and 20 GiB more of them look up more addresses at a time.
    """
    return 8 if pool_bytes >= LARGE_POOL_BYTES else 32


@triton.jit
def count_in_buckets(p_buckets, host, inside, BUCKET_BITS: tl.constexpr) -> tl.tensor:
    """Count host rows in their buckets; the number that each got in its bucket."""
    return tl.atomic_add(p_buckets + (host >> BUCKET_BITS), 1, mask=inside, sem="relaxed")


@triton.jit
def write_order(
    p_src,
    p_dst,
    p_counts,
    p_numbers,
    p_buckets,
    p_sorted_src,
    p_sorted_dst,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    BUCKETS: tl.constexpr,
    BUCKET_BITS: tl.constexpr,
) -> None:
    """Write the rows of the plan in address order, one program a request; the last to end empties the buckets."""
    i_n = tl.program_id(0).to(tl.int64)
    count = tl.load(p_counts + i_n)
    o_b = tl.arange(0, BUCKETS)
    held = tl.load(p_buckets + o_b)
    firsts = tl.cumsum(held, 0) - held
    for start in range(0, count, CHUNK):
        o = start + one_a_lane(CHUNK)
        inside = o < count
        src = tl.load(p_src + i_n * K + o, mask=inside, other=0)
        dst = tl.load(p_dst + i_n * K + o, mask=inside, other=0)
        number = tl.load(p_numbers + i_n * K + o, mask=inside, other=0)
        at = tl.gather(firsts, (src >> BUCKET_BITS).to(tl.int32), 0) + number
        tl.store(p_sorted_src + at, src, mask=inside)
        tl.store(p_sorted_dst + at, dst, mask=inside)
    p_arrived = p_buckets + BUCKETS
    tl.debug_barrier()
    if tl.atomic_add(p_arrived, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(p_buckets + o_b, 0)
        tl.store(p_arrived, 0)


@triton.jit
def copy_in_order(
    p_src,
    p_dst,
    p_counts,
    p_host,
    p_device,
    n,
    UNITS: tl.constexpr,
    TILE: tl.constexpr,
    REQUESTS: tl.constexpr,
) -> None:
    """Load the rows in the order that was written: `UNITS` pieces of 16 bytes each, one piece a lane."""
    o_n = tl.arange(0, REQUESTS)
    total = tl.sum(tl.load(p_counts + o_n, mask=o_n < n, other=0), 0).to(tl.int64) * UNITS
    o_word = tl.arange(0, 2)[None, :]
    first = tl.program_id(0).to(tl.int64) * TILE
    for start in range(first, total, tl.num_programs(0) * TILE):
        o = start + tl.arange(0, TILE)
        inside = o < total
        src = tl.load(p_src + o // UNITS, mask=inside, other=0)
        dst = tl.load(p_dst + o // UNITS, mask=inside, other=0).to(tl.int64)
        o_src = ((src * UNITS + o % UNITS) * 2)[:, None] + o_word
        o_dst = ((dst * UNITS + o % UNITS) * 2)[:, None] + o_word
        words = tl.load(p_host + o_src, mask=inside[:, None], other=0)
        tl.store(p_device + o_dst, words, mask=inside[:, None])
