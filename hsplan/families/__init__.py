"""
Model families: which one reads a config, and its layer plan.

A family is one file here and one line in `FAMILIES`: `ARCHITECTURES`, and `read(model, architecture, loaded)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from types import ModuleType
from typing import Any

from hsplan.errors import InputError, Problem, UnsupportedError, shown
from hsplan.families import deepseek, deepseek_v4, longcat, minimax_m3
from hsplan.families.base import LETTERS, BlockSparse, Compressed, Inventory, LayerPlan, Model, Tensor, Unit
from hsplan.families.schedule import owners_by_schedule
from hsplan.spec import Loaded

__all__ = [
    "FAMILIES", "LETTERS", "BlockSparse", "Compressed", "Inventory", "LayerPlan", "Model", "Tensor", "Unit",
    "layer_plan", "read_model", "unit_counts",
]  # fmt: skip

FAMILIES: tuple[ModuleType, ...] = (deepseek, longcat, deepseek_v4, minimax_m3)
BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.ARCHITECTURES}


def read_model(loaded: Loaded) -> Model:
    """
    The model of a spec; a nested text_config is read, the outer architecture decides the family.

    Raises UnsupportedError for an unknown architecture, with the known ones.
    """
    raw = loaded.spec.model
    text = raw.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        where = loaded.where("model.text_config")
        raise InputError(Problem(where=where, what=f"text_config is {shown(text)}", remedy="it is a mapping of fields"))
    fields = raw if text is None else _flattened(raw, text)
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        remedy = "config.json names the model class there, such as [GlmMoeDsaForCausalLM]"
        raise InputError(
            Problem(where=loaded.where("model.architectures"), what="`architectures` is missing", remedy=remedy)
        )
    family = BY_ARCHITECTURE.get(names[0])
    if family is None:
        raise UnsupportedError(
            Problem(
                where=loaded.where("model.architectures"),
                what=f"unknown architecture {shown(names[0])!r}; an unknown model is never guessed",
                remedy="known: " + ", ".join(BY_ARCHITECTURE),
            )
        )
    model: Model = family.read(fields, names[0], loaded)
    return model


def _flattened(raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of text_config under the outer names that say what the whole model is."""
    outer = {key: raw[key] for key in ("architectures", "quantization_config") if raw.get(key) is not None}
    return {**text, **outer}


def layer_plan(
    model: Model,
    precedence: tuple[str, ...],
    stage_sizes: Callable[[int, int], list[int]],
    loaded: Loaded,
) -> LayerPlan:
    """
    Owner layers by the release's schedule rules, and the pipeline stages as [first, end) of global layer ids.

    `stage_sizes(layers, pp)` is the engine's split. Raises InputError for a schedule that the engine refuses and
    for a range or stage count that the model does not have.
    """
    layers = model.num_attention_layers
    pattern = model.pattern or _pattern(model, layers, precedence, loaded)
    return LayerPlan(pattern, _stages(layers, stage_sizes, loaded), model.shares_keys)


def _pattern(model: Model, layers: int, precedence: tuple[str, ...], loaded: Loaded) -> str:
    """The letters of a model whose owner layers follow from schedule fields."""
    if model.index_topk is None:
        return "M" * layers
    try:
        owners = owners_by_schedule(model.schedule, layers, precedence)
    except InputError as error:
        raise InputError([_placed(problem, loaded) for problem in error.problems]) from None
    return "".join("FS"[not owner] for owner in owners)


def _placed(problem: Problem, loaded: Loaded) -> Problem:
    return Problem(what=problem.what, where=loaded.where(problem.where), remedy=problem.remedy)


def _stages(layers: int, stage_sizes: Callable[[int, int], list[int]], loaded: Loaded) -> tuple[tuple[int, int], ...]:
    deployment = loaded.spec.deployment
    if deployment.layer_range is not None:
        first, end = deployment.layer_range
        if end > layers:
            what = f"[{first}, {end}) goes past the model's {layers} layers"
            raise InputError(
                Problem(where=loaded.where("deployment.layer_range"), what=what, remedy=f"end at {layers}")
            )
        return ((first, end),)
    if deployment.pp > layers:
        what = f"{deployment.pp} stages for {layers} layers"
        raise InputError(Problem(where=loaded.where("deployment.pp"), what=what, remedy=f"use at most {layers}"))
    ends = list(accumulate(stage_sizes(layers, deployment.pp)))
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def unit_counts(model: Model, plan: LayerPlan, stage: tuple[int, int], *, owners: int) -> dict[Unit, int]:
    """How many units of each kind a stage holds, `owners` indexers among them; MTP layers are not in it."""
    first, end = stage
    inventory = model.inventory
    dense = max(0, min(end, inventory.dense_layers) - first) if inventory else 0
    return {
        "layer": end - first,
        "owner": owners,
        "dense": dense,
        "moe": end - first - dense,
        "first": int(first == 0),
        "last": int(end == len(plan.pattern)),
        **({unit: sum(first <= i < end for i in ids) for unit, ids in inventory.where.items()} if inventory else {}),
    }
