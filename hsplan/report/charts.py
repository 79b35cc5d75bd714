"""
Charts of one spec as SVG: figures in, text out that fits into a page.

Text and axes take the colour of the page (`currentColor`), so that they are seen in light and in dark; the same figures
give the same bytes. Every chart has its numbers in a table of the page beside it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hsplan.report.curves import Curves
from hsplan.report.value import Planned
from hsplan.units import GIB

INK = "#010203"  # becomes currentColor
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "hsplan", "font.family": "sans-serif", "font.size": 9,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
PARTS = {
    # seen on white and on black, and told apart without colour vision
    "weights": "#7d8590",
    "KV": "#2f81d8",
    "index-K": "#d9730d",
    "hot buffers and offload tables": "#0f9d76",
    "reserve": "#a05cc9",
}
WEIGHTS = ("weights", "draft weights", "loaded before the pool", "allocator and loading overhead")
KV = ("KV rows", "draft KV pool", "window KV", "ratio-4 KV", "ratio-128 KV", "ratio-4 state", "ratio-128 state")
OFFLOAD = ("HiSparse request tables", "HiSparse tables", "logical to device map", "index-K, hot and resident rows")


def memory_parts(planned: Planned) -> dict[str, int]:
    """Bytes of one rank by what a reader asks for; what is left of the GPU is `free`, which may be negative."""
    found = dict.fromkeys(PARTS, 0)
    for line in planned.ledger:
        if line.place == "gpu":
            found[_part(line.name)] += line.bytes
    return {**found, "free": planned.launched.headroom_bytes}


def _part(name: str) -> str:
    for part, names in (("weights", WEIGHTS), ("KV", KV), ("index-K", ("index-K",))):
        if name in names:
            return part
    return "hot buffers and offload tables" if name in OFFLOAD else "reserve"


@mpl.rc_context(STYLE)
def memory_chart(planned: Planned, key: str) -> str:
    """One stacked bar."""
    figure, axes = _figure(1.5)
    left = 0.0
    for part, size in memory_parts(planned).items():
        if size > 0:
            colour, edge = (PARTS[part], "none") if part in PARTS else ("none", INK)
            axes.barh(0, size / GIB, left=left, color=colour, edgecolor=edge, label=part)
            left += size / GIB
    axes.set_yticks([])
    axes.set_xlabel("GiB of one rank")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return _svg(figure, f"{key}-memory")


@mpl.rc_context(STYLE)
def capacity_chart(planned: Planned, key: str) -> str:
    """Logical tokens of each scenario; hatched where the release does not run it."""
    figure, axes = _figure(1.8)
    for name, found in planned.scenarios.items():
        if found is None:
            continue
        face, hatch = (PARTS["KV"], "") if found.engine_applies else ("none", "//")
        axes.barh(name, found.logical_tokens, facecolor=face, edgecolor=PARTS["KV"], hatch=hatch)
        _label(axes, f"{found.logical_tokens:,}", found.logical_tokens, name)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("logical tokens of one rank")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    return _svg(figure, f"{key}-capacity")


@mpl.rc_context(STYLE)
def concurrency_chart(curves: Curves, key: str) -> str:
    """Requests against context, both in powers; the crossover is a line."""
    figure, axes = _figure(2.6)
    for name, counts, style in (("without offload", curves.without, "o-"), ("with offload", curves.offload, "s--")):
        points = [(x, y) for x, y in zip(curves.contexts, counts, strict=True) if y]
        if points:
            colour = PARTS["KV" if style == "o-" else "index-K"]
            axes.plot(*zip(*points, strict=True), style, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(curves.contexts, [f"{context // 1024}K" for context in curves.contexts])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    if curves.crossover is not None:
        axes.axvline(curves.crossover, color=INK, linestyle=":")
        place: Any = ("data", "axes fraction")
        axes.annotate(
            "offload pays", (curves.crossover, 1), xycoords=place, xytext=(3, 0), textcoords="offset points", va="top"
        )
    axes.set_xlabel("tokens of one request")
    axes.set_ylabel("requests")
    if axes.lines:
        axes.legend(frameon=False)
    return _svg(figure, f"{key}-concurrency")


@mpl.rc_context(STYLE)
def host_chart(bytes_by_scenario: Mapping[str, int], key: str) -> str:
    """Host memory of a node for each scenario that needs some."""
    figure, axes = _figure(1.4)
    for name, size in bytes_by_scenario.items():
        axes.barh(name, size / GIB, color=PARTS["hot buffers and offload tables"])
        _label(axes, f"{size / GIB:,.0f}", size / GIB, name)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("GiB of host memory on a node")
    axes.locator_params(axis="x", nbins=4)
    return _svg(figure, f"{key}-host")


def _label(axes: Axes, text: str, value: float, name: str) -> None:
    axes.annotate(text, (value, name), xytext=(3, 0), textcoords="offset points", va="center")


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure, key: str) -> str:
    """The <svg> alone, with ids of its own and hidden from readers of tables."""
    text = io.StringIO()
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{key}-", svg).replace("xlink:href", "href")
    head = re.search(r'viewBox="[^"]+"', svg)
    assert head is not None  # noqa: S101
    body = svg[svg.index(">") + 1 :]
    return f'<svg {head[0]} aria-hidden="true" focusable="false">{body}'
