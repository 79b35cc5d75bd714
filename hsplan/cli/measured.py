"""A `Measurement` as text: where it ran, figures in tables, a verdict for every claim."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.cli.figures import counted, gib, number
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.errors import printable
from hsplan.measurement import LinkRate, Machine, Measurement, Percentiles
from hsplan.ranks import SharedRate
from hsplan.result import Plan
from hsplan.units import size


def measured(plan: Plan, found: Measurement) -> str:
    """The whole report."""
    parts = [
        _head(plan, found),
        _lines(found),
        _tokens(found),
        _link(found),
        _timings(found),
        _checks(found),
        "\n".join(_remarks(found)),
        _verdict(found),
    ]
    return "\n\n".join(filter(None, parts))


def _head(plan: Plan, found: Measurement) -> str:
    run = found.run
    shape = f"{run.layers} layers, {run.owners} of them with top-k {run.top_k:,}"
    text = [
        wrapped(f"{printable(found.name)}: ", f"{plan.engine} {plan.launch.release.name}, {found.scenario}, "
                f"{machine_words(found.machine)}"),
        wrapped("run: ", f"{run.steps:,} steps, {counted(run.requests, 'request')} of {run.context:,} tokens, {shape}, "
                f"rows of {run.row_bytes:,} B, hot buffers of {run.slots:,}, {size(run.host_bytes)} in host memory, "
                f"{100 * (1 - run.miss_share):.1f} % of the top-k hit"),
    ]  # fmt: skip
    return "\n".join([*text, *(wrapped("scaled: ", what) for what in found.scaled)])


def machine_words(machine: Machine) -> str:
    """Card, link, driver and libraries."""
    if machine.memory_bytes is None:
        return f"on Triton's {machine.gpu}, torch {machine.torch}, triton {machine.triton}"
    link = f"PCIe {machine.link_generation} x{machine.link_width}, " if machine.link_generation else ""
    memory = f"{gib(machine.memory_bytes)} GiB"
    return f"on {machine.gpu} ({memory}, {link}driver {machine.driver}), torch {machine.torch}, triton {machine.triton}"


def _lines(found: Measurement) -> str:
    rows = [
        [
            line.name,
            line.place,
            number(line.predicted_bytes),
            number(line.measured_bytes),
            number(line.measured_bytes - line.predicted_bytes),
        ]
        for line in found.lines
    ]
    taken = "allocated, B" if found.machine.memory_bytes is not None else "by shape, B"
    return table(["ledger", "where", "predicted, B", taken, "difference, B"], rows, left=(0, 1))


def _tokens(found: Measurement) -> str:
    rows = [
        [check.scenario, gib(check.kv_budget_bytes), number(check.predicted_tokens), number(check.confirmed_tokens),
         f"{100 * (check.confirmed_tokens / check.predicted_tokens - 1):+.3f} %"]
        for check in found.tokens
    ]  # fmt: skip
    heads = ["all that is free as KV budget", "GiB", "tokens predicted", "confirmed", "off by"]
    return table(heads, rows) if rows else ""


def _link(found: Measurement) -> str:
    rows = [[mover(rate), *pool_words(rate), f"{rate.gb_s:.1f}"] for rate in found.link]
    heads = ["host link, ceilings of this run", "order", "pool, GiB", "rows a call", "GB/s"]
    return table(heads, rows, left=(0, 1)) if rows else ""


def mover(rate: LinkRate | SharedRate) -> str:
    """Who moves the bytes, and which way."""
    way = "host to GPU" if rate.direction == "h2d" else "GPU to host"
    return f"{'copy engine' if rate.driver == 'copy_engine' else 'kernel'}, {way}"


def pool_words(rate: LinkRate | SharedRate) -> list[str]:
    """Order, GiB of the pool and rows a call; dashes for whole copies."""
    if rate.pool_bytes is None or rate.rows is None:
        return ["–", "–", "–"]
    return [rate.order or "–", gib(rate.pool_bytes), number(rate.rows)]


def _timings(found: Measurement) -> str:
    rows = [
        [t.mode, *_percentiles(t.step_us, 1000, 2), *_percentiles(t.call_us, 1, 1), f"{t.gb_s:.1f}",
         f"{100 * t.share:.0f} %"]
        for t in found.timings
    ]  # fmt: skip
    heads = ["swap-in", "step p50, ms", "p95", "p99", "call p50, µs", "p95", "p99", "GB/s", "of ceiling"]
    return table(heads, rows) if rows else ""


def _percentiles(values: Percentiles, unit: int, digits: int) -> list[str]:
    return [f"{value / unit:,.{digits}f}" for value in (values.p50, values.p95, values.p99)]


def _checks(found: Measurement) -> str:
    rows = [[check.name, "holds" if check.passed else "FAILS", check.detail] for check in found.checks]
    return table(["claim", "verdict", "on"], rows, left=(0, 1, 2))


def _remarks(found: Measurement) -> Iterator[str]:
    for check in found.checks:
        if not check.passed:
            yield wrapped(f"{check.name} fails: ", f"the claim is that {check.claim}")
    for warning in found.machine.warnings:
        yield wrapped("warning: ", warning)
    for what in found.not_checked:
        yield wrapped("not checked: ", what)


def _verdict(found: Measurement) -> str:
    if found.injected is not None:
        return f"injected {found.injected}: " + ("caught" if found.caught else "NOT CAUGHT")
    held = sum(check.passed for check in found.checks)
    where = "the interpreter" if found.machine.memory_bytes is None else found.machine.gpu
    if held == len(found.checks):
        return f"all {held} claims hold on {where}"
    return f"{len(found.checks) - held} of {len(found.checks)} claims fail on {where}"
