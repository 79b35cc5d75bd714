"""
validate(): a plan in, what real pools and kernels made of it out.

    preflight → tokens that the card takes → link → pools by shape against the ledger → decode steps → timing

Without a GPU the kernels run on Triton's interpreter, on pools of a few layers and tokens; nothing is then measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import triton

from hsplan.engines import Line
from hsplan.errors import CannotRunError, Problem
from hsplan.gpu.decode import Sizes
from hsplan.gpu.faults import CAUGHT_BY, Fault
from hsplan.gpu.group import ALONE, Alone, Report
from hsplan.gpu.grow import confirm_tokens
from hsplan.gpu.link import measure_link
from hsplan.gpu.nvml import read_clock_mhz
from hsplan.gpu.place import Place
from hsplan.gpu.pools import allocated, by_shape, compared, one_layer_less, one_page_short, placeholder
from hsplan.gpu.preflight import preflight
from hsplan.gpu.prove import prove
from hsplan.gpu.scale import bytes_of, fitted, lines_of, pools_of, sizes_of
from hsplan.gpu.small import first_layers, small_plan, small_sizes
from hsplan.gpu.supported import SCENARIO, check_supported
from hsplan.gpu.timing import time_steps
from hsplan.gpu.verdicts import copies_check, ledger_check, plan_check, room_check, token_check
from hsplan.measurement import Check, LineCheck, LinkRate, Machine, Measurement, Run, Timing, TokenCheck
from hsplan.result import Plan, ScenarioPlan
from hsplan.units import GIB
from hsplan_kernels.memory import HostMemoryError

GPU_STEPS = 1000
FAULT_STEPS = 40
INTERPRETER_STEPS = 6
WORKING_BYTES = 6 * GIB  # of the GPU, for traces, state and checks beside the pools
LINK_ROWS = (256, 4096, 16384)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What one rank found. The figures of its own turn are empty where nothing is timed; without others no step is."""

    measurement: Measurement
    alone_link: tuple[LinkRate, ...] = ()
    alone_timings: tuple[Timing, ...] = ()
    clock_mhz: int | None = None


def validate(
    plan: Plan,
    *,
    gpu: bool,
    report: Report,
    steps: int | None = None,
    host_memory: int | None = None,
    fault: Fault | None = None,
) -> Measurement:
    """
    Prove a plan on the card here (`gpu`), or check the kernels on the interpreter.

    `steps` of decoding: 1,000 on a GPU, 40 there with a fault, 6 on the interpreter, if not given. `host_memory`:
    bytes that the host pool may take here. `fault`: a known fault to put in. `report(what, done, total)` is called
    as the work goes on. The interpreter needs TRITON_INTERPRET=1 before triton is imported.

    Raises UnsupportedError for plans without a hot buffer, CannotRunError where the machine cannot run them, and
    InputError for a fault that could not show and for steps that the interpreter cannot take.
    """
    check_supported(plan, gpu=gpu, steps=steps, fault=fault)
    return of_rank(
        plan, gpu=gpu, report=report, steps=steps, host_memory=host_memory, fault=fault, group=ALONE
    ).measurement


def of_rank(
    plan: Plan,
    *,
    gpu: bool,
    report: Report,
    steps: int | None,
    host_memory: int | None,
    fault: Fault | None,
    group: Alone,
) -> Found:
    """
    The part of one rank of `group` in a validation that `check_supported` lets pass, in step with the others.

    `host_memory` is that of the machine. The ranks run pools of the same size, which all of them can hold, as engines
    do; those that hold the same rows of the plan run the same requests. The fault goes into the last rank.
    """
    try:
        if gpu:
            return _on_gpu(plan, steps or (FAULT_STEPS if fault else GPU_STEPS), host_memory, fault, report, group)
        return _interpreted(plan, steps or INTERPRETER_STEPS, fault, report, group)
    except HostMemoryError as error:
        raise CannotRunError(Problem(what=error.cause, remedy=error.remedy)) from error
    except RuntimeError as error:  # torch's own errors of the card are of this kind
        if "CUDA" not in str(error):
            raise
        what = f"the GPU failed: {str(error).splitlines()[0]}"
        raise CannotRunError(
            Problem(what=what, remedy="see what nvidia-smi says; stop other processes there")
        ) from error


def copies(plan: Plan) -> int:
    """Ranks that hold the same latent rows: all of a TP group, or of each attention-DP rank."""
    return plan.launch.tp // plan.launch.data_parallel


def _interpreted(plan: Plan, steps: int, fault: Fault | None, report: Report, group: Alone) -> Found:
    place, entry = Place("cpu"), plan.scenarios[SCENARIO]
    fault = fault if group.rank == group.size - 1 else None
    small = small_plan(plan, SCENARIO)
    sizes, planned = small_sizes(plan, small, steps), pools_of(small)
    buffers = first_layers(planned.buffers(), sizes.owners)
    if fault == "short-pool":
        buffers = one_page_short(buffers, planned.page_tokens)
    with allocated(buffers, place) as pools:
        group.meet("pools")
        proof = prove(pools, planned, sizes, place, fault, report, seed=group.rank // copies(plan))
        same = copies_check(proof.decode.order(), copies(plan), group)
    taken = by_shape(pools_of(entry).buffers())
    machine = Machine(
        gpu="interpreter",
        memory_bytes=None,
        free_bytes=None,
        driver=None,
        torch=str(torch.__version__),  # a subclass of str, which msgspec does not write
        triton=triton.__version__,
        link_generation=None,
        link_width=None,
        host_bytes=None,
    )
    cut = f"{len(sizes.owners)} layers, top-k {sizes.top_k}, hot buffers of {sizes.slots} tokens"
    found = _measurement(
        plan,
        fault,
        machine=machine,
        scaled=(f"{cut}: sizes for Triton's interpreter",),
        lines=compared(_ledger(entry, fault), taken),
        checks=(*proof.checks, *same),
        run=proof.run,
        not_checked=("tokens, memory, the link and times: no GPU was used; the ledger is compared with shapes",),
    )
    return Found(measurement=found)


def _on_gpu(
    plan: Plan, steps: int, host_memory: int | None, injected: Fault | None, report: Report, group: Alone
) -> Found:
    place = Place("cuda")
    fault = injected if group.rank == group.size - 1 else None
    needed = bytes_of(pools_of(plan.scenarios[SCENARIO]).buffers(), "host")
    machine = preflight(
        host_memory=host_memory,
        needed_host_bytes=needed,
        progress=lambda done, total: report("host memory touched, GiB", done, total),
        group=group,
    )
    host_bytes = group.least(needed if machine.host_bytes is None else machine.host_bytes)
    free = group.least(place.free_bytes())
    fit = fitted(plan, SCENARIO, gpu_bytes=free - WORKING_BYTES, host_bytes=host_bytes)
    planned = pools_of(fit.entry)
    buffers = planned.buffers()
    beside = free - fit.weight_bytes - bytes_of(buffers, "gpu")
    sizes, notes = sizes_of(fit, steps=steps, free_bytes=beside // 2)
    tokens = () if injected else _tokens(plan, place, report)
    group.meet("link")
    alone, link = ((), ()) if injected else _link(sizes, host_bytes, report, group)
    if fault == "short-pool":
        buffers = one_page_short(buffers, planned.page_tokens)
    with ExitStack() as stack:
        stack.enter_context(placeholder(fit.weight_bytes, place))
        report("pools", 0, 1)
        pools = stack.enter_context(allocated(buffers, place))
        free = place.free_bytes()
        report("pools", 1, 1)
        lines = compared(_ledger(fit.entry, fault), pools.taken_bytes)
        group.meet("pools")
        proof = prove(pools, planned, sizes, place, fault, report, seed=group.rank // copies(plan))
        same = copies_check(proof.decode.order(), copies(plan), group)
        alone_timings, timings = ((), ()) if injected else time_steps(proof.decode, alone, link, report, group)
        clock_mhz = read_clock_mhz(place.uuid)  # while it is still warm
    found = _measurement(
        plan,
        fault,
        machine=machine,
        scaled=(*fit.notes, *notes),
        lines=lines,
        checks=(*proof.checks, *same),
        run=proof.run,
        room=room_check(fit, free),
        link=link,
        tokens=tokens,
        timings=timings,
        not_checked=("weights: a placeholder of their size; decode graphs and activations: not allocated",),
    )
    return Found(
        measurement=found,
        alone_link=alone,
        alone_timings=alone_timings,
        clock_mhz=clock_mhz,
    )


def _tokens(plan: Plan, place: Place, report: Report) -> tuple[TokenCheck, ...]:
    """
    Every scenario that the engine runs, with all that the card has free as its budget.

    Without skip-TopK layers the elided scenarios are the others by another name.
    """
    names = [
        name
        for name, entry in plan.scenarios.items()
        if entry.available and entry.engine_applies and not (entry.scenario.elided and plan.launch.plan.elidable == 0)
    ]
    found = []
    for done, name in enumerate(names):
        report("pools grown to the limit", done, len(names))
        found.append(confirm_tokens(plan, name, place))
    report("pools grown to the limit", len(names), len(names))
    return tuple(found)


def _link(
    sizes: Sizes, host_bytes: int, report: Report, group: Alone
) -> tuple[tuple[LinkRate, ...], tuple[LinkRate, ...]]:
    """Ceilings for pools from 1 GiB up to that of one layer and beyond, and for few to many rows a call."""
    layer = sizes.requests * sizes.request_pages * sizes.page_tokens * sizes.row_bytes
    pools = tuple(sorted(size for size in {layer, GIB, 4 * GIB, 16 * GIB} if size <= host_bytes))
    return measure_link(
        row_bytes=sizes.row_bytes,
        pool_bytes=pools,
        rows_per_call=LINK_ROWS,
        progress=lambda done, total: report("link", done, total),
        group=group,
    )


def _ledger(entry: ScenarioPlan, fault: Fault | None) -> Sequence[Line]:
    lines = lines_of(entry)
    assert entry.layout is not None  # noqa: S101 - the scenario is available
    first, end = entry.layout.stage
    return one_layer_less(lines, end - first) if fault == "ledger-formula" else lines


def _measurement(
    plan: Plan,
    fault: Fault | None,
    *,
    machine: Machine,
    scaled: tuple[str, ...],
    lines: tuple[LineCheck, ...],
    checks: tuple[Check, ...],
    run: Run,
    not_checked: tuple[str, ...],
    room: Check | None = None,
    link: tuple[LinkRate, ...] = (),
    tokens: tuple[TokenCheck, ...] = (),
    timings: tuple[Timing, ...] = (),
) -> Measurement:
    capacity = plan.scenarios[SCENARIO].capacity
    assert capacity is not None  # noqa: S101 - the scenario is available
    found = (
        plan_check(SCENARIO, capacity),
        ledger_check(lines),
        *(token_check(check) for check in tokens),
        *([room] if room else []),
        *checks,
    )
    return Measurement(
        name=plan.name,
        scenario=SCENARIO,
        injected=fault,
        caught=None if fault is None else any(c.name == CAUGHT_BY[fault] and not c.passed for c in found),
        machine=machine,
        scaled=scaled,
        link=link,
        lines=lines,
        tokens=tokens,
        run=run,
        timings=timings,
        checks=found,
        not_checked=not_checked,
    )
