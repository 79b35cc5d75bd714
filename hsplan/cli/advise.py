"""`hsplan advise`: a spec in; the best offload settings, what they give, and the launch flags for them out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hsplan.cli.bars import bars
from hsplan.cli.figures import NONE, gib, number
from hsplan.cli.grid import grid_of
from hsplan.cli.options import spec_argument, spec_options
from hsplan.cli.output import check_target, emit, emit_json, wrapped
from hsplan.cli.scenarios import title
from hsplan.cli.tables import table
from hsplan.engines import Flag, engine_of
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.planner import link_notes, step_notes
from hsplan.planner import plan as make_plan
from hsplan.result import Plan
from hsplan.tuning import Setting, Tuned, tuned

EXAMPLE = "Example: hsplan advise glm-5.2-fp8 --context 131072 --tpot-ms 50"
SCHEMA = "hsplan.advice/1"


@spec_options
def advise(
    spec: Annotated[str, spec_argument()],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help=f"Print JSON ({SCHEMA}).", rich_help_panel="Output")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.",
                                  show_default=False, rich_help_panel="Output")
    ] = None,
    **options: Any,
) -> None:  # fmt: skip
    """
    Search the offload settings: hot-buffer size, host tokens for each on the GPU, and running requests.

    Best is what yields the most tokens a second (with --step-ms) or holds the most requests, within --tpot-ms.
    """
    combinations, varying = grid_of(options)
    if varying:
        raise InputError(Problem(what="advise searches one deployment", remedy="give each option once"))
    if output is not None:
        check_target(output)
    plan = make_plan(spec, **combinations[0])
    _check(plan)
    found = tuned(plan)
    if as_json:
        emit_json(_json(plan, found), output)
    else:
        parts = [title(plan), _table(found), _chart(found), _flags(found), _notes(plan), _verdict(plan, found)]
        emit("\n\n".join(filter(None, parts)), output)
    if found.best is None and found.without is None:
        raise typer.Exit(1)


def _check(plan: Plan) -> None:
    """Raise UnsupportedError where there is no offload to advise about."""
    entry = plan.scenarios["offload"]
    if not entry.available or entry.pools is None or entry.pools.swap_in is None:
        what = f"there is no offload to advise about: {entry.reason or 'its misses are not modelled for this model'}"
        raise UnsupportedError(Problem(what=what))


def _settings(found: Tuned) -> list[Setting]:
    return ([found.without] if found.without else []) + list(found.sizes)


def _table(found: Tuned) -> str:
    settings = _settings(found)
    heads = ["hot buffer", "ratio", "requests", "binds", "swap-in, ms", "step, ms", "tokens/s", "host GiB, node"]
    if all(setting.host_to_device_ratio is None for setting in settings):
        heads[1] = ""
    return table(heads, [_row(setting, best=setting == found.best) for setting in settings], left=(0, 3))


def _chart(found: Tuned) -> str:
    """What each setting yields as bars: tokens a second where the step is known, else requests."""
    settings = _settings(found)
    if len(settings) < 2:
        return ""
    known = settings[0].tokens_s is not None
    yields = [setting.tokens_s or 0.0 if known else float(setting.requests) for setting in settings]
    labels = [_label(setting, best=setting == found.best) for setting in settings]
    return bars("tokens/s by hot buffer" if known else "requests by hot buffer", labels, yields)


def _label(setting: Setting, *, best: bool) -> str:
    size = "no offload" if setting.device_buffer_size is None else number(setting.device_buffer_size)
    return f"{size}{' (best)' if best else ''}"


def _row(setting: Setting, *, best: bool) -> list[str]:
    return [
        _label(setting, best=best),
        number(setting.host_to_device_ratio) if setting.host_to_device_ratio else NONE,
        number(setting.requests),
        setting.binding,
        f"{setting.swap_in_ms:.1f}",
        NONE if setting.step_ms is None else f"{setting.step_ms:.1f}",
        NONE if setting.tokens_s is None else f"{setting.tokens_s:,.0f}",
        gib(setting.host_bytes_per_node) if setting.host_bytes_per_node else NONE,
    ]


def _flags(found: Tuned) -> str:
    if found.plan is None or not found.pays:
        return ""
    plan = found.plan
    pools = plan.launched.pools
    assert pools is not None  # noqa: S101 - the best setting is priced
    flags = engine_of(plan.launch.loaded).flags(plan.launch, pools)
    lines = [f"launch flags, {plan.engine} {plan.launch.release.name}:"]
    for flag in flags:
        lines += [f"  {flag.text}", wrapped("      ", flag.reason, indent=6)]
    return "\n".join(lines)


def _notes(plan: Plan) -> str:
    """What the times assume of the step and of the host link."""
    notes = (*step_notes(plan.launch.loaded), *link_notes(plan.scenarios))
    return "\n".join(wrapped("note: ", note) for note in notes)


def _verdict(plan: Plan, found: Tuned) -> str:
    context = plan.launch.loaded.spec.workload.context
    lines = []
    if found.pays_from is None:
        lines.append(wrapped("", "offload does not pay at any context that the model takes"))
    else:
        lines.append(wrapped("", f"offload pays from contexts of {found.pays_from:,} tokens on"))
    if found.best is None:
        lines.append("no setting with offload fits")
    elif found.pays:
        more = _more(found.best, found.without)
        lines.append(f"offload pays at {context:,} tokens: hot buffers of {found.best.device_buffer_size:,}{more}")
    else:
        lines.append(f"offload does not pay at {context:,} tokens")
    return "\n".join(lines)


def _more(best: Setting, without: Setting | None) -> str:
    if without is None:
        return f" hold {best.requests:,} requests, without it not one fits"
    if best.tokens_s is not None and without.tokens_s is not None:
        return f" yield {best.tokens_s / without.tokens_s:.2f} × the tokens a second"
    return f" hold {best.requests:,} requests instead of {without.requests:,}"


def _json(plan: Plan, found: Tuned) -> dict[str, Any]:
    launch = plan.launch
    flags: tuple[Flag, ...] = ()
    if found.plan is not None and found.plan.launched.pools is not None:
        flags = engine_of(found.plan.launch.loaded).flags(found.plan.launch, found.plan.launched.pools)
    return {
        "schema": SCHEMA,
        "name": plan.name,
        "engine": {"name": plan.engine, "release": launch.release.name},
        "workload": msgspec.to_builtins(launch.loaded.spec.workload),
        "pays": found.pays,
        "pays_from": found.pays_from,
        "best": msgspec.to_builtins(found.best),
        "without": msgspec.to_builtins(found.without),
        "sizes": msgspec.to_builtins(found.sizes),
        "flags": msgspec.to_builtins(flags),
        "notes": list(plan.notes),
    }
