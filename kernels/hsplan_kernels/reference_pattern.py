"""The pattern in plain torch, for tensors of the CPU, with the kernels' signatures; see `hsplan_kernels.pattern`."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def fill_rows(
    rows: torch.Tensor, at: torch.Tensor, tokens: torch.Tensor, requests: torch.Tensor, layer: int, *, skip: int = -1
) -> None:
    """As `hsplan_kernels.pattern.fill_rows`, one row at a time."""
    for i, request in enumerate(requests.tolist()):
        for row, token in zip(at[i].tolist(), tokens[i].tolist(), strict=True):
            if token >= 0 and token != skip and 0 <= row < rows.shape[0]:
                rows[row] = row_of(layer, request, token, rows.shape[1])


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
    """As `hsplan_kernels.pattern.count_wrong_rows`, one row at a time."""
    for i, request in enumerate(requests.tolist()):
        for row, token in zip(at[i].tolist(), tokens[i].tolist(), strict=True):
            if token < 0 or token == skip:
                continue
            if not 0 <= row < rows.shape[0] or not torch.equal(rows[row], row_of(layer, request, token, rows.shape[1])):
                wrong += 1


def row_of(layer: int, request: int, token: int, row_bytes: int) -> torch.Tensor:
    """uint8 [row_bytes], the pattern of one token in one layer."""
    seed = _mix(layer * 0x1B873593 + request * 0x2545F491 + token * 0x19D699A5)
    words = [_mix(seed + w * 0x27D4EB2F) for w in range(row_bytes // 4)]
    return torch.frombuffer(bytearray(b"".join(word.to_bytes(4, "little") for word in words)), dtype=torch.uint8)


def _mix(x: int) -> int:
    x &= _MASK
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x6C8E9CF5 & _MASK
    return x ^ (x >> 16)
