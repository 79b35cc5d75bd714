"""The JSON Schema of a spec for editors: the types of `hsplan.spec.schema` in, draft 2020-12 out."""

from __future__ import annotations

from typing import Any

import msgspec

from hsplan.spec.schema import SECTIONS, SIZE_KEYS, Spec

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SIZE = {
    "type": "string",
    "pattern": r"^\s*\d{1,20}(\.\d{1,20})?\s*(|[Bb]|[KkMmGgTt]([Ii]?[Bb]))\s*$",
    "description": 'a size such as "134.127GiB" (2^30 bytes) or "2TB" (10^12 bytes)',
}


def spec_schema() -> dict[str, Any]:
    """
    The schema of what a user may write.

    It takes more than the checked `Spec`: sizes as text, a model by its name or path, an engine with its release.
    """
    schema = msgspec.json.schema(Spec)
    definitions = schema["$defs"]
    for section, keys in SIZE_KEYS.items():
        properties = definitions[SECTIONS[section].__name__]["properties"]
        for key in keys:
            properties[key] = _or_size(properties[key])
    model = definitions["Spec"]["properties"]["model"]
    definitions["Spec"]["properties"]["model"] = {
        "anyOf": [{"type": "string", "minLength": 1}, model],
        "description": "config.json fields, unchanged; or the name of a shipped spec; or a path",
    }
    definitions["Deployment"]["properties"]["engine"] |= {"examples": ["sglang", "sglang@0.5.23"]}
    return {"$schema": DRAFT, "title": "hsplan spec", **schema}


def _or_size(kind: dict[str, Any]) -> dict[str, Any]:
    """`kind`, or a size as text."""
    default = {"default": kind["default"]} if "default" in kind else {}
    choices = kind.get("anyOf") or [{key: value for key, value in kind.items() if key != "default"}]
    return {"anyOf": [*choices, SIZE], **default}
