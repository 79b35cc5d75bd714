"""How much host memory there is to have, found by having it: some machines grow as they are used."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Callable

from hsplan.units import GIB

STEP_BYTES = GIB
SPARE_BYTES = 2 * GIB  # left for everything else on the machine
PAUSE_S = 1.0  # what a machine that grows may take to do so


def touchable_bytes(
    wanted_bytes: int,
    available: Callable[[], int],
    progress: Callable[[int, int], None],
    *,
    step_bytes: int = STEP_BYTES,
    spare_bytes: int = SPARE_BYTES,
    pause_s: float = PAUSE_S,
) -> int:
    """
    Bytes up to `wanted_bytes` that could be mapped and written while `spare_bytes` stayed available.

    Step by step: a GiB is mapped, each of its pages written, then `available()` asked, and once more after a pause
    when it says less than `spare_bytes`. The step that leaves too little does not count. All is given back on every
    way out. `progress(done, total)` is called after each step, in bytes.
    """
    reached = 0
    with contextlib.ExitStack() as mappings:
        while reached < wanted_bytes:
            size = min(step_bytes, wanted_bytes - reached)
            try:
                mapping = mappings.enter_context(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            except OSError:  # ulimit -v, or the kernel's own count of what it has promised
                break
            _write_each_page(mapping)
            if available() < spare_bytes:
                time.sleep(pause_s)
                if available() < spare_bytes:
                    break
            reached += size
            progress(reached, wanted_bytes)
    return reached


def _write_each_page(mapping: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a kernel without transparent huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    pages = -(-len(mapping) // mmap.PAGESIZE)
    mapping[:: mmap.PAGESIZE] = bytes(pages)
