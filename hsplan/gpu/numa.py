"""The NUMA node of a card, and a process that stays there: host memory that it touches first lies at that node."""

from __future__ import annotations

import os
from pathlib import Path

NODES = "sys/devices/system/node"


def node_of(bus: str | None, root: Path = Path("/")) -> int | None:
    """The node of the card at `bus` (`0000:1b:00.0`); None where the kernel does not tell. `root`: where sys is."""
    if bus is None:
        return None
    try:
        node = int((root / "sys/bus/pci/devices" / bus / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # −1: the machine has no nodes, or does not say


def stay_at(node: int | None, root: Path = Path("/")) -> bool:
    """
    Run on the processors of `node` from now on, where the machine has several nodes; whether that was done.

    A mapping needs no right for that, unlike mbind: the kernel puts a page where it is first written.
    """
    nodes = list((root / NODES).glob("node[0-9]*"))
    if node is None or len(nodes) < 2:
        return False
    try:
        listed = (root / NODES / f"node{node}" / "cpulist").read_text()
        cpus = processors(listed) & os.sched_getaffinity(0)
        if cpus:
            os.sched_setaffinity(0, cpus)
    except (OSError, ValueError, AttributeError):  # not Linux, or not allowed
        return False
    return bool(cpus)


def processors(listed: str) -> set[int]:
    """Numbers of a list as the kernel writes it: `0-3,8`. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
