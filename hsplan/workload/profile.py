"""
Workload profiles: parameters of the score model that traces are drawn from, one YAML file each.

score(token, step) = static + slow AR(1) + mid AR(1) + white noise, each with its weight, and a term for recent tokens;
the newest tokens and the first ones always belong to the top-k.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem, nearest, shown
from hsplan.files import read_file, reason_of
from hsplan.spec.document import MAX_TEXT_BYTES, parse_yaml

FOLDER = Path(__file__).with_name("profiles")
MOST_TOKENS = 2**21
REMEDY = "a profile is a mapping that starts with `source:`"

Weight = Annotated[float, Meta(ge=-1e6, le=1e6)]
Length = Annotated[float, Meta(ge=1e-3, le=1e9)]
Index = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class Churn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights of the layers below `end`, where they differ from those of the profile."""

    end: Annotated[int, Meta(ge=1)]
    slow: Weight | None = None
    mid: Weight | None = None
    white: Weight | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Weights of the parts of a score; the slow and mid parts last `slow_steps` and `mid_steps`.

    `recency` is the weight of a term that decays over `recency_tokens` of age. `source` says what the numbers stand
    for. `sinks` first and `recent` newest tokens are in every top-k. `layers` are ranges of layers with weights of
    their own, the lowest first: each from the end of the one before it to its own. The last end is the number of layers
    that the profile's stored miss curve is the mean of; layers from there on have the profile's own weights.
    """

    source: str
    static: Weight
    slow: Weight = 0.0
    slow_steps: Length = 1.0
    mid: Weight = 0.0
    mid_steps: Length = 1.0
    white: Weight = 0.0
    recency: Weight = 0.0
    recency_tokens: Length = 1.0
    sinks: Index = 4
    recent: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 1
    layers: tuple[Churn, ...] = ()

    def __post_init__(self) -> None:
        ends = [group.end for group in self.layers]
        if ends != sorted(set(ends)):
            raise ValueError(f"the ends of `layers` are {ends}: each must be above the one before it")

    def at(self, layer: int) -> Profile:
        """The profile of one layer by its id: its weights, and no more `layers`."""
        group = next((group for group in self.layers if layer < group.end), None)
        own = {} if group is None else {key: getattr(group, key) for key in ("slow", "mid", "white")}
        given = {key: weight for key, weight in own.items() if weight is not None}
        return msgspec.structs.replace(self, layers=(), **given)


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """A shipped profile by name, or a YAML file by path; raises InputError with what is wrong."""
    path = FOLDER / f"{name}.yaml" if name in profile_names() else Path(name)
    try:
        text = read_file(path, MAX_TEXT_BYTES).decode()
        return msgspec.convert(parse_yaml(text, str(path), REMEDY).data, Profile)
    except FileNotFoundError:
        what = f"no workload profile {shown(name)!r}"
        raise InputError(Problem(where="--profile", what=what, remedy=nearest(name, profile_names()))) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where="--profile", what=f"{shown(name)} cannot be read: {shown(reason)}")) from None
    except ValueError as error:
        raise InputError(Problem(where=str(path), what=str(error))) from None
