"""
A host pool of exact size, pinned for the GPU: layers and rows go in, one zero-copy tensor a layer comes out.

Pinned allocations of torch round up to a power of two (pytorch #95823), so the pool maps anonymous memory itself and
registers it with the CUDA driver. Without a GPU the same memory stays unregistered.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from hsplan_kernels.arrays import check_numbers, check_row_bytes
from hsplan_kernels.memory import HostMemoryError, cuda_present, host_limits, register, unregister

PAGE_BYTES = max(4096, mmap.PAGESIZE)
PIECE_BYTES = 64 * 2**30  # one registration of 512 GiB fails on R580+ drivers (open-gpu-kernel-modules #1234)
TOUCH_BYTES = 2**30  # a Ctrl-C waits for one such part
NODES = Path("/sys/devices/system/node")
_MPOL_BIND = 2
_MBIND = {"x86_64": 237, "aarch64": 235}  # system call numbers


class HostPool:
    """
    `num_layers` tensors uint8 [rows, row_bytes] of host memory, layer after layer, each at a page boundary.

    `layers`: the tensors, views of one mapping. `bytes`: what the mapping takes, layers rounded up to 4096 bytes and
    nothing else. `registered`: the GPU reads it by pointer and copies to and from it asynchronously. `huge_pages`:
    the kernel took the advice to use them. `piece_rows`: no registration crosses a multiple of so many rows of a
    layer, which is `rows` unless a layer is larger than `piece_bytes`.

    A context manager. `close` gives the memory back, on every way out: the end of the block, an exception or Ctrl-C
    while it is built, garbage collection, the end of the interpreter. Tensors taken from `layers` are useless then.

    `numa_node`: where the memory lies; a machine that shows no nodes or one has nothing to bind to.

    Raises ValueError for sizes that are not whole numbers from 1 on, rows that are no multiple of 16 bytes and a NUMA
    node that the machine does not have, HostMemoryError where the machine does not give the memory. Whether it has as
    much free is not asked, only what the cgroup grants.
    """

    def __init__(
        self,
        num_layers: int,
        rows: int,
        row_bytes: int,
        *,
        huge_pages: bool = True,
        numa_node: int | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        _check_sizes(num_layers, rows, row_bytes, piece_bytes)
        node = _node(numa_node)
        layer_bytes = rows * row_bytes
        stride = -(-layer_bytes // PAGE_BYTES) * PAGE_BYTES
        self.bytes = num_layers * stride
        mapping = _map(self.bytes)
        registered: list[int] = []
        self._release = weakref.finalize(self, _release, mapping, registered)
        try:
            pieces = registration_pieces(num_layers, rows, row_bytes, piece_bytes)
            self.piece_rows = rows if stride <= piece_bytes else pieces[0][1] // row_bytes
            self.layers = [
                torch.frombuffer(mapping, dtype=torch.uint8, count=layer_bytes, offset=layer * stride).view(rows, -1)
                for layer in range(num_layers)
            ]
            address = self.layers[0].data_ptr()
            self.huge_pages = huge_pages and _advise_huge(mapping)
            if node is not None:
                _bind(address, self.bytes, node)
            _touch(mapping)
            self.registered = cuda_present()
            if self.registered:
                for offset, size in pieces:
                    _register_piece(address + offset, size, registered)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the GPU, unregister and give the memory back; a second call does nothing."""
        self.layers = []
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def registration_pieces(num_layers: int, rows: int, row_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """
    Offset and bytes of each piece to register, in order and without gaps; none above `piece_bytes`.

    Edges lie between layers; inside a layer only when it is larger than a piece, then between two rows that meet at
    a page boundary. Raises ValueError for sizes that are not whole numbers from 1 on, for rows that are no multiple of
    16 bytes, and when not even one such group of rows fits into a piece.
    """
    _check_sizes(num_layers, rows, row_bytes, piece_bytes)
    stride = -(-rows * row_bytes // PAGE_BYTES) * PAGE_BYTES
    if stride <= piece_bytes:
        step = piece_bytes // stride * stride
        return [(start, min(step, num_layers * stride - start)) for start in range(0, num_layers * stride, step)]
    group = math.lcm(row_bytes, PAGE_BYTES)
    step = piece_bytes // group * group
    if not step:
        raise ValueError(f"pieces of {piece_bytes} bytes: rows of {row_bytes} bytes need at least {group}")
    starts = [layer * stride + start for layer in range(num_layers) for start in range(0, stride, step)]
    return [(start, min(step, stride - start % stride)) for start in starts]


def _check_sizes(num_layers: int, rows: int, row_bytes: int, piece_bytes: int) -> None:
    check_numbers(num_layers=num_layers, rows=rows, piece_bytes=piece_bytes)
    check_row_bytes(row_bytes)


def _register_piece(address: int, size: int, registered: list[int]) -> None:
    registered.append(address)  # before, so that a Ctrl-C in between unregisters it
    try:
        register(address, size)
    except HostMemoryError:
        registered.remove(address)
        raise


def _release(mapping: mmap.mmap, registered: list[int]) -> None:
    # The range itself is unmapped with the last view of it: a stale view reads zeros, it does not fault.
    with contextlib.ExitStack() as stack:
        stack.callback(mapping.madvise, mmap.MADV_DONTNEED)
        for address in registered:
            stack.callback(unregister, address)
        if registered:
            torch.cuda.synchronize()  # no copy may be under way, and this may be another thread


def _map(size: int) -> mmap.mmap:
    limits = host_limits()
    left = limits.cgroup_left_bytes
    if left is not None and size > left:
        raise HostMemoryError(
            f"a host pool of {size} bytes: the cgroup grants {limits.cgroup_limit_bytes}, {left} of them free",
            "raise the container's memory limit or plan a smaller host pool",
        )
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise HostMemoryError(
            f"a host pool of {size} bytes cannot be mapped ({error}); {limits.available_bytes} bytes are available",
            "plan a smaller host pool, or lift ulimit -v and vm.overcommit_memory",
        ) from error


def _advise_huge(mapping: mmap.mmap) -> bool:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without transparent huge pages
        return False
    return True


def _node(asked: int | None) -> int | None:
    """The NUMA node to bind to; None where there is no choice."""
    nodes = sorted(int(path.name.removeprefix("node")) for path in NODES.glob("node[0-9]*"))
    if asked is not None and nodes and asked not in nodes:
        raise ValueError(f"there is no NUMA node {asked}: choose one of {nodes}")
    return asked if len(nodes) > 1 else None


def _bind(address: int, size: int, node: int) -> None:
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (address, size, _MPOL_BIND, ctypes.addressof(mask), 64 * len(mask) + 1, 0)
    if libc.syscall(_MBIND.get(os.uname().machine, -1), *map(ctypes.c_ulong, arguments)):
        raise HostMemoryError(
            f"mbind to NUMA node {node} fails with errno {ctypes.get_errno()}",
            "allow mbind in the container (CAP_SYS_NICE) or leave the node open",
        )


def _touch(mapping: mmap.mmap) -> None:
    pages = torch.frombuffer(mapping, dtype=torch.uint8)[::PAGE_BYTES]
    for part in pages.split(TOUCH_BYTES // PAGE_BYTES):
        part.zero_()  # torch spreads it over its threads
