"""Signs of life of ranks in the store that they share: written by each, read by whoever waits for the others."""

from __future__ import annotations

import time
from typing import Any

from hsplan.errors import Problem

BEAT_S = 0.2  # a sign of life in the same stage is written no more often
STARTING = "starting"
START_S = 300.0  # libraries can take minutes to come from a slow disk


class Beats:
    """Writes the signs of one rank: its machine once, then what it is at, every time that it gets on."""

    def __init__(self, store: Any, rank: int, host: str) -> None:
        self._store, self._rank = store, rank
        self._count, self._last, self._next = 0, "", 0.0
        store.set(f"host/{rank}", host)

    def beat(self, stage: str) -> None:
        """Say that this rank is alive, and at what."""
        now = time.monotonic()
        if stage == self._last and now < self._next:
            return
        self._count, self._last, self._next = self._count + 1, stage, now + BEAT_S
        self._store.set(f"beat/{self._rank}", f"{self._count} {stage}")


class Watch:
    """
    Reads the signs of all ranks. Times are the reader's own: clocks of machines differ.

    `store`: has `check` and `get` of torch.distributed's stores.
    """

    def __init__(self, store: Any, size: int) -> None:
        self._store = store
        now = time.monotonic()
        self._seen: list[tuple[str, float]] = [(f"0 {STARTING}", now)] * size

    def silent(self, limit_s: float) -> tuple[int, float] | None:
        """
        The rank without a new sign for longest, and for how many seconds, when they are more than `limit_s`.

        One that has not given any yet is waited for longer.
        """
        now = time.monotonic()
        late = []
        for rank, (before, since) in enumerate(self._seen):
            found = self._read(f"beat/{rank}")
            if found and found != before:
                self._seen[rank] = (found, now)
            elif now - since > (limit_s if found else max(limit_s, START_S)):
                late.append((now - since, rank))
        quiet_s, rank = max(late, default=(0.0, -1))
        return (rank, quiet_s) if late else None

    def stage(self, rank: int) -> str:
        """What the rank said last that it was at."""
        return (self._read(f"beat/{rank}") or f"0 {STARTING}").split(" ", 1)[1]

    def name(self, rank: int) -> str:
        """The rank and its machine, as errors name it."""
        host = self._read(f"host/{rank}")
        return f"rank {rank} on {host}" if host else f"rank {rank}"

    def silence(self, rank: int, quiet_s: float) -> Problem:
        """The problem that a silent rank is."""
        what = f"{self.name(rank)} has given no sign of life for {quiet_s:.0f} s, since: {self.stage(rank)}"
        return Problem(what=what, remedy="see what nvidia-smi and the kernel's log (dmesg) say of its card there")

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""
