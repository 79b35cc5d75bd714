"""
The ranks of a run as one of them sees them: meet, exchange figures, take turns, compare tensors.

What is said goes through the store of torch.distributed; tensors go through its collectives, NCCL between GPUs and
gloo between CPUs. Nobody waits for a rank that has failed or hangs: `meet` raises an error with its name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
from torch import distributed

from hsplan.errors import CannotRunError, Problem
from hsplan.gpu.seat import Seat
from hsplan.gpu.watch import STARTING, Beats, Watch

dist: Any = distributed  # which does not export its stores to type checkers
T = TypeVar("T")
Report = Callable[[str, int, int], None]
EAGER_S = 0.25  # ranks that come so close together do not sleep: they leave within microseconds of each other
NAP_S = 0.002
LOOK_S = 0.5
LATER_S = 30.0  # after the process that started the ranks has had the time to say what is wrong
CONNECT_S = 60.0
STORE = "hsplan"  # what keys begin with
DONE = "done"


class LostRankError(CannotRunError):
    """Another rank is gone; the problem names it."""


class Alone:
    """A run of one process: there is nobody to wait for."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def report(self, report: Report) -> Report:
        """`report` as this rank calls it: a sign of life, shown by the first rank only."""
        return report

    def meet(self, what: str = "") -> None:
        """Wait until all ranks are here; they leave together. Raises LostRankError when one cannot come."""
        del what

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in their order."""
        return [text]

    def least(self, value: int) -> int:
        """The least of all ranks' values."""
        return min(int(text) for text in self.gather(str(value)))

    def once_a_node(self, ask: Callable[[], int | None]) -> int | None:
        """What the first rank of this machine is told, while the others wait."""
        return ask()

    def in_turn(self, act: Callable[[], T], what: str) -> T:
        """Act while all other ranks of the machine wait."""
        del what
        return act()

    def all_tensors(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, [ranks, …]; all have the same shape."""
        return tensor[None]


ALONE = Alone()


class Group(Alone):
    """The ranks of a run with this process at `seat`; `hsplan.gpu.join.join` makes it."""

    def __init__(self, seat: Seat, store: Any, *, gpu: bool, silence_s: float) -> None:
        self.rank, self.size = seat.rank, seat.size
        self.local_rank, self.local_size = seat.local_rank, seat.local_size
        self.host = socket.gethostname()
        self._gpu, self._store = gpu, dist.PrefixStore(STORE, store)
        self._limit_s = silence_s if seat.started_by is None else silence_s + LATER_S
        self._beats, self._watch = Beats(self._store, self.rank, self.host), Watch(self._store, self.size)
        self._meetings = self._exchanges = 0
        self._stage = STARTING
        self._beats.beat(STARTING)
        self._turns = max(int(text) for text in self.gather(str(self.local_size)))

    def report(self, report: Report) -> Report:
        def tell(what: str, done: int, total: int) -> None:
            self._stage = what
            with reaching_the_store():
                self._beats.beat(what)
            if self.rank == 0:
                report(what, done, total)

        return tell

    def meet(self, what: str = "") -> None:
        key, self._meetings = f"meeting/{self._meetings}", self._meetings + 1
        with reaching_the_store():
            start = time.monotonic()
            look = start + LOOK_S
            here = self._store.add(key, 1)
            while here < self.size:
                now = time.monotonic()
                if now >= look:
                    self._look(what)
                    look = now + LOOK_S
                if now - start > EAGER_S:
                    time.sleep(NAP_S)
                here = self._store.add(key, 0)
            self._beats.beat(self._stage)

    def gather(self, text: str) -> list[str]:
        key, self._exchanges = f"exchange/{self._exchanges}", self._exchanges + 1
        with reaching_the_store():
            self._store.set(f"{key}/{self.rank}", text)
        self.meet()
        with reaching_the_store():
            return [self._store.get(f"{key}/{rank}").decode() for rank in range(self.size)]

    def once_a_node(self, ask: Callable[[], int | None]) -> int | None:
        found = ask() if self.local_rank == 0 else None
        answer = self.gather("" if found is None else str(found))[self.rank - self.local_rank]
        return int(answer) if answer else None

    def in_turn(self, act: Callable[[], T], what: str) -> T:
        found = []
        for turn in range(self._turns):
            self.meet(f"{what} of local rank {turn}")
            if turn == self.local_rank:
                found.append(act())
        self.meet(what)
        return found[0]

    def all_tensors(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.collectives():
            dist.all_gather(gathered, tensor.contiguous())
            if self._gpu:
                torch.cuda.synchronize()
        return torch.stack(gathered)

    @contextlib.contextmanager
    def collectives(self) -> Iterator[None]:
        """
        The collectives of torch.distributed inside the block, with all ranks; their threads and memory are gone after.

        Raises CannotRunError for errors of torch inside.
        """
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # a multicast group that is left behind can block the host's NVLink
        key, self._exchanges = f"collectives/{self._exchanges}", self._exchanges + 1
        self.meet()  # all are alive: inside of a collective nobody can be waited for by name
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self._gpu else "gloo",
                store=dist.PrefixStore(key, self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._limit_s),
            )
            yield
            dist.destroy_process_group()
        except RuntimeError as error:
            what = f"the ranks cannot exchange tensors: {first_line(error)}"
            raise CannotRunError(Problem(what=what, remedy="NCCL_DEBUG=INFO says more")) from error

    def _look(self, what: str) -> None:
        """Say that this rank waits, and raise when it waits for one that will not come."""
        self._beats.beat(f"waiting for the others: {what}" if what else "waiting for the others")
        if self._store.add("failures", 0):
            self._raise_failure()
        silent = self._watch.silent(self._limit_s)
        if silent is not None:
            raise LostRankError(self._watch.silence(*silent))

    def _raise_failure(self) -> None:
        for rank in range(self.size):
            failure = failure_of(self._store, rank)
            if failure is not None and rank != self.rank:
                raise LostRankError(named(failure.problems, self._watch.name(rank)))

    def fail(self, problems: tuple[Problem, ...], exit_code: int) -> None:
        """Tell all others why this rank ends, so that nobody waits for it."""
        with contextlib.suppress(RuntimeError):
            failure = Failure(problems=problems, exit_code=exit_code)
            self._store.set(f"failure/{self.rank}", msgspec.json.encode(failure))
            self._store.add("failures", 1)

    def leave(self) -> None:
        """Meet for the last time; the first rank goes last, since the store may be its own."""
        self.meet("the end")
        self._store.set(DONE, "")
        with contextlib.suppress(RuntimeError):
            self._store.add("left", 1)
            for _ in range(int(CONNECT_S / NAP_S)):
                if self.rank or self._store.add("left", 0) == self.size:
                    break
                time.sleep(NAP_S)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank ended, and with which exit code."""

    problems: tuple[Problem, ...]
    exit_code: int


def failure_of(store: Any, rank: int) -> Failure | None:
    """What a rank has said of its end; None when it has not ended or could not say."""
    key = f"failure/{rank}"
    return msgspec.json.decode(store.get(key), type=Failure) if store.check([key]) else None


def named(problems: tuple[Problem, ...], rank: str) -> list[Problem]:
    """The problems of a rank, with its name."""
    where = [f"{rank}: {problem.where}" if problem.where else rank for problem in problems]
    return [msgspec.structs.replace(problem, where=at) for problem, at in zip(problems, where, strict=True)]


@contextlib.contextmanager
def reaching_the_store() -> Iterator[None]:
    """Raise errors of the store as a LostRankError."""
    try:
        yield
    except RuntimeError as error:
        what = f"the place where the ranks meet is out of reach: {first_line(error)}"
        raise LostRankError(Problem(what=what, remedy="see what the other ranks said before")) from error


def first_line(error: BaseException) -> str:
    """The first line of an error, its type where it has no words."""
    return next(iter(str(error).splitlines()), type(error).__name__)
