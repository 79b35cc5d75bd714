"""A validation on several ranks at once: a plan and a seat go in, what all of them found comes out on the first."""

from __future__ import annotations

import msgspec
import torch

from hsplan.capacity import host_pools
from hsplan.errors import CannotRunError, InputError, Problem
from hsplan.gpu.faults import Fault
from hsplan.gpu.group import Group, Report
from hsplan.gpu.numa import node_of, stay_at
from hsplan.gpu.nvml import read_bus
from hsplan.gpu.place import Place
from hsplan.gpu.scale import bytes_of, pools_of
from hsplan.gpu.supported import SCENARIO, check_supported
from hsplan.gpu.validate import copies, of_rank
from hsplan.ranks import Rank, RanksMeasurement, combined
from hsplan.result import Plan

SILENCE_S = 180.0  # the longest stage without a word, pinning of host memory aside
PINNED_BYTES_S = 10**9  # the slowest machines pin so many


def check_ranks(plan: Plan, ranks: int, *, gpu: bool, steps: int | None, fault: Fault | None) -> None:
    """
    Raise what is wrong with so many ranks of a plan before they are started.

    UnsupportedError and InputError as `hsplan.gpu.supported.check_supported`; InputError for more than the plan has.
    """
    check_supported(plan, gpu=gpu, steps=steps, fault=fault)
    if ranks > plan.launch.tp:
        what = f"{ranks} ranks, but a stage of the plan has {plan.launch.tp} (tp {plan.launch.tp})"
        raise InputError(Problem(where="--ranks", what=what, remedy=f"give at most {plan.launch.tp}"))


def check_cards(ranks: int) -> None:
    """Raise CannotRunError for more ranks than this machine has cards; a machine with none is the preflight's."""
    count = torch.cuda.device_count()
    if 0 < count < ranks:
        what = f"{ranks} ranks, but this machine shows {count} GPUs"
        remedy = f"give at most --ranks {count}; over several machines start them with torchrun"
        raise CannotRunError(Problem(what=what, remedy=remedy))


def silence_s(plan: Plan) -> float:
    """Seconds without a sign of life after which a rank hangs: longer where more host memory is to be pinned."""
    return SILENCE_S + bytes_of(pools_of(plan.scenarios[SCENARIO]).buffers(), "host") / PINNED_BYTES_S


def validate_ranks(
    plan: Plan,
    group: Group,
    *,
    gpu: bool,
    report: Report,
    steps: int | None = None,
    host_memory: int | None = None,
    fault: Fault | None = None,
) -> RanksMeasurement | None:
    """
    The part of this rank, and on the first rank what all of them found; None on the others.

    Options as those of `hsplan.gpu.validate.validate`, with `host_memory` that of each machine, and the same on every
    rank. `report` is called on the first rank. The fault goes into the last one.
    """
    node = _stay_near_the_card() if gpu else None
    told = group.report(report)
    found = of_rank(plan, gpu=gpu, report=told, steps=steps, host_memory=host_memory, fault=fault, group=group)
    mine = Rank(
        rank=group.rank,
        local_rank=group.local_rank,
        host=group.host,
        copy_of=group.rank // copies(plan) * copies(plan),
        gpu_node=node,
        clock_mhz=found.clock_mhz,
        alone_link=found.alone_link,
        alone_timings=found.alone_timings,
        measurement=found.measurement,
    )
    texts = group.gather(msgspec.json.encode(mine).decode())
    if group.rank:
        return None
    ranks = tuple(msgspec.json.decode(text, type=Rank) for text in texts)
    return combined(ranks, planned_node_bytes=_planned_node_bytes(plan))


def _stay_near_the_card() -> int | None:
    """The NUMA node of the card, where this process runs and its host pool lies from now on."""
    if torch.cuda.device_count() == 0:
        return None  # the preflight says why
    try:
        uuid = Place("cuda").uuid
    except RuntimeError:
        return None
    node = node_of(read_bus(uuid))
    stay_at(node)
    return node


def _planned_node_bytes(plan: Plan) -> int:
    pools = pools_of(plan.scenarios[SCENARIO])
    return pools.host_bytes * host_pools(plan.launch, pools)
