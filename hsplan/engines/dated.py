"""Releases and dated builds of an engine: the day of each, or a refusal that names the nearest known one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date

import msgspec

from hsplan.errors import InputError, Problem, UnsupportedError, shown

BUILD = re.compile(r"main-(\d{4}-\d{2}-\d{2})")


class Build(msgspec.Struct, frozen=True):
    """A release or dated build: `name` as given, `date` as YYYY-MM-DD, the switches it has."""

    name: str
    date: str
    switches: frozenset[str]

    def has(self, switch: str) -> bool:
        """Whether the build has the change."""
        return switch in self.switches

    def uncertain(self, undated: Iterable[tuple[str, str, str]]) -> list[str]:
        """Notes on a dated build that lies between two releases, (day, day, what), of which the later has a change."""
        if not self.name.startswith("main-"):
            return []
        return [
            f"{self.name}: the date of this change is not known, the build is priced without it: {what}"
            for first, until, what in undated
            if first < self.date < until
        ]


def switches_on(day: str, since: Mapping[str, str]) -> frozenset[str]:
    """The switches that a build of `day` has; `since` gives the first day of each."""
    return frozenset(switch for switch, first in since.items() if first <= day)


class Calendar(msgspec.Struct, frozen=True):
    """The known releases of `engine` with their days, the latest of them, and the first day whose build is known."""

    engine: str
    releases: Mapping[str, str]
    latest: str
    first_build: str

    def name_of(self, given: str) -> str:
        """The name of a release without a leading v; `latest` is the newest."""
        name = re.sub(r"^v(?=[0-9])", "", given)
        return self.latest if name == "latest" else name

    def day_of(self, name: str, where: str) -> str:
        """
        The day, as YYYY-MM-DD, of a release or of a build main-YYYY-MM-DD.

        Raises UnsupportedError, with the nearest known one, for a release or day that is not known, InputError for
        a day that is none.
        """
        return self.releases.get(name) or self._build_day(name, where)

    def _build_day(self, name: str, where: str) -> str:
        match = BUILD.fullmatch(name)
        if match is None:
            what = f"{self.engine} {shown(name)!r} is not a release hsplan knows"
            remedy = f"nearest: {self._nearest(name)}; known: {', '.join(self.releases)}, or a build main-YYYY-MM-DD"
            raise UnsupportedError(Problem(where=where, what=what, remedy=remedy))
        day = match[1]
        try:
            date.fromisoformat(day)
        except ValueError:
            what = f"{day} is no date"
            raise InputError(Problem(where=where, what=what, remedy="write main-YYYY-MM-DD")) from None
        if not self.first_build <= day <= self.releases[self.latest]:
            late = day > self.first_build
            age = "newer than what hsplan has read" if late else "older than the first known build"
            what = f"{self.engine} {name} is {age}"
            remedy = f"nearest: {self.latest if late else 'main-' + self.first_build}"
            raise UnsupportedError(Problem(where=where, what=what, remedy=remedy))
        return day

    def _nearest(self, name: str) -> str:
        """The known release whose version numbers are closest."""
        wanted = [int(part[:6]) for part in re.findall(r"\d+", name)[:3]] or [0]
        target = sum(part * weight for part, weight in zip(wanted, (10**8, 10**4, 1), strict=False))

        def distance(known: str) -> int:
            parts = [int(part) for part in known.split(".")]
            return abs(sum(part * weight for part, weight in zip(parts, (10**8, 10**4, 1), strict=True)) - target)

        return min(self.releases, key=distance)
