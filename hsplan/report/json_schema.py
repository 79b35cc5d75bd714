"""The JSON Schema of `hsplan.report/1`; the file beside this one is what it gives, and a test holds that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hsplan.report.value import Report

SHIPPED = Path(__file__).with_name("report-1.schema.json")
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> dict[str, Any]:
    """Draft 2020-12, from the types."""
    return {"$schema": DRAFT, "title": "hsplan.report/1", **msgspec.json.schema(Report)}
