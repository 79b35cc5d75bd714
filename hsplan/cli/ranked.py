"""A `RanksMeasurement` as text: ranks side by side, what they share, and a verdict for every claim."""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.cli.figures import NONE, counted, number
from hsplan.cli.measured import machine_words, mover, pool_words
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.errors import printable
from hsplan.measurement import Check, Timing
from hsplan.ranks import LEVEL, Rank, RanksMeasurement
from hsplan.result import Plan
from hsplan.units import size


def ranked(plan: Plan, found: RanksMeasurement) -> str:
    """The whole report."""
    parts = [
        _head(plan, found),
        _ranks(found),
        _tokens(found),
        _memory(found),
        _link(found),
        _host_rate(plan, found),
        _claims(found),
        "\n".join(_remarks(found)),
        _verdict(found),
    ]
    return "\n\n".join(filter(None, parts))


def _head(plan: Plan, found: RanksMeasurement) -> str:
    first = found.ranks[0].measurement
    run, nodes = first.run, len(found.nodes)
    where = f"{counted(len(found.ranks), 'rank')} on {counted(nodes, 'machine')}, {machine_words(first.machine)}"
    shape = f"{run.layers} layers, {run.owners} of them with top-k {run.top_k:,}"
    text = [
        wrapped(f"{printable(found.name)}: ", f"{plan.engine} {plan.launch.release.name}, {found.scenario}, {where}"),
        wrapped(
            "each rank: ",
            f"{run.steps:,} steps, {counted(run.requests, 'request')} of {run.context:,} tokens, {shape}, rows of "
            f"{run.row_bytes:,} B, hot buffers of {run.slots:,}, {size(run.host_bytes)} in host memory",
        ),
    ]
    scaled = dict.fromkeys(what for rank in found.ranks for what in rank.measurement.scaled)
    return "\n".join([*text, *(wrapped("scaled: ", what) for what in scaled)])


def _ranks(found: RanksMeasurement) -> str:
    rows = [
        [
            str(rank.rank),
            rank.host,
            NONE if rank.gpu_node is None else str(rank.gpu_node),
            "its own" if rank.copy_of == rank.rank else f"as rank {rank.copy_of}",
            number(rank.measurement.run.rows_loaded),
            f"{100 * rank.measurement.run.miss_share:.1f} %",
            _step(rank.alone_timings),
            _step(rank.measurement.timings),
            _gb_s(rank),
        ]
        for rank in found.ranks
    ]
    heads = ["rank", "host", "NUMA", "requests", "rows loaded", "missed", "step alone, ms", "together, ms", "GB/s"]
    return table(heads, rows, left=(1, 3))


def _step(timings: tuple[Timing, ...]) -> str:
    """The median step by graph replay, ms."""
    return next((f"{timing.step_us.p50 / 1000:,.2f}" for timing in timings if timing.mode == "graph"), NONE)


def _gb_s(rank: Rank) -> str:
    return next((f"{timing.gb_s:.1f}" for timing in rank.measurement.timings if timing.mode == "graph"), NONE)


def _tokens(found: RanksMeasurement) -> str:
    rows = [
        [least.scenario, number(least.predicted_tokens), number(least.confirmed_tokens), str(least.rank)]
        for least in found.tokens
    ]
    return table(["tokens, least of all ranks", "predicted", "confirmed", "on rank"], rows) if rows else ""


def _memory(found: RanksMeasurement) -> str:
    rows = [
        [
            node.host,
            str(node.ranks),
            size(node.rank_bytes),
            size(node.pool_bytes),
            NONE if node.granted_bytes is None else size(node.granted_bytes),
            size(node.planned_bytes),
        ]
        for node in found.nodes
    ]
    heads = ["host memory of", "ranks", "a rank", "all ranks", "granted here", "a node of the plan"]
    return table(heads, rows)


def _link(found: RanksMeasurement) -> str:
    rows = [
        [
            mover(rate),
            *pool_words(rate),
            f"{min(rate.alone_gb_s):.1f}",
            f"{rate.alone_sum_gb_s:.1f}",
            f"{min(rate.together_gb_s):.1f}",
            f"{rate.together_sum_gb_s:.1f}",
        ]
        for rate in found.link
    ]
    heads = ["host link, GB/s", "order", "pool, GiB", "rows a call", "alone, least", "sum", "together, least", "sum"]
    return table(heads, rows, left=(0, 1)) if rows else ""


def _host_rate(plan: Plan, found: RanksMeasurement) -> str:
    """What --host-gb-s takes: the sum of the copy engines of a node, or of the poorest where there are several."""
    rates = [rate for rate in found.link if (rate.driver, rate.direction) == ("copy_engine", "h2d")]
    if not rates:
        return ""
    nodes: dict[str, list[float]] = {}
    for rank, gb_s in zip(found.ranks, rates[0].together_gb_s, strict=True):
        nodes.setdefault(rank.host, []).append(gb_s)
    sums = min(nodes.values(), key=sum)
    planned = plan.launch.ranks_per_node
    text = f"{sum(sums):.1f} GB/s, copy engine, host to GPU, all {counted(len(sums), 'GPU')} of a node at once"
    if len(sums) < planned:
        text += f"; not for this plan, which has {planned} GPUs a node: measure as many at once"
    return wrapped("--host-gb-s: ", text)


def _claims(found: RanksMeasurement) -> str:
    names = dict.fromkeys(check.name for rank in found.ranks for check in rank.measurement.checks)
    rows = []
    for name in names:
        checks = {r.rank: check for r in found.ranks for check in r.measurement.checks if check.name == name}
        wrong = {rank: check for rank, check in checks.items() if not check.passed}
        rows.append([name, "FAILS" if wrong else "holds", _details(wrong or checks)])
    return table(["claim", "verdict", "on"], rows, left=(0, 1, 2))


def _details(checks: dict[int, Check]) -> str:
    """Once where all ranks say the same, else rank by rank."""
    texts = {check.detail for check in checks.values()}
    if len(texts) == 1 and len(checks) > 1:
        return f"each of {len(checks)} ranks: {texts.pop()}"
    return "; ".join(f"rank {rank}: {check.detail}" for rank, check in checks.items())


def _remarks(found: RanksMeasurement) -> Iterator[str]:
    slowest = found.slowest
    if slowest is not None:
        yield wrapped("slowest: ", _slowest_words(found))
    for rank, check in found.failed:
        yield wrapped(f"rank {rank}: {check.name} fails: ", f"the claim is that {check.claim}")
    for warning in dict.fromkeys(text for rank in found.ranks for text in rank.measurement.machine.warnings):
        yield wrapped("warning: ", warning)
    for what in dict.fromkeys(text for rank in found.ranks for text in rank.measurement.not_checked):
        yield wrapped("not checked: ", what)


def _slowest_words(found: RanksMeasurement) -> str:
    slowest = found.slowest
    assert slowest is not None  # noqa: S101 - the caller has looked
    if not slowest.differs:
        return f"no rank is more than {100 * LEVEL:.0f} % behind another"
    pair = f"{slowest.step_us / 1000:,.2f} ms a step, rank {slowest.fastest_rank} {slowest.fastest_us / 1000:,.2f} ms"
    why = "; ".join(slowest.reasons) or "no figure measured here says why"
    return f"rank {slowest.rank}, {pair}: {why}"


def _verdict(found: RanksMeasurement) -> str:
    if found.injected is not None:
        last = found.ranks[-1].rank
        return f"injected {found.injected} into rank {last}: " + ("caught" if found.caught else "NOT CAUGHT")
    claims = {check.name for rank in found.ranks for check in rank.measurement.checks}
    where = counted(len(found.ranks), "rank")
    if not found.failed:
        return f"all {len(claims)} claims hold on each of {where}"
    wrong = sorted({rank for rank, _ in found.failed})
    failed = {check.name for _, check in found.failed}
    return f"{len(failed)} of {counted(len(claims), 'claim')} fail on rank {', '.join(map(str, wrong))} of {where}"
