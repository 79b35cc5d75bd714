"""Traces of a whole model, drawn or recorded: one for all layers that read alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from hsplan.errors import InputError, Problem
from hsplan.workload.dumps import load_recording
from hsplan.workload.layers import Layers, by_churn, of_recording
from hsplan.workload.profile import load_profile
from hsplan.workload.trace import draw

Ids = npt.NDArray[np.int32]


class ModelTraces(msgspec.Struct, frozen=True):
    """`steps` of each trace, equally many, and the `layers` that it stands for; `source` says where they come from."""

    steps: list[list[Ids]]
    layers: list[Layers]
    source: str


def drawn(profile: str, pattern: str, *, context: int, top_k: int, steps: int, seed: int) -> ModelTraces:
    """
    A trace for each group of layers that have the same weights in the profile, all from the same dice.

    Layers of a group have traces of their own in truth; as each has its own hot buffer, one is a sample of all. The
    newest token, which has a slot of its own, is left out.

    Raises InputError for a profile that cannot be read, or reads more in every step than top-k.
    """
    loaded = load_profile(profile)
    if loaded.sinks + loaded.recent > top_k:
        what = f"sinks {loaded.sinks:,} and recent {loaded.recent:,} do not fit into top-k {top_k:,}"
        raise InputError(Problem(where=profile, what=what, remedy="lower them: both are in every top-k"))
    groups = by_churn(pattern, loaded)
    traces = [
        [ids[:-1] for ids in draw(own, context=context, top_k=top_k, steps=steps, seed=seed)] for own, _ in groups
    ]
    return ModelTraces(traces, [layers for _, layers in groups], f"profile {profile}, seed {seed}")


def recorded(path: Path, pattern: str, *, top_k: int) -> ModelTraces:
    """The traces of a file; raises InputError with what is wrong in it."""
    found = load_recording(path, top_k)
    return ModelTraces(found.traces, of_recording(pattern, len(found.traces), found.layers), f"recorded in {path}")
