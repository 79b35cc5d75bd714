"""
validate(): a plan in, what real pools and kernels made of it out.

    preflight → tokens that the card takes → link → pools by shape against the ledger → decode steps → timing

Without a GPU the kernels run on Triton's interpreter, on pools of a few layers and tokens; nothing is then measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import triton

from hsplan.engines import Line
from hsplan.errors import CannotRunError, InputError, Problem, UnsupportedError
from hsplan.gpu.decode import Sizes
from hsplan.gpu.faults import CAUGHT_BY, Fault
from hsplan.gpu.group import ALONE, Alone
from hsplan.gpu.grow import confirm_tokens
from hsplan.gpu.link import measure_link
from hsplan.gpu.place import Place
from hsplan.gpu.pools import allocated, by_shape, compared, one_layer_less, one_page_short, placeholder
from hsplan.gpu.preflight import preflight
from hsplan.gpu.prove import Proof, prove
from hsplan.gpu.scale import Fitted, bytes_of, fitted, lines_of, pools_of, sizes_of
from hsplan.gpu.small import MOST_STEPS, first_layers, small_plan, small_sizes
from hsplan.gpu.timing import time_steps
from hsplan.measurement import Check, LineCheck, LinkRate, Machine, Measurement, Run, Timing, TokenCheck
from hsplan.result import Plan, ScenarioPlan
from hsplan.units import GIB, gib
from hsplan_kernels.index_k import PAGE_TOKENS
from hsplan_kernels.memory import HostMemoryError

SCENARIO = "elided+offload"  # both tricks at once: index-K of owner layers, hot buffers, replayed miss plans
GPU_STEPS = 1000
FAULT_STEPS = 40
LEAST_FAULT_STEPS = 4  # a row that was backed up must be read again, a slot grow old
INTERPRETER_STEPS = 6
WORKING_BYTES = 6 * GIB  # of the GPU, for traces, state and checks beside the pools
LINK_ROWS = (256, 4096, 16384)
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What one rank found; the figures of its own turn are empty where nothing is timed, or without other ranks."""

    measurement: Measurement
    alone_link: tuple[LinkRate, ...] = ()
    alone_timings: tuple[Timing, ...] = ()


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
    check(plan, gpu=gpu, steps=steps, fault=fault)
    return of_rank(
        plan, gpu=gpu, report=report, steps=steps, host_memory=host_memory, fault=fault, group=ALONE
    ).measurement


def check(plan: Plan, *, gpu: bool, steps: int | None, fault: Fault | None) -> None:
    """Raise what `validate` raises for the plan and the options, whatever the machine."""
    _check_supported(plan)
    if fault and steps is not None and steps < LEAST_FAULT_STEPS:
        what = f"a fault may not show in {steps} steps"
        raise InputError(Problem(where="--steps", what=what, remedy=f"give at least {LEAST_FAULT_STEPS}"))
    if not gpu and steps is not None and steps > MOST_STEPS:
        what = f"the interpreter takes at most {MOST_STEPS} steps, not {steps:,}"
        raise InputError(Problem(where="--steps", what=what, remedy="give fewer, or --gpu"))
    _check_shows(fault, _owners(plan) if gpu else small_sizes(plan, small_plan(plan, SCENARIO), 1).owners)


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
    The part of one rank of `group` in a validation that passes `check`: as `validate`, in step with the others.

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


def _check_supported(plan: Plan) -> None:
    entry, top_k = plan.scenarios[SCENARIO], plan.launch.model.index_topk
    if not entry.available or top_k is None:
        reason = entry.reason if not entry.available else "the model computes no top-k"
        raise UnsupportedError(Problem(what=f"there is no offload to validate: {reason}"))
    if pools_of(entry).swap_in is None:
        what = f"the kernels load MLA rows, and those of {plan.launch.model.architecture} are not"
        raise UnsupportedError(Problem(what=what, remedy="validate a DeepSeek-V3.2 or GLM-5.x deployment"))
    if pools_of(entry).hot_buffer_tokens == 0:
        what = f"the kernels are those of SGLang's hot buffers; {plan.engine} keeps hot rows in blocks of its pool"
        raise UnsupportedError(Problem(what=what, remedy="validate the plan of --engine sglang"))
    if top_k & (top_k - 1):
        raise UnsupportedError(Problem(what=f"the kernels take a power of two as top-k, not {top_k}"))
    row_bytes = entry.layout.row.bytes if entry.layout is not None else 0
    if row_bytes % 16:
        raise UnsupportedError(Problem(what=f"the kernels take rows of a multiple of 16 bytes, not {row_bytes}"))
    if pools_of(entry).page_tokens != PAGE_TOKENS:
        what = f"the kernels take pages of {PAGE_TOKENS} tokens, not {pools_of(entry).page_tokens}"
        raise UnsupportedError(Problem(what=what))
    if not _owners(plan)[0]:
        what = "the stage begins with a layer that shares the top-k of the stage before, which is not run here"
        raise UnsupportedError(Problem(what=what, remedy="give a --layer-range that begins with a top-k layer"))


def _check_shows(fault: Fault | None, owners: tuple[bool, ...]) -> None:
    if fault == "elided-layer-written" and all(owners):
        what = f"{fault} needs a layer that shares top-k, and all {len(owners)} compute it"
        raise InputError(Problem(where="--inject", what=what, remedy="inject another fault, or give another model"))


def _owners(plan: Plan) -> tuple[bool, ...]:
    """For each layer of the stage whether it computes top-k."""
    layout = plan.scenarios[SCENARIO].layout
    assert layout is not None  # noqa: S101 - the scenario is available
    return plan.launch.plan.owners[slice(*layout.stage)]


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
        same = _same_as_copies(plan, proof, group)
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
        same = _same_as_copies(plan, proof, group)
        alone_timings, timings = ((), ()) if injected else time_steps(proof.decode, alone, link, report, group)
    found = _measurement(
        plan,
        fault,
        machine=machine,
        scaled=(*fit.notes, *notes),
        lines=lines,
        checks=(*proof.checks, *same),
        run=proof.run,
        room=_room(fit, free),
        link=link,
        tokens=tokens,
        timings=timings,
        not_checked=("weights: a placeholder of their size; decode graphs and activations: not allocated",),
    )
    return Found(measurement=found, alone_link=alone if group.size > 1 else (), alone_timings=alone_timings)


def _same_as_copies(plan: Plan, proof: Proof, group: Alone) -> tuple[Check, ...]:
    """
    Ranks of a TP group decide alone which rows to keep, and must decide alike: compared with the first of the group.

    Nothing to compare without other ranks, or where each holds requests of its own.
    """
    if group.size == 1 or copies(plan) == 1:
        return ()
    first = group.rank // copies(plan) * copies(plan)
    orders = group.all_tensors(proof.decode.order())
    wrong = int((orders[first] != orders[group.rank]).sum())
    text = f"{orders[first].numel():,} slots"
    return (
        Check(
            name="copies",
            claim="ranks that hold the same rows keep the same ones in their hot buffers, in the same order",
            passed=not wrong,
            detail=f"{wrong:,} of {text} differ from rank {first}" if wrong else f"{text} as on rank {first}",
        ),
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


def _room(fit: Fitted, free_bytes: int) -> Check:
    """All that is planned beside the pools must still fit: graphs, activations, communication."""
    rest = sum(line.bytes for line in pools_of(fit.entry).lines if line.name in ("decode graphs", "activations"))
    text = f"{gib(free_bytes)} are free beside weights and pools, {gib(rest)} of graphs and activations are planned"
    return Check(name="room", claim="what is planned beside the pools fits", passed=free_bytes >= rest, detail=text)


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
    found = (
        _plan_check(plan),
        _ledger_check(lines),
        *(_token_check(check) for check in tokens),
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


def _plan_check(plan: Plan) -> Check:
    capacity = plan.scenarios[SCENARIO].capacity
    assert capacity is not None  # noqa: S101 - the scenario is available
    text = capacity.why_not or f"{capacity.requests:,} requests, {capacity.binding} binds"
    return Check(name="plan", claim="the deployment fits as planned", passed=capacity.fits, detail=text)


def _ledger_check(lines: tuple[LineCheck, ...]) -> Check:
    wrong = [line for line in lines if not line.passed]
    text = ", ".join(f"{line.name}: {line.measured_bytes:,} B, not {line.predicted_bytes:,} B" for line in wrong)
    claim = "each ledger line is what the allocator took, within 0.1 % or 2 MiB"
    return Check(name="ledger", claim=claim, passed=not wrong, detail=text or f"{len(lines)} lines")


def _token_check(check: TokenCheck) -> Check:
    text = f"{check.confirmed_tokens:,} confirmed, {check.predicted_tokens:,} predicted"
    return Check(
        name=f"tokens, {check.scenario}",
        claim=f"a budget of {gib(check.kv_budget_bytes)} holds the tokens of the engine's rule, within 0.1 %",
        passed=check.passed,
        detail=text,
    )
