"""`hsplan advise`: a spec in; the best offload settings, what they give, and the launch flags for them out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hsplan.cli.bars import bars
from hsplan.cli.figures import NONE, gib, number, tokens_a_second
from hsplan.cli.grid import grid_of
from hsplan.cli.options import spec_argument, spec_options
from hsplan.cli.output import check_target, emit, emit_json, wrapped
from hsplan.cli.scenarios import title
from hsplan.cli.tables import table
from hsplan.cli.verdict import verdict
from hsplan.engines import Flag, engine_of
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.planner import plan as make_plan
from hsplan.result import Plan
from hsplan.trial import Setting
from hsplan.tuning import Tuned, tuned

EXAMPLE = 'Example: hsplan advise glm-5.2-fp8 --context 131072 --tpot-ms 50 --step-ms "{fixed: 12, per_request: 0.3}"'
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
        parts = [title(plan), _table(plan, found), _chart(plan, found), _left_out(found), _flags(found)]
        notes = "\n".join(wrapped("note: ", note) for note in _notes(plan, found))
        emit("\n\n".join(filter(None, [*parts, notes, verdict(plan, found)])), output)
    if found.top is None:
        raise typer.Exit(1)


def _check(plan: Plan) -> None:
    """Raise UnsupportedError where there is no offload to advise about."""
    entry = plan.scenarios["offload"]
    if not entry.available or entry.pools is None or entry.pools.swap_in is None:
        unknown = "; ".join(entry.pools.not_modelled) if entry.pools else ""
        why = entry.reason or unknown or "its misses are not modelled for this model"
        raise UnsupportedError(Problem(what=f"there is no offload to advise about: {why}"))


def _settings(found: Tuned) -> list[Setting]:
    return ([found.without] if found.without else []) + list(found.sizes)


def _table(plan: Plan, found: Tuned) -> str:
    settings = _settings(found)
    if not settings:
        return ""
    heads = ["hot buffer", "ratio", "requests", "binds", "swap-in, ms", "step, ms", "tokens/s", "host GiB, node"]
    rows = [_row(setting, best=setting == found.top) for setting in settings]
    left = (0, 3)
    if all(setting.host_to_device_ratio is None for setting in settings):
        heads, rows, left = _without_column(1, heads), [_without_column(1, row) for row in rows], (0, 2)
    drawn = table(heads, rows, left=left)
    ranks = plan.launch.data_parallel
    return drawn if ranks == 1 else f"requests, times and tokens/s of each of {ranks} data-parallel ranks:\n{drawn}"


def _without_column(index: int, cells: list[str]) -> list[str]:
    return cells[:index] + cells[index + 1 :]


def _chart(plan: Plan, found: Tuned) -> str:
    """What each setting yields as bars: tokens a second where the step is known, else requests."""
    settings = _settings(found)
    if len(settings) < 2:
        return ""
    unit = "requests" if settings[0].tokens_s is None else "tokens/s"
    labels = [_label(setting, best=setting == found.top) for setting in settings]
    of_one = " of a rank" if plan.launch.data_parallel > 1 else ""
    return bars(f"{unit}{of_one} by hot buffer", labels, [setting.yields for setting in settings])


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
        tokens_a_second(setting.tokens_s),
        gib(setting.host_bytes_per_node) if setting.host_bytes_per_node else NONE,
    ]


def _left_out(found: Tuned) -> str:
    """The sizes without any setting, those of the same reason together."""
    reasons: dict[str, list[str]] = {}
    for entry in found.left_out:
        name = "no offload" if entry.device_buffer_size is None else number(entry.device_buffer_size)
        reasons.setdefault(entry.why, []).append(name)
    return "\n".join(wrapped("left out: ", f"{'; '.join(names)}: {why}") for why, names in reasons.items())


def _flags(found: Tuned) -> str:
    """What to add to the launch command; empty where offload is of no use."""
    plan = _used(found)
    if plan is None:
        return ""
    pools = plan.launched.pools
    assert pools is not None  # noqa: S101 - the best setting is priced
    ranks = plan.launch.cap_ranks
    of_all = f"; running requests are of all {ranks} ranks" if ranks > 1 else ""
    head = f"flags to add to your launch command, {plan.engine} {plan.launch.release.name}{of_all}:"
    lines = [wrapped("", head)]
    for flag in engine_of(plan.launch.loaded).flags(plan.launch, pools):
        lines += [f"  {flag.text}", wrapped("      ", flag.reason, indent=6)]
    return "\n".join(lines)


def _used(found: Tuned) -> Plan | None:
    """The best plan with offload, if it pays or is the only one that starts at the given max_model_len."""
    return found.plan if found.pays or _shortened(found) else None


def _shortened(found: Tuned) -> int | None:
    """The max_model_len without offload, where the given one does not start."""
    return None if found.without is None else found.without.max_model_len


def _notes(plan: Plan, found: Tuned) -> list[str]:
    """What the plan rests on, and what the search takes the options to mean."""
    launch = plan.launch
    workload, given = launch.loaded.spec.workload, launch.loaded.spec.deployment.max_running_requests
    notes = list((_used(found) or plan).notes)
    if workload.step is None and workload.tpot_ms is None:
        notes.append("without --step-ms the most requests are best, however long loading makes a step")
    length = _shortened(found)
    if length is not None:
        notes.append(
            f"without offload {plan.engine} does not start at max_model_len {launch.context_len:,}: "
            f"its row is of {length:,}, the longest planned to start"
        )
    if given != "auto" and any(setting.max_running_requests > given for setting in _settings(found)):
        notes.append(f"running requests are searched: the max_running_requests of {given:,} does not limit them")
    return notes


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
        "left_out": msgspec.to_builtins(found.left_out),
        "gain": found.gain,
        "data_parallel_ranks": launch.data_parallel,
        "notes": _notes(plan, found),
    }
