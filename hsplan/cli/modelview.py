"""What `specs list` and `specs show` say of a model: a spec in, its layers and parameters out; no engine is asked."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hsplan.engines.sglang.launch import stage_sizes
from hsplan.engines.sglang.releases import release_of
from hsplan.errors import printable
from hsplan.families import LETTERS, LayerPlan, Model, Unit, layer_plan, read_model, unit_counts
from hsplan.spec import Loaded, load_spec
from hsplan.spec.source import Source, find, shipped_folder

ROW = 64


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model by the schedule rules of one release; parameters are None when config fields for them are missing."""

    source: Source
    loaded: Loaded
    model: Model
    plan: LayerPlan
    release: str
    parameters: int | None
    mtp_parameters: int | None


def view(spec: str | os.PathLike[str], release: str = "latest") -> ModelView:
    """The model of `spec` with the owner layers as `release` of SGLang finds them."""
    source = find(spec)
    # A config.json names no GPU, and the layers depend on none.
    unplaced = {"gpu": "any"} if source.is_config else {}
    loaded = load_spec(spec, {"engine": "sglang", "release": release, "layer_range": None, "pp": 1, **unplaced})
    model, known = read_model(loaded), release_of(loaded)
    plan = layer_plan(model, known.schedule, stage_sizes, loaded)
    main, mtp = _parameters(model, plan)
    return ModelView(
        source=source,
        loaded=loaded,
        model=model,
        plan=plan,
        release=known.name,
        parameters=main,
        mtp_parameters=mtp,
    )


def _parameters(model: Model, plan: LayerPlan) -> tuple[int | None, int | None]:
    """Parameters of the main stack, and of the MTP layers with their copies of embedding and head."""
    inventory = model.inventory
    if inventory is None:
        return None, None
    layers = len(plan.pattern)
    units = unit_counts(model, plan, (0, layers), owners=plan.owners_in(0, layers))
    mtp: dict[Unit, int] = {"mtp": inventory.mtp_layers, "mtp_copy": inventory.mtp_layers}
    return inventory.parameters(units), inventory.parameters(mtp)


def pattern_rows(plan: LayerPlan) -> list[str]:
    """One letter a layer in rows of 64, the id of the first layer at the left."""
    pattern = plan.pattern
    return [f"{start:>4}  {pattern[start : start + ROW]}" for start in range(0, len(pattern), ROW)]


def legend(plan: LayerPlan) -> str:
    """What the letters say: those of DSA and MLA models, or the ones that the model has."""
    used = set(plan.pattern)
    shown = "FSM" if used <= set("FSM") else [letter for letter in LETTERS if letter in used]
    return ", ".join(f"{letter} {LETTERS[letter]}" for letter in shown)


def ranges(ids: Sequence[int]) -> str:
    """`[0, 1, 2, 6]` as `0-2, 6`."""
    parts: list[list[int]] = []
    for i in ids:
        if parts and i == parts[-1][1] + 1:
            parts[-1][1] = i
        else:
            parts.append([i, i])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def comments(spec: str) -> list[str]:
    """The comment lines at the head of a YAML spec, without what it says to be unverified."""
    shipped = shipped_folder() / f"{spec}.yaml"
    path = shipped if os.sep not in spec and shipped.is_file() else Path(spec).expanduser()
    head = itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8-sig").splitlines())
    texts = (line.lstrip("# ").rstrip() for line in head)
    return [printable(text) for text in texts if text and not text.startswith("unverified:")]
