"""
A pattern for KV rows that depends on layer, request, token and byte: write it, count the rows that differ from it.

Word w (32 bits) of a row is mix(seed + w · C4), seed = mix(layer · C1 + request · C2 + token · C3), modulo 2^32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hsplan_kernels.arrays import INTEGERS, check_array, check_pool, rows_and_columns

ROWS_PER_PROGRAM = 8
WARPS = 4
MAX_ENTRIES = 2**31 - 1  # an entry has an int32 number in the kernels


def fill_rows(
    rows: torch.Tensor, at: torch.Tensor, tokens: torch.Tensor, requests: torch.Tensor, layer: int, *, skip: int = -1
) -> None:
    """
    Write the pattern of `tokens[i, j]` of request `requests[i]` to row `at[i, j]`, where that is a row.

    `rows`: uint8 [R, row bytes], on the device or pinned, from a multiple of 16 bytes on. `at`, `tokens`: int32 or
    int64 [n, m], below 2^31 entries; `requests`: int32 [n]. Entries whose token is `skip` or negative and rows outside
    of R are passed over.

    Raises ValueError for rows that are no multiple of 16 bytes, and for tensors of other shapes or types, with gaps or
    with another start.
    """
    _launch(_fill, rows, at, tokens, requests, None, layer, skip)


def count_wrong_rows(
    rows: torch.Tensor,
    at: torch.Tensor,
    tokens: torch.Tensor,
    requests: torch.Tensor,
    layer: int,
    wrong: torch.Tensor,
    *,
    skip: int = -1,
) -> None:
    """
    Add to `wrong` (int32 [1]) the entries whose row is not the pattern of their token.

    Arrays and errors as in `fill_rows`. An entry with a token and without a row counts as wrong.
    """
    _launch(_count, rows, at, tokens, requests, wrong, layer, skip)


def _launch(
    kernel: triton.JITFunction,
    rows: torch.Tensor,
    at: torch.Tensor,
    tokens: torch.Tensor,
    requests: torch.Tensor,
    wrong: torch.Tensor | None,
    layer: int,
    skip: int,
) -> None:
    n, m = rows_and_columns("at", at)
    if n * m > MAX_ENTRIES:
        raise ValueError(f"at: {n * m} entries: give at most {MAX_ENTRIES} a call")
    check_pool("rows", rows)
    check_array("at", at, (n, m), *INTEGERS)
    check_array("tokens", tokens, (n, m), *INTEGERS)
    check_array("requests", requests, (n,), torch.int32)
    if wrong is not None:
        check_array("wrong", wrong, (1,), torch.int32)
    words = rows.shape[1] // 4
    kernel[(triton.cdiv(n * m, ROWS_PER_PROGRAM),)](
        rows.view(torch.int32),
        at,
        tokens,
        requests,
        wrong,
        n * m,
        rows.shape[0],
        layer,
        skip,
        m,
        WORDS=words,
        LANES=triton.next_power_of_2(words),
        ROWS=ROWS_PER_PROGRAM,
        num_warps=WARPS,
    )


@triton.jit
def _mix(x: tl.tensor) -> tl.tensor:
    x = x.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x6C8E9CF5
    return x ^ (x >> 16)


@triton.jit
def _entries(
    p_at: tl.tensor,
    p_tokens: tl.tensor,
    p_requests: tl.tensor,
    n: tl.tensor,
    num_rows: tl.tensor,
    layer: tl.tensor,
    skip: tl.tensor,
    group: tl.tensor,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Of the program's entries: row, whether it has a token, whether it has a row, and the words it should have."""
    o_i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = o_i < n
    token = tl.load(p_tokens + o_i, mask=inside, other=-1).to(tl.int32)
    request = tl.load(p_requests + o_i // group, mask=inside, other=0)
    row = tl.load(p_at + o_i, mask=inside, other=-1).to(tl.int64)
    asked = inside & (token >= 0) & (token != skip)
    placed = asked & (row >= 0) & (row < num_rows)
    seed = layer * 0x1B873593 + request * 0x2545F491 + token * 0x19D699A5
    o_w = tl.arange(0, LANES)
    words = _mix(_mix(seed)[:, None] + o_w[None, :].to(tl.uint32) * 0x27D4EB2F)
    return row, asked, placed, words.to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["n", "num_rows", "layer", "skip", "group"])
def _fill(
    p_rows: tl.tensor,
    p_at: tl.tensor,
    p_tokens: tl.tensor,
    p_requests: tl.tensor,
    _p_wrong: tl.tensor,
    n: tl.tensor,
    num_rows: tl.tensor,
    layer: tl.tensor,
    skip: tl.tensor,
    group: tl.tensor,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row, _, placed, words = _entries(p_at, p_tokens, p_requests, n, num_rows, layer, skip, group, LANES, ROWS)
    o_w = tl.arange(0, LANES)
    tl.store(p_rows + (row * WORDS)[:, None] + o_w[None, :], words, mask=placed[:, None] & (o_w < WORDS)[None, :])


@triton.jit(do_not_specialize=["n", "num_rows", "layer", "skip", "group"])
def _count(
    p_rows: tl.tensor,
    p_at: tl.tensor,
    p_tokens: tl.tensor,
    p_requests: tl.tensor,
    p_wrong: tl.tensor,
    n: tl.tensor,
    num_rows: tl.tensor,
    layer: tl.tensor,
    skip: tl.tensor,
    group: tl.tensor,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row, asked, placed, words = _entries(p_at, p_tokens, p_requests, n, num_rows, layer, skip, group, LANES, ROWS)
    o_w = tl.arange(0, LANES)
    mask = placed[:, None] & (o_w < WORDS)[None, :]
    found = tl.load(p_rows + (row * WORDS)[:, None] + o_w[None, :], mask=mask, other=0)
    differs = tl.sum((mask & (found != words)).to(tl.int32), 1) > 0
    wrong = tl.sum((asked & (differs | ~placed)).to(tl.int32), 0)
    if wrong > 0:
        tl.atomic_add(p_wrong, wrong)
