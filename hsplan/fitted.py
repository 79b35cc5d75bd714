"""Of which deployment a stored step profile is, against the one that is planned with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from hsplan.spec import Loaded, load_spec
from hsplan.steptime import StepProfile

ANY = frozenset({"max_position_embeddings"})  # says how long requests may be, not how long a step takes


def differences(loaded: Loaded, profile: StepProfile) -> list[str]:
    """What was fitted and what is planned, wherever the two are not the same: `gpu h200, here gb300`."""
    deployment = loaded.spec.deployment
    drafts = deployment.num_speculative_tokens or deployment.draft_layers
    pairs = [
        ("model", profile.model, profile.model if _is_model(loaded, profile.model) else _named(loaded)),
        ("engine", profile.engine, deployment.engine),
        ("gpu", profile.gpu, deployment.gpu.lower()),
        ("dp_attention", profile.ranks, deployment.dp_attention),
        ("drafts", 0, drafts),
    ]
    return [f"{key} {fitted}, here {planned}" for key, fitted, planned in pairs if fitted != planned]


def _named(loaded: Loaded) -> str:
    weights = loaded.spec.weights
    given = None if weights == "auto" else weights.checkpoint
    return (loaded.title or "another") + (f" in {given}" if given else "")


def _is_model(loaded: Loaded, name: str) -> bool:
    """Whether the model has all plain fields of a shipped one, and its number format."""
    weights, shipped = loaded.spec.weights, _fields(name)
    if weights != "auto" and weights.checkpoint not in (None, shipped["quant_method"]):
        return False
    own = _plain(loaded.spec.model)
    return all(own.get(key) == value for key, value in shipped.items())


@cache
def _fields(name: str) -> dict[str, Any]:
    return _plain(load_spec(name, {}).spec.model)


def _plain(model: Mapping[str, Any]) -> dict[str, Any]:
    quantization = model.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    found = {key: value for key, value in model.items() if isinstance(value, str | int | float) and key not in ANY}
    return {**found, "quant_method": method}
