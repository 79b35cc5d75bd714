"""Before a GPU run: is there a card that can do it, what is it and its link, and how much host memory may be taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import triton

from hsplan.errors import CannotRunError, Problem
from hsplan.gpu.group import ALONE, Alone, first_line
from hsplan.gpu.nvml import Card, read_card
from hsplan.gpu.touch import SPARE_BYTES, touchable_bytes
from hsplan.measurement import Machine
from hsplan.units import MIB, size
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import HostLimits, HostMemoryError, host_limits

LEAST_CAPABILITY = (7, 0)  # Volta, the oldest that Triton compiles for
CGROUP_SHARE = 0.95  # of what the cgroup has left; the rest is for the process itself
LOAD_BYTES = 64 * MIB
LOAD_COPIES = 128  # 0.15 s at 55 GB/s: half for the link to rise, half for the library to start and answer
WITHOUT_GPU = "`hsplan validate SPEC` without --gpu runs the kernels in Triton's interpreter"


def preflight(
    *,
    host_memory: int | None,
    needed_host_bytes: int,
    progress: Callable[[int, int], None],
    group: Alone = ALONE,
    root: Path = Path("/"),
) -> Machine:
    """
    The current GPU and its host, for a run whose host pool takes `needed_host_bytes`.

    `host_bytes` of the answer is `host_memory` if given; else the least of `needed_host_bytes`, what a touch test
    reaches and what the cgroup has left, less 5 %. `progress(done, total)` is called as the test goes on, in bytes;
    it gives all back on every way out. Memory is that of the machine: the ranks of `group` on it get equal shares, and
    its first one tests for all of them. `root` is where proc and sys are found.

    Raises CannotRunError, with the remedy, without a CUDA device of compute capability 7.0 or more, when the driver
    fails, and when not even 64 MiB of host memory can be pinned.
    """
    _refuse_other_builds()
    try:
        uuid, name, (major, minor) = _device()
        if (major, minor) < LEAST_CAPABILITY:
            what = f"{name} has compute capability {major}.{minor}, Triton needs 7.0 or more"
            raise CannotRunError(Problem(what=what, remedy=WITHOUT_GPU))
        free_bytes, memory_bytes = torch.cuda.mem_get_info()
        card = _card_under_load(uuid)
    except HostMemoryError as error:
        raise CannotRunError(Problem(what=error.cause, remedy=error.remedy)) from error
    except RuntimeError as error:
        what = f"the CUDA driver fails: {first_line(error)}"
        raise CannotRunError(Problem(what=what, remedy=f"see what nvidia-smi says; {WITHOUT_GPU}")) from error
    limits, ranks = host_limits(root), group.local_size
    if host_memory is None:
        granted = group.once_a_node(lambda: _grantable_bytes(needed_host_bytes * ranks, limits, ranks, progress, root))
    else:
        granted = host_memory
    wanted = needed_host_bytes * ranks if host_memory is None else min(needed_host_bytes * ranks, host_memory)
    return Machine(
        gpu=name,
        memory_bytes=memory_bytes,
        free_bytes=free_bytes,
        driver=card.driver,
        torch=str(torch.__version__),  # a subclass of str, which msgspec does not write
        triton=triton.__version__,
        link_generation=card.generation,
        link_width=card.width,
        host_bytes=None if granted is None else granted // ranks,
        warnings=tuple(_warnings(wanted, ranks, limits, card)),
    )


def _refuse_other_builds() -> None:
    """Raise CannotRunError for a torch that is built for no GPU, or for another maker's, or that finds none."""
    if torch.version.hip is not None:
        what = f"torch {torch.__version__} is built for ROCm, the kernels are checked on CUDA"
        raise CannotRunError(Problem(what=what, remedy=WITHOUT_GPU))
    if torch.version.cuda is None:
        what = f"no GPU here: torch {torch.__version__} is built without CUDA"
        raise CannotRunError(Problem(what=what, remedy=f"install a CUDA build of torch; {WITHOUT_GPU}"))
    try:
        torch.cuda.init()
    except RuntimeError as error:
        what = f"no GPU here: {first_line(error)}"
        raise CannotRunError(Problem(what=what, remedy=WITHOUT_GPU)) from error


def _device() -> tuple[str, str, tuple[int, int]]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return str(properties.uuid), properties.name, (properties.major, properties.minor)


def _card_under_load(uuid: str) -> Card:
    """The card while bytes cross the link: an idle one may have lowered its generation."""
    with HostPool(1, LOAD_BYTES // MIB, MIB) as pool:
        target = torch.empty_like(pool.layers[0], device="cuda")
        risen = torch.cuda.Event()
        for copy in range(LOAD_COPIES):
            target.copy_(pool.layers[0], non_blocking=True)
            if copy == LOAD_COPIES // 2:
                risen.record()
        risen.synchronize()
        card = read_card(uuid)
    del target
    torch.cuda.empty_cache()
    return card


def _grantable_bytes(
    needed: int, limits: HostLimits, ranks: int, progress: Callable[[int, int], None], root: Path
) -> int | None:
    """What the pools may take of `needed`; None where the system tells neither its free memory nor a limit."""
    left = limits.cgroup_left_bytes
    ceiling = needed if left is None else min(needed, int(left * CGROUP_SHARE))
    if limits.available_bytes is None:
        return None if left is None else ceiling
    spare = SPARE_BYTES * ranks
    return touchable_bytes(ceiling, lambda: host_limits(root).available_bytes or 0, progress, spare_bytes=spare)


def _warnings(wanted: int, ranks: int, limits: HostLimits, card: Card) -> list[str]:
    """`wanted`: bytes of the host pools of so many `ranks` of this machine; what may be locked is each process's."""
    found = []
    pools, want = ("The host pool", "wants") if ranks == 1 else (f"The host pools of {ranks} ranks", "want")
    if limits.available_bytes is None:
        found.append("This system does not tell its free memory: the host pool may not fit.")
    elif wanted > limits.available_bytes:
        found.append(f"{pools} {want} {size(wanted)}, {size(limits.available_bytes)} were available at the start.")
    if limits.memlock_bytes is not None and limits.memlock_bytes < wanted // ranks:
        each = size(wanted // ranks)
        found.append(f"memlock is {size(limits.memlock_bytes)}, the host pool wants {each}: see ulimit -l.")
    if card.below_its_best:
        found.append(
            f"The link runs at PCIe generation {card.generation} x{card.width}, "
            f"card and slot could do {card.max_generation} x{card.max_width}."
        )
    return found
