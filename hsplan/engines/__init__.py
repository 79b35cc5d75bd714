"""
Engines: the ones hsplan can ask.

An engine is a folder here and one line in `ENGINES`; it answers the questions of `base.Engine`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hsplan.engines.base import (
    SCENARIOS,
    Blocks,
    Budget,
    Buffer,
    CompressedPools,
    Engine,
    Explain,
    Flag,
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
from hsplan.engines.vllm import VLLM, Calculator
from hsplan.errors import Problem, UnsupportedError, shown
from hsplan.spec import Loaded

__all__ = [
    "ENGINES",
    "PRESETS",
    "SCENARIOS",
    "Blocks",
    "Budget",
    "Buffer",
    "CompressedPools",
    "Engine",
    "Explain",
    "Flag",
    "Interval",
    "Launch",
    "Layout",
    "Line",
    "Pools",
    "Rates",
    "Row",
    "Scenario",
    "Step",
    "engine_of",
]  # fmt: skip

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SGLang(), VLLM())}
# Calculators of others, to compare with: asked in place of an engine.
PRESETS: dict[str, Engine] = {preset.name: preset for preset in (Calculator(),)}


def engine_of(loaded: Loaded) -> Engine:
    """The engine, or the preset in its place, that a spec names; raises UnsupportedError with the known ones."""
    deployment = loaded.spec.deployment
    if deployment.preset is not None:
        return _known(PRESETS, "preset", deployment.preset, loaded)
    return _known(ENGINES, "engine", deployment.engine, loaded)


def _known(engines: Mapping[str, Engine], key: str, name: str, loaded: Loaded) -> Engine:
    if name not in engines:
        remedy = "known: " + ", ".join(engines)
        where = loaded.where(f"deployment.{key}")
        raise UnsupportedError(Problem(where=where, what=f"unknown {key} {shown(name)!r}", remedy=remedy))
    return engines[name]
