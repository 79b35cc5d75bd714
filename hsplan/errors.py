"""
What can go wrong, and the exit code of each kind.

HsplanError
├── InputError        2  a spec, file or option that is wrong
├── UnsupportedError  3  a model, release or combination that hsplan does not know
└── CannotRunError    4  a validation that could not run here

Exit code 1 (does not fit) is a result, not an error; 5 is a bug of hsplan.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import msgspec

MAX_PROBLEMS = 10
MAX_SHOWN = 80
MAX_LINE = 1000


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: `what`, `where` (file:line: key) and what would be right."""

    what: str
    where: str = ""
    remedy: str = ""

    def lines(self) -> list[str]:
        """One or two printable lines."""
        head = _clipped(f"{self.where}: {self.what}" if self.where else self.what)
        return [head, "  " + _clipped(self.remedy)] if self.remedy else [head]


class HsplanError(Exception):
    """Base of all errors that a user can cause; `problems` are printed, `exit_code` returned."""

    exit_code = 2

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Printable lines: at most two for each of at most ten problems."""
        shown = [line for problem in self.problems[:MAX_PROBLEMS] for line in problem.lines()]
        more = len(self.problems) - MAX_PROBLEMS
        return [*shown, f"and {more} more"] if more > 0 else shown


class InputError(HsplanError):
    """A spec, file or option that is wrong."""

    exit_code = 2


class UnsupportedError(HsplanError):
    """A model, release or combination that hsplan does not know; it never guesses."""

    exit_code = 3


class CannotRunError(HsplanError):
    """A validation that could not run on this machine."""

    exit_code = 4


def _clipped(text: str) -> str:
    """`text` on one printable line of at most 1,000 characters."""
    line = printable(text[:MAX_LINE])
    return line if len(text) <= MAX_LINE and len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def printable(text: str) -> str:
    """`text` with everything that could move a cursor or break a line written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """`value` as a user would recognise it, on one line and never longer than 80 characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        # int with too many digits, or nesting too deep to print
        text = f"a very large {type(value).__name__}"
    text = printable(text[: 2 * MAX_SHOWN])
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def nearest(name: object, known: Iterable[str]) -> str:
    """`did you mean X?`, or a list of what is known when nothing is near."""
    names = list(known)
    close = difflib.get_close_matches(str(name)[:MAX_SHOWN], names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(names)
