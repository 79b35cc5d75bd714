"""
What the last start of a server printed, by name: lines in, a `Log` out.

Ranks print the same lines side by side; each distinct figure is kept once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

import msgspec

from hsplan.calibrate.lines import LINES, RANK, READY, STARTS
from hsplan.calibration import Window
from hsplan.errors import InputError, Problem
from hsplan.units import GIB

HALF = Fraction(1, 200)  # of the last digit of x.xx
MAX_FIGURES = 1000  # of one name: a log with more is none of a server
_STARTS = tuple(word.decode() for word in STARTS)
_READY = tuple(word.decode() for word in READY)
_NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """
    Readings of one start: the distinct texts of each name, in order. `ranks` is the number of TP ranks that spoke.

    `starts` counts the starts in the file, of which this is the last.
    """

    where: str
    engine: str
    readings: dict[str, tuple[str, ...]]
    ranks: int
    starts: int

    def texts(self, name: str) -> tuple[str, ...]:
        """Distinct texts of a reading; none when no line had it."""
        return self.readings.get(name, ())

    def numbers(self, name: str) -> list[Fraction]:
        """The same as numbers, ascending."""
        found = (text.replace(",", "") for text in self.texts(name) if _NUMBER.fullmatch(text))
        return sorted(Fraction(text) for text in found)

    def window(self, name: str, unit: int = GIB) -> Window | None:
        """Bytes that all ranks allow: from the least to the largest figure, each with half a digit around it."""
        found = self.numbers(name)
        return None if not found else Window(int((found[0] - HALF) * unit), int((found[-1] + HALF) * unit))

    def least(self, name: str, unit: int = GIB) -> Window | None:
        """Bytes of the rank that has least."""
        found = self.numbers(name)
        return None if not found else Window(int((found[0] - HALF) * unit), int((found[0] + HALF) * unit))


def log_of(lines: Iterable[str], where: str) -> Log:
    """The last start in `lines`; raises InputError when there is no line of an engine, or of both."""
    readings: dict[str, dict[str, None]] = {}
    engines: set[str] = set()
    ranks, starts, started = 0, 0, False
    for line in lines:
        if any(word in line for word in _READY):
            started = True
        if any(word in line for word in _STARTS):
            readings, ranks, starts, started = {}, 0, starts + 1, False
            engines = set()
        if started:
            continue  # what requests say is no start-up line
        for printed in LINES:
            if printed.needle.decode() in line and (match := printed.pattern.search(line)):
                engines.add(printed.engine)
                rank = RANK.search(line, 0, match.start())
                ranks = max(ranks, int(rank[1]) + 1 if rank else 0)
                for name, text in match.groupdict().items():
                    if text is not None:
                        _keep(readings.setdefault(name, {}), text, where)
    if len(engines) != 1:
        what = "has start-up lines of both SGLang and vLLM" if engines else "has no start-up line of SGLang or vLLM"
        remedy = "give the log of one server, from its start on"
        raise InputError(Problem(where=where, what=what, remedy=remedy))
    return Log(
        where=where,
        engine=engines.pop(),
        readings={name: tuple(texts) for name, texts in readings.items()},
        ranks=ranks,
        starts=max(starts, 1),
    )


def _keep(texts: dict[str, None], text: str, where: str) -> None:
    texts[text] = None
    if len(texts) > MAX_FIGURES:
        raise InputError(Problem(where=where, what=f"has more than {MAX_FIGURES:,} figures of one name: no start does"))
