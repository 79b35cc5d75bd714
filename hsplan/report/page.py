"""One self-contained HTML page of a report: no script, no file beside it, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2
import msgspec

from hsplan.measurement import Measurement
from hsplan.planner import plan as make_plan
from hsplan.report import charts
from hsplan.report.curves import Curves, curves_of
from hsplan.report.value import Entry, Planned, Report

TEMPLATE = "page.html.j2"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One spec as the page shows it; only a spec that was priced has charts."""

    entry: Entry
    planned: Planned | None = None
    memory: dict[str, int] = {}
    curves: Curves | None = None
    curve: tuple[tuple[int, int | None, int | None], ...] = ()
    memory_chart: str = ""
    capacity_chart: str = ""
    concurrency_chart: str = ""
    host_chart: str = ""
    measurements: tuple[Measurement, ...] = ()


def page(report: Report, sources: Sequence[str], measurements: Sequence[Measurement]) -> str:
    """The page of `report`, made of `sources` in this order; a measurement stands with the spec that it names."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    pairs = enumerate(zip(report.specs, sources, strict=True), start=1)
    views = [_view(entry, source, f"c{i}", measurements) for i, (entry, source) in pairs]
    return environment.get_template(TEMPLATE).render(report=report, views=views)


def _view(entry: Entry, source: str, key: str, measurements: Sequence[Measurement]) -> View:
    planned = entry.planned
    if planned is None:
        return View(entry=entry)
    curves = curves_of(make_plan(source))
    host = {name: found.host_bytes_per_node for name, found in planned.scenarios.items() if found}
    host = {name: size for name, size in host.items() if size}
    return View(
        entry=entry,
        planned=planned,
        memory=charts.memory_parts(planned),
        curves=curves,
        curve=tuple(zip(curves.contexts, curves.without, curves.offload, strict=True)),
        memory_chart=charts.memory_chart(planned, key),
        capacity_chart=charts.capacity_chart(planned, key),
        concurrency_chart=charts.concurrency_chart(curves, key),
        host_chart=charts.host_chart(host, key) if host else "",
        measurements=tuple(found for found in measurements if found.name == entry.name),
    )
