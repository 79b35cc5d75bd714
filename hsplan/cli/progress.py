"""What is being done and how far it is, on stderr: a bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from hsplan.cli.output import complain

Report = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress(command: str) -> Iterator[Report]:
    """A function of (what, done, total), to be called as work goes on; the bar is gone at the end."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _Lines(command).report
        return
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            if bar.tasks[0].description != what:
                bar.reset(task, description=what, total=total)
            bar.update(task, completed=done, total=total)

        yield report


class _Lines:
    """One line when a stage begins."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._last = ""
        self._start = time.monotonic()

    def report(self, what: str, done: int, total: int) -> None:
        del done, total
        if what != self._last:
            self._last = what
            complain([f"{self._command}, {time.monotonic() - self._start:.0f} s: {what}"])
