"""Pools of one rank, allocated from the engine's shapes, and the ledger compared with what the allocator took."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from hsplan.engines import Buffer, Line
from hsplan.gpu.place import Place
from hsplan.measurement import LineCheck
from hsplan_kernels.host_pool import HostPool

WEIGHT_PIECE_BYTES = 2**30
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096


class RankPools:
    """
    The tensors of `buffers`: `gpu` by ledger line, `host` the host pool (None without one).

    `taken_bytes`: what each line took, by the allocator's own count.
    """

    def __init__(self) -> None:
        self.gpu: dict[str, list[torch.Tensor]] = {}
        self.host: HostPool | None = None
        self.taken_bytes: dict[str, int] = {}

    def host_layers(self) -> list[torch.Tensor]:
        """One tensor uint8 [rows, row bytes] a layer; none without offload."""
        return self.host.layers if self.host is not None else []

    def rows(self) -> list[torch.Tensor]:
        """KV rows on the device, uint8 [rows, row bytes] a layer."""
        return [tensor.view(tensor.shape[0], -1) for tensor in self.gpu["KV rows"]]


@contextlib.contextmanager
def allocated(buffers: Sequence[Buffer], place: Place) -> Iterator[RankPools]:
    """
    Allocate the tensors, in their order, without writing to those of the GPU; all are free again at the end.

    Raises torch.OutOfMemoryError and hsplan_kernels.memory.HostMemoryError.
    """
    pools = RankPools()
    try:
        for buffer in buffers:
            before = _taken(buffer.place, place)
            if buffer.place == "host":
                rows, row_bytes = buffer.shape
                pools.host = HostPool(buffer.count, rows, row_bytes)
            else:
                tensors = [_empty(buffer, place) for _ in range(buffer.count)]
                pools.gpu.setdefault(buffer.line, []).extend(tensors)
            taken = _taken(buffer.place, place) - before if place.is_gpu else buffer.bytes
            pools.taken_bytes[buffer.line] = pools.taken_bytes.get(buffer.line, 0) + taken
        yield pools
    finally:
        if pools.host is not None:
            pools.host.close()
        pools.gpu.clear()
        if place.is_gpu:
            torch.cuda.empty_cache()  # pinning and loading kernels need memory that torch does not hold


@contextlib.contextmanager
def placeholder(n_bytes: int, place: Place) -> Iterator[None]:
    """Take `n_bytes` of the GPU for weights that are not loaded."""
    sizes = [min(WEIGHT_PIECE_BYTES, n_bytes - at) for at in range(0, n_bytes, WEIGHT_PIECE_BYTES)]
    held = [torch.empty(size, dtype=torch.uint8, device=place.device) for size in sizes]
    try:
        yield
    finally:
        held.clear()


def compared(lines: Sequence[Line], taken_bytes: Mapping[str, int]) -> tuple[LineCheck, ...]:
    """Every ledger line that has tensors, against what they took."""
    return tuple(
        LineCheck(
            name=line.name,
            place=line.place,
            predicted_bytes=line.bytes,
            measured_bytes=taken_bytes[line.name],
        )
        for line in lines
        if line.name in taken_bytes
    )


def by_shape(buffers: Sequence[Buffer]) -> dict[str, int]:
    """Bytes of each line's tensors by their shapes, nothing allocated."""
    taken: dict[str, int] = {}
    for buffer in buffers:
        taken[buffer.line] = taken.get(buffer.line, 0) + buffer.bytes
    return taken


def index_layers(pools: RankPools, owners: Sequence[bool]) -> list[torch.Tensor]:
    """Index-K of each layer, in the order of the layers: without pages where it is elided."""
    held, elided = pools.gpu["index-K"][: sum(owners)], pools.gpu["index-K"][sum(owners) :]
    return [(held if owner else elided).pop(0) for owner in owners]


def one_layer_less(lines: Sequence[Line], layers: int) -> list[Line]:
    """The ledger without the KV rows of one layer: the fault `ledger-formula`."""
    return [
        msgspec.structs.replace(line, bytes=line.bytes * (layers - 1) // layers) if line.name == "KV rows" else line
        for line in lines
    ]


def one_page_short(buffers: Sequence[Buffer], page_tokens: int) -> tuple[Buffer, ...]:
    """The buffers with one page less in every pool of rows: the fault `short-pool`."""
    return tuple(
        msgspec.structs.replace(buffer, shape=(buffer.shape[0] - page_tokens, *buffer.shape[1:]))
        if buffer.line in {"KV rows", "host KV pool"}
        else buffer
        for buffer in buffers
    )


def _empty(buffer: Buffer, place: Place) -> torch.Tensor:
    return torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=place.device)


def _taken(where: str, place: Place) -> int:
    """Bytes taken so far: by the GPU's allocator, or the resident memory of this process."""
    if where == "host":
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    return torch.cuda.memory_allocated() if place.is_gpu else 0
