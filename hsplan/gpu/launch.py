"""Start one process a rank on this machine, watch them, and leave none behind: a command goes in, its exit code out."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hsplan.errors import CannotRunError, HsplanError, InputError, Problem, UnsupportedError
from hsplan.gpu.group import DONE, STORE, dist, failure_of, named
from hsplan.gpu.join import BUG
from hsplan.gpu.seat import STARTED_BY
from hsplan.gpu.watch import Watch

POLL_S = 0.05
GRACE_S = 10.0  # to unpin host memory, which the system does at the end of a process in any case
TAIL_BYTES = 2000
OUT_OF_MEMORY = "a machine that is out of memory does so, see dmesg: give less --host-memory"
OTHER_SIGNAL = "see dmesg, and what nvidia-smi says"
KINDS: dict[int, type[HsplanError]] = {2: InputError, 3: UnsupportedError}


def launch(command: Sequence[str], ranks: int, *, silence_s: float, grace_s: float = GRACE_S) -> int:
    """
    Run `command` as so many ranks that `hsplan.gpu.join.join` takes as one group; the exit code of the first.

    The first rank has this process's stdout and stderr; what another writes to stderr is shown only if it breaks. A
    rank that is killed, fails, or gives no sign of life for `silence_s` seconds ends them all: SIGTERM, and SIGKILL
    `grace_s` seconds later. No process is left on any way out, SIGTERM and SIGINT to this process included; where it
    is killed itself the kernel ends the ranks (on Linux).

    Raises CannotRunError, or what the rank itself raised, with the rank's name and what it was at.
    """
    with _interruptible():
        store, port = _listening()
        processes = Processes(command, ranks, port)
        try:
            return _watched(processes, store, silence_s)
        finally:
            processes.end(grace_s)


class Processes:
    """The ranks as processes of this one, numbered from 0."""

    def __init__(self, command: Sequence[str], ranks: int, port: int) -> None:
        self._stderr = [tempfile.TemporaryFile() for _ in range(1, ranks)]  # noqa: SIM115 - closed by `end`
        self._all: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                self._all.append(self._started(command, rank, ranks, port))
        except BaseException:
            self.end(0)
            raise

    def _started(self, command: Sequence[str], rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - this command itself
            command,
            env={**os.environ, **_environment(rank, ranks, port)},
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else self._stderr[rank - 1],
        )

    def codes(self) -> list[int | None]:
        """Exit codes, negative for a signal, None while a rank runs."""
        return [process.poll() for process in self._all]

    def tail(self, rank: int) -> str:
        """The last two lines that a rank other than the first wrote to stderr."""
        if rank == 0:
            return ""
        file = self._stderr[rank - 1]
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
        return "; ".join(line.strip() for line in lines[-2:])

    def end(self, grace_s: float) -> None:
        """End all that still run and wait for them; a second interrupt shortens the grace."""
        until = time.monotonic() + grace_s
        try:
            for process in self._running():
                process.terminate()
                process.send_signal(signal.SIGCONT)  # one that was stopped would not see it
            while self._running() and time.monotonic() < until:
                time.sleep(POLL_S)
        finally:
            for process in self._running():
                process.kill()
            for process in self._all:
                process.wait()
            for file in self._stderr:
                file.close()

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._all if process.poll() is None]


def _watched(processes: Processes, store: Any, silence_s: float) -> int:
    """Wait for the ranks; the exit code of the first, which alone is waited for once the run is done."""
    codes = processes.codes()
    watch = Watch(store, len(codes))
    while True:
        codes = processes.codes()
        if store.check([DONE]):
            if codes[0] is not None and codes[0] >= 0:
                return codes[0]
            codes = codes[:1]  # what others do at their end changes nothing, and a report may wait for its reader
        elif silent := watch.silent(silence_s):
            raise CannotRunError(watch.silence(*silent))
        if any(codes) or None not in codes:
            raise _ended(codes, processes, store, watch)
        time.sleep(POLL_S)


def _ended(codes: list[int | None], processes: Processes, store: Any, watch: Watch) -> Exception:
    """What broke the run: a rank that was killed, else one that said why, else one that ended without a word."""
    ended = [rank for rank, code in enumerate(codes) if code is not None]
    for rank in ended:
        code = codes[rank] or 0
        if code < 0:
            what = f"{watch.name(rank)} was killed by {_signal(-code)} in: {watch.stage(rank)}"
            return CannotRunError(Problem(what=what, remedy=OUT_OF_MEMORY if code == -signal.SIGKILL else OTHER_SIGNAL))
    for rank in range(len(codes)):  # one that has said why may still be ending
        failure = failure_of(store, rank)
        if failure is not None and failure.exit_code == BUG:
            return RuntimeError(f"{watch.name(rank)}: {failure.problems[0].what}")
        if failure is not None:
            return KINDS.get(failure.exit_code, CannotRunError)(named(failure.problems, watch.name(rank)))
    rank = max(ended, key=lambda each: codes[each] or 0)
    what = f"{watch.name(rank)} ended with exit code {codes[rank]} in: {watch.stage(rank)}"
    return CannotRunError(Problem(what=what, remedy=processes.tail(rank)))


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets, and what a rank of one machine needs beside."""
    given = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, STARTED_BY: os.getpid(),
    }  # fmt: skip
    kept = {
        "OMP_NUM_THREADS": max((os.cpu_count() or 1) // ranks, 1),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a rank that ends is told of by name, not by a C++ stack
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    values = {**given, **{name: value for name, value in kept.items() if name not in os.environ}}
    return {"PYTHONPATH": path, **{name: str(value) for name, value in values.items()}}


def _listening() -> tuple[Any, int]:
    """The store of a run, which only this machine reaches, and its port; it listens as long as it is held."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
    )  # fmt: skip
    return dist.PrefixStore(STORE, store), port


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the block as SIGINT does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
