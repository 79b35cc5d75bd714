"""
What hot buffers must hold: the eviction rule applied to whole batches, from the trace alone.

After a call the B slots of a request hold the B largest of (step of last use, token id) over what they held and what
was used now. The kernels' state is never read here; `hsplan_kernels.reference` states the same rule token by token.
"""

from __future__ import annotations

import torch

TOKEN_BITS = 21
_TOKEN = 2**TOKEN_BITS - 1
_EMPTY = -1


def in_order(slot_tokens: torch.Tensor, slot_steps: torch.Tensor) -> torch.Tensor:
    """
    Slots as (step of last use, token id) in one int64, the latest first.

    Both int32 [groups, requests, B], slots in any order, token −1 for an empty one.
    """
    tokens, steps = slot_tokens.to(torch.int64), slot_steps.to(torch.int64)
    return torch.where(tokens >= 0, steps << TOKEN_BITS | tokens, _EMPTY).sort(-1, descending=True).values


class ExpectedOrder:
    """Slots of `groups` layers × `requests` requests, empty at first."""

    def __init__(self, groups: int, requests: int, slots: int, context: int, device: str) -> None:
        self._sizes = (groups, requests, context)
        self._keys = torch.full((groups, requests, slots), _EMPTY, dtype=torch.int64, device=device)

    def step(self, ids: torch.Tensor, lens: torch.Tensor, now: int) -> torch.Tensor:
        """
        Use `ids` int32 [groups, requests, K] (distinct, below `lens` int32 [requests]) at step `now`.

        Returns the misses of each request, int64 [groups, requests]. The newest token (length − 1) has a slot of its
        own and counts for nothing. Every token is backed.
        """
        context = self._sizes[-1]
        newest = lens.to(torch.int64)[None, :, None] - 1
        ids = ids.to(torch.int64)
        held = torch.where(self._keys >= 0, self._keys & _TOKEN, context)
        used = self._marks(torch.where(ids == newest, context, ids))
        missed = ~self._marks(held).gather(-1, ids) & (ids != newest)
        refreshed = torch.where(used.gather(-1, held) & (self._keys >= 0), now << TOKEN_BITS | held, self._keys)
        loaded = torch.where(missed, now << TOKEN_BITS | ids, _EMPTY)
        merged = torch.cat([refreshed, loaded], -1).sort(-1, descending=True).values
        self._keys = merged[..., : self._keys.shape[-1]]
        return missed.sum(-1)

    def wrong_slots(self, order: torch.Tensor) -> torch.Tensor:
        """Places in the order of use (`in_order`) that differ, int64 []: a missing slot shifts those behind it."""
        return (order != self._keys).sum()

    def _marks(self, tokens: torch.Tensor) -> torch.Tensor:
        """Bool [groups, requests, context + 1], true at `tokens`; number `context` stands for none and stays false."""
        groups, requests, context = self._sizes
        marks = torch.zeros((groups, requests, context + 1), dtype=torch.bool, device=tokens.device)
        marks.scatter_(-1, tokens, value=True)
        marks[..., context] = False
        return marks
