"""A spec as flat settings: every key that differs from its default, so that two reports can be told apart by them."""

from __future__ import annotations

from typing import Any

import msgspec

from hsplan.spec import Spec


def settings_of(spec: Spec) -> dict[str, Any]:
    """
    `{"max_running_requests": 64, "model.num_hidden_layers": 78, …}`: plain data, without the name of the spec.

    Keys of a section stand alone, since they are unique over all sections; fields of the model begin with `model.`.
    """
    found = {f"model.{key}": value for key, value in sorted(spec.model.items())}
    for section in (spec.weights, spec.deployment, spec.offload, spec.workload):
        if isinstance(section, msgspec.Struct):
            found |= _given(section)
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def _given(section: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.fields(section)
    return {
        field.name: getattr(section, field.name) for field in fields if getattr(section, field.name) != field.default
    }
