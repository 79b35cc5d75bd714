"""How long a decode step takes without offload: given as numbers, or by the name of a stored profile."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hsplan.units import ROUNDING_MS

DATA = Path(__file__).with_name("data")
PREFIX = "steptime-"

Ms = Annotated[float, Meta(ge=0, le=1e9)]


class StepMs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Milliseconds of a decode step of one rank without offload.

    `fixed` + requests × (`per_request` + `per_context_token` × tokens of a request).
    """

    fixed: Ms
    per_request: Ms = 0.0
    per_context_token: Ms = 0.0

    def at(self, requests: int, context: int) -> float:
        """Milliseconds of a step of so many requests of `context` tokens."""
        return self.fixed + requests * self.each(context)

    def each(self, context: int) -> float:
        """Milliseconds that one more request of `context` tokens adds to a step."""
        return self.per_request + self.per_context_token * context

    def requests_within(self, tpot_ms: float, context: int, most: int) -> int:
        """The most requests of `context` tokens, up to `most`, whose step takes `tpot_ms` at most."""
        room, each = tpot_ms - self.fixed + ROUNDING_MS, self.each(context)
        if room < 0:
            return 0
        return most if each == 0 else int(min(most, room / each))


class StepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One published throughput: output `tokens_s` of the node with `requests` of `context` tokens on each rank."""

    tokens_s: float
    context: int
    requests: int
    why: str


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """
    A fitted step: what it is of (`summary`), the `points` it was fitted to, and what was assumed about them.

    `model` is the name of a shipped spec; `ranks` ran attention data-parallel, without drafts.
    """

    profile: str
    summary: str
    source: str
    command: str
    model: str
    engine: str
    gpu: str
    ranks: int
    points: tuple[StepPoint, ...]
    assumptions: tuple[str, ...]
    step_ms: StepMs


@cache
def step_profiles() -> tuple[str, ...]:
    """Names of the stored profiles."""
    return tuple(sorted(path.stem.removeprefix(PREFIX) for path in DATA.glob(f"{PREFIX}*.json")))


@cache
def step_profile(name: str) -> StepProfile:
    """A stored profile; raises FileNotFoundError for a name without."""
    return msgspec.json.decode((DATA / f"{PREFIX}{name}.json").read_bytes(), type=StepProfile)
