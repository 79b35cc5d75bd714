"""Which of how many processes this is, by the environment that torchrun sets, or hsplan's own start of ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

import msgspec

from hsplan.errors import InputError, Problem, shown

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
STARTED_BY = "HSPLAN_STARTED_BY"  # the process that started this one as a rank, and ends it
REMEDY = "start the ranks with torchrun, or unset RANK"
_PR_SET_PDEATHSIG = 1


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """
    Rank and number of ranks, of the run and of this machine; `started_by`: the process of hsplan that starts and
    watches the ranks, None where torchrun does.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    started_by: int | None = None


def seat_of(environment: Mapping[str, str], wanted: int | None) -> Seat | None:
    """
    The seat that the environment names; None for a process on its own.

    `wanted`: ranks as the user gave them. Raises InputError for another number than there are, and where torchrun's
    variables are incomplete, are no numbers, or contradict each other.
    """
    if "RANK" not in environment or "LOCAL_RANK" not in environment:
        return None
    values = {name: _number(environment, name) for name in NAMES}
    seat = Seat(
        rank=values["RANK"],
        size=values["WORLD_SIZE"],
        local_rank=values["LOCAL_RANK"],
        local_size=values["LOCAL_WORLD_SIZE"],
        address=environment.get("MASTER_ADDR", ""),
        port=values["MASTER_PORT"],
        started_by=_number(environment, STARTED_BY) if STARTED_BY in environment else None,
    )
    if wanted not in (None, seat.size):
        what = f"{wanted} ranks, but WORLD_SIZE is {seat.size}"
        raise InputError(Problem(where="--ranks", what=what, remedy="leave it out under torchrun, or give as many"))
    wrong = _wrong(seat)
    if wrong:
        raise InputError(Problem(what=wrong, remedy=REMEDY))
    return seat


def end_with(parent: int | None) -> None:
    """Have the kernel kill this process when the one that started it ends, on Linux; at once if it has already."""
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(4)


def _wrong(seat: Seat) -> str:
    """What no run of ranks has; empty for a seat as it should be."""
    if seat.rank >= seat.size:
        return f"RANK is {seat.rank}, but WORLD_SIZE is {seat.size}"
    if seat.local_rank >= seat.local_size:
        return f"LOCAL_RANK is {seat.local_rank}, but LOCAL_WORLD_SIZE is {seat.local_size}"
    if seat.local_size > seat.size:
        return f"LOCAL_WORLD_SIZE is {seat.local_size}, but WORLD_SIZE is {seat.size}"
    if not seat.address:
        return "RANK is set, but MASTER_ADDR is not"
    return "" if 0 < seat.port < 2**16 else f"MASTER_PORT is {seat.port}, and no port"


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if value.isdecimal() and len(value) < 10:
        return int(value)
    what = f"RANK is set, but {name} is {shown(value)}" if value else f"RANK is set, but {name} is not"
    raise InputError(Problem(where=name, what=what, remedy=REMEDY))
