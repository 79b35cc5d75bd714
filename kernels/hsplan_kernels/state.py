"""What swap-in keeps between steps: which token lies in which hot slot, when it was last used, and the miss plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hsplan_kernels.arrays import check_array, check_numbers, rows_and_columns

MAX_SLOTS = 2**15  # slot numbers are int16
MAX_TOKENS = 2**21
MAX_DEVICE_ROWS = 2**31 - 1  # device rows are int32
NEVER = -1
# Plans of so many entries for pools of so many rows are read in address order: there it took 0.66 to 0.9 of the time.
SORTED_ENTRIES, SORTED_POOL_ROWS = 2**15, 2**22
BUCKETS = 1024  # of host rows, in which a copy keeps no order


@dataclass(frozen=True, kw_only=True, slots=True)
class SwapState:
    """
    Hot buffers of R requests in one layer that computes top-k; layers that share its top-k share its state.

    `slot_tokens`, `slot_steps`: int32 [R, B], the token in a slot (−1: empty) and the step of its last use.
    `token_slots`: int16 [R, C], the slot of a token (−1: not on the GPU). `host_rows`: int64 [R, C], the host pool
    row of a token (−1: not backed), shared by all layers. `host_limit`: rows of the host pool. `page_tokens`: slots
    behind the B; the first of them holds the newest token.

    Device row of a slot: request row × (B + page) + slot, below 2^31. B from 1 to 32768, C below 2^21.

    Raises ValueError for other sizes, and for tensors of other shapes or types or with gaps.
    """

    slot_tokens: torch.Tensor
    slot_steps: torch.Tensor
    token_slots: torch.Tensor
    host_rows: torch.Tensor
    host_limit: int
    page_tokens: int

    def __post_init__(self) -> None:
        requests, slots = rows_and_columns("slot_tokens", self.slot_tokens)
        _, max_tokens = rows_and_columns("token_slots", self.token_slots)
        _check_sizes(requests, slots, self.page_tokens, max_tokens)
        check_array("slot_tokens", self.slot_tokens, (requests, slots), torch.int32)
        check_array("slot_steps", self.slot_steps, (requests, slots), torch.int32)
        check_array("token_slots", self.token_slots, (requests, max_tokens), torch.int16)
        check_array("host_rows", self.host_rows, (requests, max_tokens), torch.int64)

    @property
    def slots(self) -> int:
        """Slots of the LRU, B."""
        return int(self.slot_tokens.shape[1])

    @property
    def slots_and_page(self) -> int:
        """Device rows of one request."""
        return self.slots + self.page_tokens

    @property
    def max_tokens(self) -> int:
        """Tokens that a request can have, C."""
        return int(self.token_slots.shape[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class MissPlan:
    """
    Rows to load, recorded by one resolve and replayed by every layer that shares its top-k.

    `src`: int64 [n, K] host pool rows, `dst`: int32 [n, K] device rows, `counts`: int32 [n] of each request.
    `scratch`: int64 [n, K], used within a call. `sorted_src`, `sorted_dst`: None where host pools are small, else
    [n × K]: the same rows for all requests together, roughly by address. Used to find that order: `buckets`, int32, to
    count the rows with, a bucket being 2^`bucket_bits` host rows; `numbers`, int32 [n, K], of a row in its bucket.

    Raises ValueError for tensors of other shapes or types or with gaps.
    """

    src: torch.Tensor
    dst: torch.Tensor
    counts: torch.Tensor
    scratch: torch.Tensor
    sorted_src: torch.Tensor | None
    sorted_dst: torch.Tensor | None
    numbers: torch.Tensor
    buckets: torch.Tensor
    bucket_bits: int

    def __post_init__(self) -> None:
        shape = requests, top_k = rows_and_columns("src", self.src)
        check_numbers(requests=requests, top_k=top_k)
        check_array("src", self.src, shape, torch.int64)
        check_array("dst", self.dst, shape, torch.int32)
        check_array("counts", self.counts, (requests,), torch.int32)
        check_array("scratch", self.scratch, shape, torch.int64)
        check_array("numbers", self.numbers, shape, torch.int32)
        check_array("buckets", self.buckets, (BUCKETS + 1,), torch.int32)
        if (self.sorted_src is None) != (self.sorted_dst is None):
            raise ValueError("sorted_src without sorted_dst, or the other way: give both or none")
        if self.sorted_src is not None and self.sorted_dst is not None:
            check_array("sorted_src", self.sorted_src, (requests * top_k,), torch.int64)
            check_array("sorted_dst", self.sorted_dst, (requests * top_k,), torch.int32)


def new_state(
    host_rows: torch.Tensor, *, slots: int, page_tokens: int, host_limit: int, device: torch.device | str
) -> SwapState:
    """
    State of requests that start short: token t lies in slot t, and has not been used.

    `host_rows` int64 [R, C]: the state shares its memory where it is contiguous and lies on `device`, else it is
    copied; write later changes to the state's. Raises ValueError for sizes that the slot, token or device row numbers
    cannot hold, and for host rows of another type.
    """
    requests, max_tokens = rows_and_columns("host_rows", host_rows)
    _check_sizes(requests, slots, page_tokens, max_tokens)
    resident = min(slots, max_tokens)
    tokens = torch.full((requests, slots), -1, dtype=torch.int32, device=device)
    where = torch.full((requests, max_tokens), -1, dtype=torch.int16, device=device)
    tokens[:, :resident] = torch.arange(resident, dtype=torch.int32, device=device)
    where[:, :resident] = torch.arange(resident, device=device).to(torch.int16)
    return SwapState(
        slot_tokens=tokens,
        slot_steps=torch.full((requests, slots), NEVER, dtype=torch.int32, device=device),
        token_slots=where,
        host_rows=host_rows.to(device).contiguous(),
        host_limit=host_limit,
        page_tokens=page_tokens,
    )


def new_plan(requests: int, top_k: int, device: torch.device | str, *, pool_rows: int = 0) -> MissPlan:
    """
    An empty plan for batches of up to `requests`.

    `pool_rows`: rows of a layer's host pool, at least the state's `host_limit`; 0 where address order is not wanted.
    Raises ValueError for a plan without entries.
    """
    check_numbers(requests=requests, top_k=top_k)
    src = torch.zeros((requests, top_k), dtype=torch.int64, device=device)
    dst = torch.zeros((requests, top_k), dtype=torch.int32, device=device)
    in_order = pool_rows >= SORTED_POOL_ROWS and requests * top_k >= SORTED_ENTRIES
    return MissPlan(
        src=src,
        dst=dst,
        counts=torch.zeros(requests, dtype=torch.int32, device=device),
        scratch=torch.zeros((requests, top_k), dtype=torch.int64, device=device),
        sorted_src=torch.zeros_like(src).view(-1) if in_order else None,
        sorted_dst=torch.zeros_like(dst).view(-1) if in_order else None,
        numbers=torch.zeros_like(dst),
        buckets=torch.zeros(BUCKETS + 1, dtype=torch.int32, device=device),
        bucket_bits=max((pool_rows - 1).bit_length() - BUCKETS.bit_length() + 1, 0),
    )


def _check_sizes(requests: int, slots: int, page_tokens: int, max_tokens: int) -> None:
    check_numbers(slots=slots, page_tokens=page_tokens)
    if slots > MAX_SLOTS:
        raise ValueError(f"{slots} slots: give 1 to {MAX_SLOTS}")
    if max_tokens >= MAX_TOKENS:
        raise ValueError(f"{max_tokens} tokens a request: give fewer than {MAX_TOKENS}")
    if requests * (slots + page_tokens) > MAX_DEVICE_ROWS:
        raise ValueError(f"{requests} requests of {slots} + {page_tokens} slots: give at most {MAX_DEVICE_ROWS} slots")
