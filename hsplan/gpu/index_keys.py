"""Index keys of decoded tokens: stored in the layers that compute top-k, moved, and every byte of the pools checked."""

from __future__ import annotations

import torch

from hsplan.gpu.faults import Fault
from hsplan_kernels import index_k, pattern
from hsplan_kernels.memory import pointer_table

POISON = 0xA5
_KEYS = 1 << 20  # keeps the pattern of keys apart from that of rows


class IndexKeys:
    """
    `layers`: uint8 [pages, 8448] of each layer on the device, without pages where index-K is elided.

    Token slot s of a request is its host row, as the engine numbers logical tokens.
    """

    def __init__(self, layers: list[torch.Tensor], requests: int, fault: Fault | None = None) -> None:
        self.layers, self.requests = layers, requests
        device = layers[0].device
        self._table = pointer_table(layers)
        self._pages = torch.tensor([layer.shape[0] for layer in layers], dtype=torch.int32, device=device)
        if fault == "elided-layer-written":
            first = next(i for i, layer in enumerate(layers) if not layer.numel())
            self._table[first], self._pages[first] = self._table[first - 1], self._pages[first - 1]
        owner = torch.arange(len(layers), dtype=torch.int32, device=device)[:, None]
        self._names = (owner * _KEYS + torch.arange(requests, dtype=torch.int32, device=device)).view(-1)
        self._keys = torch.zeros((len(layers), requests, index_k.KEY_BYTES), dtype=torch.uint8, device=device)
        self._count = torch.full((1,), requests, dtype=torch.int32, device=device)
        for layer in layers:
            layer.fill_(POISON)

    def store(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """The keys of one token of each request, int32 [requests], to its slot int64 [requests]."""
        index_k.store_index_k(
            self._table, self._pages, slots, self._fill(tokens), self._scales(tokens), self._count, len(self.layers)
        )

    def move(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Keys and scales of slots `src` to `dst`, int64 [requests]."""
        index_k.move_index_k(self._table, self._pages, src, dst, self._count, len(self.layers))

    def wrong_keys(self, tokens: torch.Tensor, slots: torch.Tensor) -> int:
        """Owner layers' keys of one token of each request, at its slot (−1: none), that are not the token's."""
        keys, scales = self._fill(tokens).clone(), self._scales(tokens)
        page, at = slots // index_k.PAGE_TOKENS, slots % index_k.PAGE_TOKENS
        wrong = 0
        for i, layer in enumerate(self.layers):
            if layer.numel():
                found, scale = _parts(layer)
                differs = (found[page, at] != keys[i]).any(-1) | (scale[page, at] != scales[i].view(torch.int32))
                wrong += int((differs & (slots >= 0)).sum())
        return wrong

    def forget(self, slots: torch.Tensor) -> None:
        """Poison the keys at `slots` (−1: none) again."""
        slots = slots[slots >= 0]
        page, at = slots // index_k.PAGE_TOKENS, slots % index_k.PAGE_TOKENS
        poison = torch.full((4,), POISON, dtype=torch.uint8).view(torch.int32).item()
        for layer in self.layers:
            if layer.numel():
                found, scale = _parts(layer)
                found[page, at], scale[page, at] = POISON, poison

    def touched_bytes(self) -> int:
        """Bytes that are not poison."""
        return sum(int((part != POISON).sum()) for layer in self.layers for part in layer.split(2**16))

    def _fill(self, tokens: torch.Tensor) -> torch.Tensor:
        keys = self._keys.view(-1, index_k.KEY_BYTES)
        at = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)[:, None]
        pattern.fill_rows(keys, at, tokens.repeat(len(self.layers))[:, None], self._names, -1)
        return self._keys

    def _scales(self, tokens: torch.Tensor) -> torch.Tensor:
        layer = torch.arange(len(self.layers), dtype=torch.int32, device=tokens.device)[:, None]
        return (tokens[None] * 128 + layer).view(torch.float32)


def _parts(layer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a layer: keys uint8 [pages, 64, 128] and the bits of scales int32 [pages, 64]."""
    keys_bytes = index_k.PAGE_TOKENS * index_k.KEY_BYTES
    keys = layer[:, :keys_bytes].unflatten(1, (index_k.PAGE_TOKENS, index_k.KEY_BYTES))
    return keys, layer.view(torch.int32)[:, keys_bytes // 4 :]
