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


def of_recording(pattern: str, traces: int, ids: Sequence[int] | None) -> list[Layers]:
    """
    What each of `traces` stands for; `ids` are their layers, None where the file does not say.

    One trace stands for the model, as many as owners for those, as many as readers for each of them. A layer whose
    owner is recorded and itself is not counts with its owner. Traces of layers that the model does not have, and any
    other number without ids, count once each.
    """
    readers = _readers(pattern)
    every = sorted(layer for group in readers.values() for layer in group)
    if ids is None and traces == 1:
        return [Layers(tuple(readers), len(every))]
    if ids is None:
        ids = {len(every): every, len(readers): list(readers)}.get(traces)
    if ids is None or not set(ids) <= set(every):
        return [Layers((i,), 1) for i in ids or range(traces)]
    with_own = set(ids)
    return [Layers((i,), len({i} | set(readers.get(i, ())) - with_own)) for i in ids]


def _readers(pattern: str) -> dict[int, list[int]]:
    """For each owner the layers that read its top-k, itself first."""
    found: dict[int, list[int]] = {}
    for layer, letter in enumerate(pattern):
        if letter == "F":
            found[layer] = [layer]
        elif letter == "S":
            found[next(reversed(found))].append(layer)
    return found
