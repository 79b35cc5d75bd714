"""
Which layers one trace stands for: a layer that shares top-k reads the ids of its owner, and misses what it misses.

A pattern has one letter a layer, as in a layer plan: F computes top-k, S reads that of the last F before it, any other
reads none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hsplan.workload.profile import Profile


class Layers(msgspec.Struct, frozen=True):
    """Layers with one trace: the `ids` that it was drawn or recorded for, and the `count` of all that read it."""

    ids: tuple[int, ...]
    count: int


def by_churn(pattern: str, profile: Profile) -> list[tuple[Profile, Layers]]:
    """The owners of a model in groups of equal weights, each with the profile of one of its layers."""
    groups: dict[Profile, list[int]] = {}
    readers = _readers(pattern)
    for owner in readers:
        groups.setdefault(profile.at(owner), []).append(owner)
    return [(own, Layers(tuple(ids), sum(len(readers[i]) for i in ids))) for own, ids in groups.items()]


def of_recording(pattern: str, traces: int, known: Sequence[int] | Sequence[Layers] | None) -> list[Layers]:
    """
    What each of `traces` stands for; `known` is what the file says: their layers, readers counted or not, or nothing.

    One trace stands for the model, as many as owners for those, as many as readers for each of them. A layer whose
    owner is recorded and itself is not counts with its owner. Traces of layers that the model does not have, and any
    other number without ids, count once each.
    """
    counted = [one for one in known or () if isinstance(one, Layers)]
    if counted:
        return counted
    readers = _readers(pattern)
    every = sorted(layer for group in readers.values() for layer in group)
    ids = None if known is None else [one for one in known if isinstance(one, int)]
    if ids is None and traces == 1:
        return [Layers(tuple(readers), len(every))]
    if ids is None:
        ids = {len(every): every, len(readers): list(readers)}.get(traces)
    if ids is None or not set(ids) <= set(every):
        return [Layers((i,), 1) for i in ids or range(traces)]
    with_own = set(ids)
    return [Layers((i,), len({i} | set(readers.get(i, ())) - with_own)) for i in ids]


def reading(pattern: str) -> int:
    """How many layers of a model read a top-k, their own or a shared one."""
    return sum(map(len, _readers(pattern).values()))


def _readers(pattern: str) -> dict[int, list[int]]:
    """For each owner the layers that read its top-k, itself first."""
    found: dict[int, list[int]] = {}
    for layer, letter in enumerate(pattern):
        if letter == "F":
            found[layer] = [layer]
        elif letter == "S":
            found[next(reversed(found))].append(layer)
    return found
