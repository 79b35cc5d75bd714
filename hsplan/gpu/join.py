"""Take part in a run of several ranks: a seat goes in, the group of them all comes out, and nobody is left waiting."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch

from hsplan.errors import CannotRunError, HsplanError, Problem, shown
from hsplan.gpu.group import CONNECT_S, Group, LostRankError, dist, first_line
from hsplan.gpu.seat import Seat

BUG = 5


@contextlib.contextmanager
def join(seat: Seat, *, gpu: bool, silence_s: float) -> Iterator[Group]:
    """
    Take the seat, on its card with `gpu`; what ends the block early is told to all other ranks.

    A rank that has given no sign of life for `silence_s` seconds is given up. SIGTERM and SIGINT end the block as a
    KeyboardInterrupt, once. Raises CannotRunError without such a card, and when the others cannot be reached.
    """
    if gpu:
        _take_card(seat)
    store = _store_of(seat)
    with _interrupted_once():
        group = Group(seat, store, gpu=gpu, silence_s=silence_s)
        try:
            yield group
            group.leave()
        except LostRankError:
            raise
        except HsplanError as error:
            group.fail(error.problems, error.exit_code)
            raise
        except KeyboardInterrupt:
            group.fail((Problem(what="it was interrupted"),), CannotRunError.exit_code)
            raise
        except Exception as error:
            group.fail((Problem(what=f"{type(error).__name__}: {first_line(error)}"),), BUG)
            raise


def _take_card(seat: Seat) -> None:
    count = torch.cuda.device_count()
    if count == 0:
        return  # the preflight says why
    if seat.local_rank >= count:
        what = f"local rank {seat.local_rank} has no GPU: this machine shows {count}"
        raise CannotRunError(Problem(what=what, remedy=f"start at most {count} ranks on a machine"))
    with contextlib.suppress(RuntimeError):  # the preflight says why
        torch.cuda.set_device(seat.local_rank)


def _store_of(seat: Seat) -> Any:
    try:
        socket.getaddrinfo(seat.address, seat.port)  # torch asks for an unknown name again and again
        if seat.started_by is None:
            store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=CONNECT_S)))
            return store
        return dist.TCPStore(seat.address, seat.port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except (OSError, ValueError, RuntimeError) as error:
        place = f"{shown(seat.address)}:{seat.port}"
        what = f"rank {seat.rank} does not reach the place where the ranks meet, {place}: {first_line(error)}"
        remedy = "start all ranks within a minute, with the address of the first one's machine and a port free there"
        raise CannotRunError(Problem(where="MASTER_ADDR", what=what, remedy=remedy)) from error


@contextlib.contextmanager
def _interrupted_once() -> Iterator[None]:
    """
    The first SIGTERM or SIGINT raises KeyboardInterrupt; more of them would break what is being given back.

    After one the process only ends: its handlers stay, for signals that are still under way.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if not came:
            for name, handler in before.items():
                signal.signal(name, handler)
