"""calibrate(): a spec and the logs of its server in, a `Calibration` out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from hsplan.calibrate import pins
from hsplan.calibrate.causes import cause_of, changes_that_agree, unit_error
from hsplan.calibrate.figures import Figure, figures
from hsplan.calibrate.lines import VLLM
from hsplan.calibrate.log import Log, log_of
from hsplan.calibrate.scan import lines_of
from hsplan.calibrate.server import MOST_BYTES, Server, server_of
from hsplan.calibration import Calibration, Compared, Run, Window, launched_as
from hsplan.engines import engine_of
from hsplan.errors import HsplanError, InputError, Problem, shown
from hsplan.families import Model, read_model
from hsplan.spec import Loaded, load_spec

DTYPES = {"bfloat16": ("bfloat16",), "fp8_e4m3": ("float8_e4m3fn", "float8_e4m3fnuz", "uint8")}


class Started(msgspec.Struct, frozen=True):
    """One log read: the server as planned with the log's fraction, and the budgets that its figures allow."""

    server: Server
    log: Log
    budget: Window


def calibrate(
    spec: str | os.PathLike[str] | Mapping[str, Any], logs: Sequence[tuple[str, BinaryIO]], **overrides: Any
) -> Calibration:
    """
    Find what `logs` (name and bytes of each; one start of the same server each) pin about the server of `spec`.

    Raises InputError when a log has nothing of the kind, contradicts the spec or another log, and what planning
    the spec raises.
    """
    loaded = load_spec(spec, overrides)
    model = read_model(loaded)
    started = [_started(loaded, model, log_of(lines_of(stream), name)) for name, stream in logs]
    last = started[-1]
    weights, _ = pins.weights(last.log)
    free, after = last.log.window("free_before"), last.log.least("free_after")
    found = Calibration(
        name=loaded.title or model.architecture,
        runs=tuple(
            Run(fraction=one.server.launch.fraction, budget_bytes=one.budget, tokens=pins.logged_tokens(one.log))
            for one in started
        ),
        fraction_of_bytes=_common([pins.multiplied_by_fraction(one.server, one.log) for one in started]),
        weights_bytes=weights,
        outside_bytes=None if free is None or after is None else _less(after, last.budget),
        compared=tuple(map(_compared, figures(last.server, last.log, last.budget))),
        **launched_as(loaded, last.server.launch.release.name),
    )
    for run in found.runs:
        found.budget(run.fraction)  # raises when the runs are of several servers
    return found


def _started(loaded: Loaded, model: Model, log: Log) -> Started:
    engine = engine_of(loaded).name
    if log.engine != engine:
        what = f"the log is of {log.engine}, the spec of {engine}"
        raise InputError(Problem(where=log.where, what=what, remedy=f"give --engine {log.engine} and its release"))
    values = _fraction(loaded, log)
    server = server_of(loaded, model, values)
    problems = _problems(server, log)
    try:
        by_pool = pins.budget_by_pool(server, log)
        rows = figures(server, log, by_pool)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    wrong = [row for row in rows if row.contradicts]
    if problems or wrong:
        agreeing = changes_that_agree(loaded.spec.deployment, lambda change: _agrees(loaded, model, log, change))
        raise InputError([*problems, *(_contradiction(row, log, agreeing) for row in wrong)])
    capped = by_pool is not None and by_pool.high == MOST_BYTES
    budget = pins.budget_by_memory(server, log) if by_pool is None or capped else by_pool
    if budget is None:
        tokens = "max_total_tokens caps the tokens" if capped else "no tokens are printed"
        what = f"nothing pins the KV budget: {tokens}, and no free memory after weights is printed"
        raise InputError(Problem(where=log.where, what=what, remedy="give the log from the start of the server on"))
    return Started(server, log, budget)


def _fraction(loaded: Loaded, log: Log) -> dict[str, Any]:
    """The memory fraction that the log names, where it names one."""
    printed = log.numbers("fraction")
    if not printed:
        return {}
    given, logged = loaded.spec.deployment.mem_fraction, float(printed[-1])
    if given not in ("auto", logged):
        what = f"the spec has mem_fraction {given:g}, the log {logged:g}"
        where = loaded.where("deployment.mem_fraction")
        raise InputError(Problem(where=where, what=what, remedy="leave it out: it is read from the log"))
    return {"mem_fraction": logged}


def _agrees(loaded: Loaded, model: Model, log: Log, change: dict[str, Any]) -> bool:
    """Whether the plan with `change` has nothing that the log contradicts."""
    try:
        server = server_of(loaded, model, {**_fraction(loaded, log), **change})
        rows = figures(server, log, pins.budget_by_pool(server, log))
    except HsplanError:
        return False
    return not _problems(server, log) and not any(row.contradicts for row in rows)


def _problems(server: Server, log: Log) -> list[Problem]:
    """What the log says in words and the spec says otherwise."""
    loaded, problems = server.launch.loaded, []

    def differs(key: str, what: str, remedy: str = "") -> None:
        problems.append(Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy=remedy))

    release = server.launch.release.name
    for printed in log.texts("release"):
        if log.engine == VLLM and release.count(".") == 2 and printed.split("+")[0] != release:
            differs("release", f"the log is of {shown(printed)}, the spec of {release}", "give the log's release")
    if log.ranks > server.launch.tp:
        differs("tp", f"ranks up to TP{log.ranks - 1} speak in the log, the spec has tp {server.launch.tp}")
    row = server.layout.row
    for dtype in log.texts("dtype"):
        if dtype not in DTYPES.get(row.kv_cache_dtype, (dtype,)):
            what = f"the log allocates KV rows of {shown(dtype)}, the plan has {row.kv_cache_dtype}"
            differs("kv_cache_dtype", what, "set kv_cache_dtype as the server was launched")
    return problems


def _contradiction(row: Figure, log: Log, agreeing: str) -> Problem:
    logged, best = (
        f"{value / row.scale:,.{0 if row.scale == 1 else 2}f}" for value in (row.logged, row.predicted.best)
    )
    what = f"{row.line}: the log has {logged} {row.unit}, the spec gives {best}"
    words = [f"it agrees with {agreeing}"] if agreeing else [unit_error(row), f"check {row.keys}"]
    if row.of_fraction and not log.numbers("fraction"):
        words.insert(0, "the log names no memory fraction: give --mem-fraction as the server was launched")
    remedy = ", or ".join(filter(None, words))
    if row.line == "longest request":
        remedy = f"give max_model_len {row.logged:.0f}"
    return Problem(where=log.where, what=what, remedy=remedy)


def _compared(row: Figure) -> Compared:
    digits = 0 if row.scale == 1 else 3
    predicted = [
        round(edge / row.scale, digits) for edge in (row.predicted.low, row.predicted.best, row.predicted.high)
    ]
    logged = round(row.logged / row.scale, digits)
    return Compared(
        line=row.line,
        unit=row.unit,
        predicted=predicted,
        logged=logged,
        residual=round(logged - predicted[1], digits),
        cause=cause_of(row),
    )


def _common(windows: list[Window]) -> Window:
    """Bytes that all logs allow; raises InputError when there are none."""
    low, high = max(window.low for window in windows), min(window.high for window in windows)
    if low > high:
        what = "the logs differ in the memory that is free before weights"
        raise InputError(Problem(what=what, remedy="calibrate with the logs of one server"))
    return Window(low, high)


def _less(a: Window, b: Window) -> Window:
    return Window(a.low - b.high, a.high - b.low)
