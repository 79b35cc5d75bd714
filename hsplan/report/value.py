"""
The report as a value: `hsplan.report/1`, whose JSON Schema lies beside this file.

All figures of a scenario are of one data-parallel rank, but for `host_bytes_per_node`. Bytes and tokens are ints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SCHEMA: Literal["hsplan.report/1"] = "hsplan.report/1"
MAX_SPECS = 100_000

Count = Annotated[int, Meta(ge=0, le=2**62)]
Signed = Annotated[int, Meta(ge=-(2**62), le=2**62)]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario: `tokens` is what the engine logs as its capacity, `tokens_range` [at least, at most]."""

    engine_applies: bool
    tokens: Count
    tokens_range: Annotated[list[Count], Meta(min_length=2, max_length=2)]
    logical_tokens: Count
    requests: Count
    binding: str
    kv_budget_bytes: Signed
    bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)] | None
    row_bytes: Count
    host_bytes_per_node: Count
    headroom_bytes: Signed
    fits: bool
    why_not: str | None


class LedgerLine(msgspec.Struct, frozen=True):
    """What takes memory, as launched; `part`: what sizes the budget, or the pool and what lies beside it."""

    name: str
    bytes: Signed
    place: Literal["gpu", "host"]
    scope: Literal["rank", "node"]
    part: Literal["budget", "pool"]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """
    A spec that was priced; a scenario that is not available is null.

    `settings` are all keys of the spec that differ from their defaults. `data_parallel` ranks have these figures each,
    and together so many times the requests and tokens. `left_out_bytes` of a GPU are neither in a line
    that sizes the budget nor in the budget as launched: what the memory fraction leaves out.
    """

    settings: dict[str, Any]
    engine: str
    release: str
    gpu: str
    gpus: Count
    context: Count
    as_launched: str
    scenarios: dict[str, Figures | None]
    ledger: tuple[LedgerLine, ...]
    left_out_bytes: Signed
    data_parallel: Annotated[int, Meta(ge=1, le=2**62)] = 1  # reports of earlier versions lack it

    @property
    def launched(self) -> Figures:
        """The scenario as launched; `read_report` refuses a report without it."""
        found = self.scenarios[self.as_launched]
        assert found is not None  # noqa: S101
        return found


class Refused(msgspec.Struct, frozen=True):
    """Why a spec has no figures: what `estimate` would print and return."""

    exit_code: Annotated[int, Meta(ge=1, le=255)]
    lines: tuple[str, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One spec: exactly one of `planned` and `refused`.

    `name` is unique in a report; `source` is what was given; `sha256` is of all but the name, and tells a renamed spec.
    """

    name: Annotated[str, Meta(min_length=1, max_length=500)]
    source: str
    sha256: str
    planned: Planned | None
    refused: Refused | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All specs, in the order given."""

    schema: Literal["hsplan.report/1"]
    hsplan_version: str
    specs: Annotated[tuple[Entry, ...], Meta(max_length=MAX_SPECS)]

    def named(self) -> dict[str, Entry]:
        """Entries by name."""
        return {entry.name: entry for entry in self.specs}

    @property
    def exit_code(self) -> int:
        """That of the first refusal; else 1 when a spec does not fit as launched; else 0."""
        refused = [entry.refused.exit_code for entry in self.specs if entry.refused]
        fits = all(entry.planned.launched.fits for entry in self.specs if entry.planned)
        return refused[0] if refused else int(not fits)
