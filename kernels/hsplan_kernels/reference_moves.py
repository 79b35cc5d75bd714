"""Plain references of gather, backup and index-K: the kernels' signatures, one row at a time, on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

PAGE_TOKENS = 64
KEY_BYTES = 128
SCALE_BYTES = 4
PAGE_BYTES = 64 * 132


def gather_rows(host: torch.Tensor, device: torch.Tensor, rows: torch.Tensor) -> None:
    """As `hsplan_kernels.gather.gather_rows`."""
    for i, row in enumerate(rows.tolist()):
        if 0 <= row < host.shape[0]:
            device[i] = host[row]


def scatter_rows(device: torch.Tensor, host: torch.Tensor, rows: torch.Tensor) -> None:
    """As `hsplan_kernels.gather.scatter_rows`; of equal rows the last one stays."""
    for i, row in enumerate(rows.tolist()):
        if 0 <= row < host.shape[0]:
            host[row] = device[i]


def backup_rows(
    device_table: torch.Tensor,
    host_table: torch.Tensor,
    src_rows: torch.Tensor,
    dst_rows: torch.Tensor,
    count: torch.Tensor,
    *,
    row_bytes: int,
    num_layers: int,
    device_rows: int,
    host_rows: int,
) -> None:
    """As `hsplan_kernels.backup.backup_rows`; all tensors and all addresses are the CPU's."""
    taken = min(int(count), src_rows.numel())
    for layer in range(num_layers):
        for src, dst in list(zip(src_rows.tolist(), dst_rows.tolist(), strict=True))[: max(taken, 0)]:
            if 0 <= src < device_rows and 0 <= dst < host_rows:
                target = int(host_table[layer]) + dst * row_bytes
                ctypes.memmove(target, int(device_table[layer]) + src * row_bytes, row_bytes)


def stage_pages(
    device_layers: Sequence[torch.Tensor],
    host_layers: Sequence[torch.Tensor],
    device_page_ids: Sequence[int],
    host_page_ids: Sequence[int],
    *,
    page_tokens: int,
    row_bytes: int,
    stream: None = None,
    piece_rows: int | None = None,
) -> None:
    """As `hsplan_kernels.backup.stage_pages`, token by token, on tensors of any device."""
    del row_bytes, stream, piece_rows
    for device, host in zip(device_layers, host_layers, strict=True):
        for device_page, host_page in zip(device_page_ids, host_page_ids, strict=True):
            for token in range(page_tokens):
                host[host_page * page_tokens + token] = device[device_page * page_tokens + token].to(host.device)


def store_index_k(
    table: torch.Tensor,
    page_counts: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    scales: torch.Tensor,
    count: torch.Tensor,
    num_layers: int,
) -> None:
    """As `hsplan_kernels.index_k.store_index_k`; all tensors and all addresses are the CPU's."""
    for layer in range(num_layers):
        for i, slot in enumerate(slots.tolist()[: max(int(count), 0)]):
            if 0 <= slot < int(page_counts[layer]) * PAGE_TOKENS:
                key, scale = _addresses(int(table[layer]), slot)
                ctypes.memmove(key, keys[layer, i].data_ptr(), KEY_BYTES)
                ctypes.memmove(scale, scales[layer, i].data_ptr(), SCALE_BYTES)


def move_index_k(
    table: torch.Tensor,
    page_counts: torch.Tensor,
    src_slots: torch.Tensor,
    dst_slots: torch.Tensor,
    count: torch.Tensor,
    num_layers: int,
) -> None:
    """As `hsplan_kernels.index_k.move_index_k`; all tensors and all addresses are the CPU's."""
    for layer in range(num_layers):
        tokens = int(page_counts[layer]) * PAGE_TOKENS
        for src, dst in list(zip(src_slots.tolist(), dst_slots.tolist(), strict=True))[: max(int(count), 0)]:
            if 0 <= src < tokens and 0 <= dst < tokens:
                src_key, src_scale = _addresses(int(table[layer]), src)
                dst_key, dst_scale = _addresses(int(table[layer]), dst)
                ctypes.memmove(dst_key, src_key, KEY_BYTES)
                ctypes.memmove(dst_scale, src_scale, SCALE_BYTES)


def _addresses(base: int, slot: int) -> tuple[int, int]:
    page = base + slot // PAGE_TOKENS * PAGE_BYTES
    token = slot % PAGE_TOKENS
    return page + token * KEY_BYTES, page + PAGE_TOKENS * KEY_BYTES + token * SCALE_BYTES
