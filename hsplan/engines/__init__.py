"""
Engines: the ones hsplan can ask.

An engine is a folder here and one line in `ENGINES`; it answers the questions of `base.Engine`.
"""

from __future__ import annotations

from hsplan.engines.base import (
    SCENARIOS,
    Budget,
    Buffer,
    CompressedPools,
    Engine,
    Explain,
    Interval,
    Launch,
    Layout,
    Line,
    Pools,
    Rates,
    Row,
    Scenario,
    Step,
)
from hsplan.engines.sglang import SGLang
from hsplan.errors import Problem, UnsupportedError, shown
from hsplan.spec import Loaded

__all__ = [
    "ENGINES", "SCENARIOS", "Budget", "Buffer", "CompressedPools", "Engine", "Explain", "Interval", "Launch", "Layout",
    "Line", "Pools", "Rates", "Row", "Scenario", "Step", "engine_of",
]  # fmt: skip

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SGLang(),)}


def engine_of(loaded: Loaded) -> Engine:
    """The engine that a spec names; raises UnsupportedError with the known ones."""
    name = loaded.spec.deployment.engine
    if name not in ENGINES:
        remedy = "known: " + ", ".join(ENGINES)
        raise UnsupportedError(
            Problem(where=loaded.where("deployment.engine"), what=f"unknown engine {shown(name)!r}", remedy=remedy)
        )
    return ENGINES[name]
