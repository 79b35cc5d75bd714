"""Pools as kernels see them: tables of addresses, pinned host memory, and what the machine grants of it."""

from __future__ import annotations

import ctypes
import functools
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hsplan_kernels.arrays import check_memory

UNLIMITED = 2**60  # cgroup v1 writes "no limit" as 2^63 less a page
_PORTABLE_AND_MAPPED = 3  # flags of cuMemHostRegister
_NOT_REGISTERED = 713
_Files = tuple[str, str, tuple[str, str]]
_V2_FILES: _Files = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1_FILES: _Files = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


class HostMemoryError(Exception):
    """Host memory that cannot be had: `cause` with its numbers, `remedy` in the user's hands."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLimits:
    """
    What bounds host memory here, in bytes; None where there is no limit or the system does not tell.

    `cgroup_used_bytes` leaves out page cache, which the kernel drops before it refuses; of nested cgroups the one
    with the least left counts. `available_bytes` is MemAvailable.
    """

    memlock_bytes: int | None
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    available_bytes: int | None

    @property
    def cgroup_left_bytes(self) -> int | None:
        """Bytes the cgroup still grants, never negative; None without a limit."""
        if self.cgroup_limit_bytes is None or self.cgroup_used_bytes is None:
            return None
        return max(self.cgroup_limit_bytes - self.cgroup_used_bytes, 0)


def pointer_table(tensors: Sequence[torch.Tensor], device: torch.device | str | None = None) -> torch.Tensor:
    """
    Base addresses of `tensors`, one a layer: int64 [len(tensors)] on `device`, by default the first tensor's.

    A tensor without elements (an elided layer) gives 0. The caller keeps the tensors alive as long as the table.
    Raises ValueError without tensors, or for one that is not contiguous or not aligned to 16 bytes.
    """
    if not tensors:
        raise ValueError("no tensors: give one a layer")
    for layer, tensor in enumerate(tensors):
        check_memory(f"layer {layer}", tensor)
    addresses = [tensor.data_ptr() if tensor.numel() else 0 for tensor in tensors]
    return torch.tensor(addresses, dtype=torch.int64, device=device or tensors[0].device)


def host_limits(root: Path = Path("/")) -> HostLimits:
    """Read the limits on host memory; `root` is where proc and sys are found."""
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit, used = min(_cgroups(root), key=lambda level: level[0] - level[1], default=(None, None))
    return HostLimits(
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        cgroup_limit_bytes=limit,
        cgroup_used_bytes=used,
        available_bytes=_available(root / "proc/meminfo"),
    )


def cuda_present() -> bool:
    """Whether there is a GPU to pin memory for."""
    return bool(torch.cuda.is_available())


def register(address: int, size: int) -> None:
    """
    Pin `size` bytes for every GPU of the process.

    Raises HostMemoryError if the driver refuses or the GPU would see them at another address. The driver's interface
    is used since a failure of the runtime's would surface again at the next kernel launch.
    """
    torch.cuda.synchronize()  # makes the device's context this thread's
    driver = _driver()
    code = driver.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), _PORTABLE_AND_MAPPED)
    if code:
        memlock = host_limits().memlock_bytes
        short = memlock is not None and memlock < size
        raise HostMemoryError(
            f"the CUDA driver cannot pin {size} bytes: {_error_name(code)}",
            f"memlock is {memlock} bytes: raise it (ulimit -l)" if short else "plan a smaller host pool",
        )
    seen = ctypes.c_uint64()
    code = driver.cuMemHostGetDevicePointer_v2(ctypes.byref(seen), ctypes.c_void_p(address), 0)
    if code or seen.value != address:
        unregister(address)
        raise HostMemoryError(
            f"the GPU sees host memory {address:#x} at {seen.value:#x}: {_error_name(code)}",
            "use a machine where both addresses are equal (unified addressing)",
        )


def unregister(address: int) -> None:
    """Undo `register`; of memory that is not pinned, nothing. Raises HostMemoryError when the driver refuses."""
    code = _driver().cuMemHostUnregister(ctypes.c_void_p(address))
    if code not in {0, _NOT_REGISTERED}:
        raise HostMemoryError(f"the CUDA driver cannot unpin {address:#x}: {_error_name(code)}", "end this process")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _error_name(code: int) -> str:
    name = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(name))
    return f"{(name.value or b'unknown').decode()} ({code})"


def _cgroups(root: Path) -> list[tuple[int, int]]:
    mount = root / "sys/fs/cgroup"
    folders = {mount: _V2_FILES, mount / "memory": _V1_FILES}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folders |= _upwards(mount, path, _V2_FILES) | _upwards(mount / "unified", path, _V2_FILES)
        elif "memory" in controllers.split(","):
            folders |= _upwards(mount / "memory", path, _V1_FILES)
    return [level for folder, files in folders.items() if (level := _level(folder, *files))]


def _upwards(mount: Path, path: str, files: _Files) -> dict[Path, _Files]:
    parts = [part for part in path.split("/") if part not in {"", ".."}]
    return {mount.joinpath(*parts[:depth]): files for depth in range(len(parts), -1, -1)}


def _level(folder: Path, limit_name: str, used_name: str, cache_names: tuple[str, str]) -> tuple[int, int] | None:
    limit, used = _text(folder / limit_name).strip(), _text(folder / used_name).strip()
    if not limit.isdecimal() or not used.isdecimal() or int(limit) >= UNLIMITED:
        return None
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    cache = sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in cache_names)
    return int(limit), max(int(used) - cache, 0)


def _available(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
