"""What a validation on several ranks at once found, one rank beside the other (`hsplan.ranks/1`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hsplan.measurement import Check, LinkRate, Measurement, Timing
from hsplan.version import __version__

SCHEMA = "hsplan.ranks/1"
LEVEL = 0.02  # ranks whose steps differ by no more are equally fast


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """
    One rank: where it ran, what it measured while the others waited, and all that it found while all of them ran.

    `copy_of`: the rank that holds the same rows, itself for the first of those. `gpu_node`: the NUMA node of its card,
    `clock_mhz`: its clock under the timed steps; None where the system does not tell. `alone_link` and `alone_timings`
    are empty where nothing is timed; `measurement.link` and `measurement.timings` were taken on all ranks at once.
    """

    rank: int
    local_rank: int
    host: str
    copy_of: int
    gpu_node: int | None
    clock_mhz: int | None
    alone_link: tuple[LinkRate, ...]
    alone_timings: tuple[Timing, ...]
    measurement: Measurement


class SharedRate(msgspec.Struct, frozen=True, kw_only=True):
    """One ceiling of the host link, GB/s of each rank in the order of ranks: alone, and with all ranks at once."""

    driver: Literal["copy_engine", "gpu"]
    direction: Literal["h2d", "d2h"]
    row_bytes: int | None
    pool_bytes: int | None
    rows: int | None
    order: Literal["random", "sorted"] | None
    alone_gb_s: tuple[float, ...]
    together_gb_s: tuple[float, ...]
    alone_sum_gb_s: float
    together_sum_gb_s: float


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """
    Host memory of one machine, bytes. `pool_bytes`: host pools of its `ranks` as they were run, `rank_bytes` of one.

    `granted_bytes`: what all of them may take there, None where the system does not tell. `planned_bytes`: the host
    pools of a whole node of the plan.
    """

    host: str
    ranks: int
    rank_bytes: int
    pool_bytes: int
    granted_bytes: int | None
    planned_bytes: int


class LeastTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Device tokens of a scenario on the rank that holds least, which engines take for all ranks."""

    scenario: str
    rank: int
    predicted_tokens: int
    confirmed_tokens: int


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rank with the longest swap-in of a step, all ranks at once, against the fastest: medians in µs.

    `reasons`: the figures in which it is behind; empty when none of those measured is, or when the two are within 2 %.
    """

    rank: int
    step_us: float
    fastest_rank: int
    fastest_us: float
    reasons: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the two are more than 2 % apart."""
        return self.step_us > self.fastest_us * (1 + LEVEL)


class RanksMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All that a validation on several ranks found. `injected`: the known fault that was put into the last rank."""

    name: str
    scenario: str
    injected: str | None
    caught: bool | None
    ranks: tuple[Rank, ...]
    nodes: tuple[NodeMemory, ...]
    tokens: tuple[LeastTokens, ...]
    link: tuple[SharedRate, ...]
    slowest: Slowest | None

    @property
    def failed(self) -> tuple[tuple[int, Check], ...]:
        """The claims that do not hold, each with its rank."""
        return tuple((r.rank, check) for r in self.ranks for check in r.measurement.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the contract `hsplan.ranks/1`."""
        head = {"schema": SCHEMA, "hsplan_version": __version__, "passed": not self.failed}
        return {**head, **msgspec.to_builtins(self)}


def combined(ranks: tuple[Rank, ...], *, planned_node_bytes: int) -> RanksMeasurement:
    """All ranks of a run, in their order, with the figures that only several have; the last rank has the fault."""
    last = ranks[-1].measurement
    return RanksMeasurement(
        name=last.name,
        scenario=last.scenario,
        injected=last.injected,
        caught=last.caught,
        ranks=ranks,
        nodes=_nodes(ranks, planned_node_bytes),
        tokens=_tokens(ranks),
        link=_link(ranks),
        slowest=_slowest(ranks),
    )


def _nodes(ranks: tuple[Rank, ...], planned_bytes: int) -> tuple[NodeMemory, ...]:
    # The ranks of a machine follow each other.
    starts = [i for i, rank in enumerate(ranks) if rank.local_rank == 0]
    machines = [ranks[start:end] for start, end in zip(starts, [*starts[1:], len(ranks)], strict=True)]
    return tuple(_node(machine, planned_bytes) for machine in machines)


def _node(ranks: tuple[Rank, ...], planned_bytes: int) -> NodeMemory:
    pools = [_pool_bytes(rank.measurement) for rank in ranks]
    granted = [rank.measurement.machine.host_bytes for rank in ranks]
    return NodeMemory(
        host=ranks[0].host,
        ranks=len(ranks),
        rank_bytes=max(pools),
        pool_bytes=sum(pools),
        granted_bytes=None if None in granted else sum(each or 0 for each in granted),
        planned_bytes=planned_bytes,
    )


def _pool_bytes(found: Measurement) -> int:
    """What was taken for the host pool; on the interpreter, where the ledger is compared by shape, what was run."""
    if found.machine.memory_bytes is None:
        return found.run.host_bytes
    return sum(line.measured_bytes for line in found.lines if line.place == "host" and line.name == "host KV pool")


def _tokens(ranks: tuple[Rank, ...]) -> tuple[LeastTokens, ...]:
    found = []
    for checks in zip(*(rank.measurement.tokens for rank in ranks), strict=True):
        least = min(range(len(checks)), key=lambda rank: checks[rank].confirmed_tokens)
        found.append(
            LeastTokens(
                scenario=checks[0].scenario,
                rank=least,
                predicted_tokens=min(check.predicted_tokens for check in checks),
                confirmed_tokens=checks[least].confirmed_tokens,
            )
        )
    return tuple(found)


def _link(ranks: tuple[Rank, ...]) -> tuple[SharedRate, ...]:
    alone = zip(*(rank.alone_link for rank in ranks), strict=True)
    together = zip(*(rank.measurement.link for rank in ranks), strict=True)
    return tuple(_shared(ones, all_) for ones, all_ in zip(alone, together, strict=True))


def _shared(alone: tuple[LinkRate, ...], together: tuple[LinkRate, ...]) -> SharedRate:
    first = alone[0]
    return SharedRate(
        driver=first.driver,
        direction=first.direction,
        row_bytes=first.row_bytes,
        pool_bytes=first.pool_bytes,
        rows=first.rows,
        order=first.order,
        alone_gb_s=tuple(rate.gb_s for rate in alone),
        together_gb_s=tuple(rate.gb_s for rate in together),
        alone_sum_gb_s=sum(rate.gb_s for rate in alone),
        together_sum_gb_s=sum(rate.gb_s for rate in together),
    )


def _slowest(ranks: tuple[Rank, ...]) -> Slowest | None:
    if len(ranks) < 2 or not all(rank.measurement.timings for rank in ranks):
        return None
    order = sorted(ranks, key=_step_us)
    slow, fast = order[-1], order[0]
    found = Slowest(
        rank=slow.rank,
        step_us=_step_us(slow),
        fastest_rank=fast.rank,
        fastest_us=_step_us(fast),
        reasons=tuple(_reasons(slow, fast)),
    )
    return found if found.differs else msgspec.structs.replace(found, reasons=())


def _step_us(rank: Rank) -> float:
    """The median step by graph replay, as engines run it, or of the last mode that was timed."""
    timings = rank.measurement.timings
    return next((timing for timing in timings if timing.mode == "graph"), timings[-1]).step_us.p50


def _reasons(slow: Rank, fast: Rank) -> list[str]:
    """Where the slower rank is behind by more than 2 %, by figures alone."""
    mine, other = slow.measurement, fast.measurement
    found = []
    if mine.run.rows_loaded > other.run.rows_loaded * (1 + LEVEL):
        found.append(f"it loaded {mine.run.rows_loaded:,} rows in the checked steps, not {other.run.rows_loaded:,}")
    pairs = (
        ("with all ranks at once", mine.link, other.link),
        ("alone", slow.alone_link, fast.alone_link),
    )
    for when, rates, others in pairs:
        lower = [(a, b) for a, b in zip(rates, others, strict=False) if _is_copy(a) and a.gb_s * (1 + LEVEL) < b.gb_s]
        found += [f"its link copies {a.gb_s:.1f} GB/s {when}, not {b.gb_s:.1f}" for a, b in lower]
    here, there = mine.machine, other.machine
    if (here.link_generation, here.link_width) != (there.link_generation, there.link_width):
        found.append(
            f"its link is PCIe {here.link_generation} x{here.link_width}, "
            f"not {there.link_generation} x{there.link_width}"
        )
    if slow.gpu_node != fast.gpu_node:
        found.append(f"its card is at NUMA node {slow.gpu_node}, not {fast.gpu_node}")
    if slow.clock_mhz and fast.clock_mhz and slow.clock_mhz * (1 + LEVEL) < fast.clock_mhz:
        found.append(f"its card runs at {slow.clock_mhz:,} MHz, not {fast.clock_mhz:,}")
    if slow.host != fast.host:
        found.append(f"it is on {slow.host}, not on {fast.host}")
    return found


def _is_copy(rate: LinkRate) -> bool:
    return (rate.driver, rate.direction) == ("copy_engine", "h2d")
