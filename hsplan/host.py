"""Memory of the machine hsplan runs on: what a `host_memory: here` means."""

from __future__ import annotations

from pathlib import Path

from hsplan.errors import InputError, Problem

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def available_bytes(where: str, meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """
    Bytes that can still be had here: MemAvailable, or what the cgroup leaves when that is less.

    Raises InputError (at `where`) on a system that does not tell.
    """
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        what = "this system does not tell its free memory"
        raise InputError(Problem(where=where, what=what, remedy='give a size such as "2TiB"')) from None
    return min([available, *_cgroup_left(cgroup)])


def _cgroup_left(cgroup: Path) -> list[int]:
    left = []
    for limit_name, usage_name in _CGROUP_FILES:
        try:
            limit, usage = (cgroup / limit_name).read_text().strip(), (cgroup / usage_name).read_text().strip()
            left.append(max(int(limit) - int(usage), 0))
        except (OSError, ValueError):
            continue  # no such cgroup version, or no limit ("max")
    return left
