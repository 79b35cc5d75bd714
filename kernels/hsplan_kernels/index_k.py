"""
Index-K rows: store new keys and scales of the indexer, move them between token slots, in layers that have any.

A page is 8448 bytes: the 64 keys of its tokens (128 bytes each), then their 64 fp32 scales. Token slot s is number
s % 64 of page s // 64. A layer that reuses another's top-k is elided: it has no pages, and its address is not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hsplan_kernels.arrays import INTEGERS, check_array, check_memory

PAGE_TOKENS = 64
KEY_BYTES = 128
PAGE_BYTES = PAGE_TOKENS * (KEY_BYTES + 4)
TOKENS_PER_PROGRAM = 32
WARPS = 4


def store_index_k(
    table: torch.Tensor,
    page_counts: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    scales: torch.Tensor,
    count: torch.Tensor,
    num_layers: int,
) -> None:
    """
    Write `keys[l, i]` and `scales[l, i]` to token slot `slots[i]` of every layer l that has pages, for i < `count`.

    `table`: int64 [num_layers], addresses of layers uint8 [pages, 8448]; `page_counts`: int32 or int64 [num_layers],
    0 for an elided layer. `slots`: int32 or int64 [n], the same for all layers, distinct. `keys`: uint8
    [num_layers, n, 128]; `scales`: fp32 [num_layers, n], moved as bits. `count`: int32 [1], entries from it on are
    padding. All tensors lie on the device. A slot that is negative or past a layer's pages is skipped in that layer.
    No host sync and no allocation: may be captured in a CUDA graph.

    Raises ValueError for tensors of other shapes or types or with gaps, and for keys that do not start at a multiple
    of 16 bytes.
    """
    n = slots.numel()
    _check(table, page_counts, count, num_layers)
    check_array("slots", slots, (n,), *INTEGERS)
    check_array("keys", keys, (num_layers, n, KEY_BYTES), torch.uint8)
    check_memory("keys", keys)
    check_array("scales", scales, (num_layers, n), torch.float32)
    if n and num_layers:
        _store[(triton.cdiv(n, TOKENS_PER_PROGRAM), num_layers)](
            table,
            page_counts,
            slots,
            keys.view(torch.int64),
            scales.view(torch.int32),
            count,
            n,
            TOKENS=TOKENS_PER_PROGRAM,
            num_warps=WARPS,
        )


def move_index_k(
    table: torch.Tensor,
    page_counts: torch.Tensor,
    src_slots: torch.Tensor,
    dst_slots: torch.Tensor,
    count: torch.Tensor,
    num_layers: int,
) -> None:
    """
    Copy key and scale of token slot `src_slots[i]` to `dst_slots[i]` in every layer that has pages, for i < `count`.

    Tensors as in `store_index_k`; `src_slots`, `dst_slots`: int32 or int64 [n], no slot in both, targets distinct.
    An entry with either slot negative or past a layer's pages is skipped in that layer.

    Raises ValueError for tensors of other shapes or types or with gaps.
    """
    n = src_slots.numel()
    _check(table, page_counts, count, num_layers)
    check_array("src_slots", src_slots, (n,), *INTEGERS)
    check_array("dst_slots", dst_slots, (n,), *INTEGERS)
    if n and num_layers:
        _move[(triton.cdiv(n, TOKENS_PER_PROGRAM), num_layers)](
            table, page_counts, src_slots, dst_slots, count, n, TOKENS=TOKENS_PER_PROGRAM, num_warps=WARPS
        )


def _check(table: torch.Tensor, page_counts: torch.Tensor, count: torch.Tensor, num_layers: int) -> None:
    check_array("table", table, (num_layers,), torch.int64)
    check_array("page_counts", page_counts, (num_layers,), *INTEGERS)
    check_array("count", count, (1,), torch.int32)


@triton.jit(do_not_specialize=["n"])
def _store(
    p_table: tl.tensor,
    p_page_counts: tl.tensor,
    p_slots: tl.tensor,
    p_keys: tl.tensor,
    p_scales: tl.tensor,
    p_count: tl.tensor,
    n: tl.tensor,
    TOKENS: tl.constexpr,
) -> None:
    layer = tl.program_id(1).to(tl.int64)
    tokens = tl.load(p_page_counts + layer).to(tl.int64) * 64
    if tokens > 0:
        base = tl.load(p_table + layer)
        o_token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
        given = o_token < tl.minimum(tl.load(p_count), n)
        slot = tl.load(p_slots + o_token, mask=given, other=-1).to(tl.int64)
        valid = given & (slot >= 0) & (slot < tokens)
        o_entry = layer * n + o_token
        o_word = tl.arange(0, 16)
        key = tl.load(p_keys + o_entry[:, None] * 16 + o_word[None, :], mask=valid[:, None], other=0)  # [TOKENS, 16]
        scale = tl.load(p_scales + o_entry, mask=valid, other=0)
        tl.store(_keys(base) + _key_words(slot)[:, None] + o_word[None, :], key, mask=valid[:, None])
        tl.store(_scales(base) + _scale_word(slot), scale, mask=valid)


@triton.jit(do_not_specialize=["n"])
def _move(
    p_table: tl.tensor,
    p_page_counts: tl.tensor,
    p_src_slots: tl.tensor,
    p_dst_slots: tl.tensor,
    p_count: tl.tensor,
    n: tl.tensor,
    TOKENS: tl.constexpr,
) -> None:
    layer = tl.program_id(1).to(tl.int64)
    tokens = tl.load(p_page_counts + layer).to(tl.int64) * 64
    if tokens > 0:
        base = tl.load(p_table + layer)
        o_token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
        given = o_token < tl.minimum(tl.load(p_count), n)
        src = tl.load(p_src_slots + o_token, mask=given, other=-1).to(tl.int64)
        dst = tl.load(p_dst_slots + o_token, mask=given, other=-1).to(tl.int64)
        valid = given & (src >= 0) & (src < tokens) & (dst >= 0) & (dst < tokens)
        o_word = tl.arange(0, 16)
        key = tl.load(_keys(base) + _key_words(src)[:, None] + o_word[None, :], mask=valid[:, None], other=0)
        scale = tl.load(_scales(base) + _scale_word(src), mask=valid, other=0)
        tl.store(_keys(base) + _key_words(dst)[:, None] + o_word[None, :], key, mask=valid[:, None])
        tl.store(_scales(base) + _scale_word(dst), scale, mask=valid)


@triton.jit
def _keys(base: tl.tensor) -> tl.tensor:
    return tl.multiple_of(base.to(tl.pointer_type(tl.int64)), 16)


@triton.jit
def _scales(base: tl.tensor) -> tl.tensor:
    return base.to(tl.pointer_type(tl.int32))


@triton.jit
def _key_words(slot: tl.tensor) -> tl.tensor:
    return slot // 64 * 1056 + slot % 64 * 16  # words of 8 bytes; a page has 8448 // 8


@triton.jit
def _scale_word(slot: tl.tensor) -> tl.tensor:
    return slot // 64 * 2112 + 2048 + slot % 64  # words of 4 bytes; a page has 8448 // 4, its keys take 8192 // 4
