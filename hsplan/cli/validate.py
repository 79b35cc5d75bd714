"""`hsplan validate`: a spec in; real pools and kernels on the card here, and a verdict for every claim of the plan."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hsplan.cli.grid import Overrides, grid_of
from hsplan.cli.heavy import load
from hsplan.cli.leaving import leave
from hsplan.cli.measured import measured
from hsplan.cli.options import spec_argument, spec_options
from hsplan.cli.output import check_target, emit, emit_json
from hsplan.cli.progress import progress
from hsplan.cli.ranks import run_as_rank, start_ranks
from hsplan.errors import HsplanError, InputError, Problem, nearest, shown
from hsplan.gpu.faults import FAULTS, Fault
from hsplan.gpu.seat import end_with, seat_of
from hsplan.planner import plan as make_plan
from hsplan.result import Plan
from hsplan.units import parse_bytes

EXAMPLE = "Example: hsplan validate glm-5.2-fp8 --gpu --host-memory 96GiB"
_PLAN_GPU = re.compile(r"--gpu(?![\w-])")


@functools.partial(spec_options, planned_gpu=True)
def validate(
    called: typer.Context,
    spec: Annotated[str, spec_argument()],
    *,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Use the card here; else the kernels run small, on Triton's interpreter.",
                           rich_help_panel="Run")
    ] = False,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Run on so many GPUs of this machine at once; torchrun's are taken as is.",
                                 show_default=False, rich_help_panel="Run")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Decode steps; if not given 1000 on a GPU, 6 without.",
                                 show_default=False, rich_help_panel="Run")
    ] = None,
    inject: Annotated[
        str | None, typer.Option(metavar="FAULT", help=f"Put in a known fault (in the last rank): {', '.join(FAULTS)}.",
                                 show_default=False, rich_help_panel="Run",
                                 autocompletion=lambda incomplete: [f for f in FAULTS if f.startswith(incomplete)])
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (hsplan.measurement/1, hsplan.ranks/1).",
                           rich_help_panel="Output")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.",
                                  show_default=False, rich_help_panel="Output")
    ] = None,
    **options: Any,
) -> None:  # fmt: skip
    """
    Prove a plan: allocate what it says, run the kernels of offload, check every byte, and time them.

    --gpu is the card here, --planned-gpu that of the plan; --host-memory is what the host pool may take here.
    Without --gpu the kernels are checked at small sizes on Triton's interpreter, and nothing is measured.
    With --ranks or under torchrun one process a GPU does so, all at the same time; host memory is that of the machine.
    """
    seat = seat_of(os.environ, ranks)
    if seat is not None:
        end_with(seat.started_by)
    options["gpu"] = options.pop("planned_gpu")
    combinations, varying = grid_of(options)
    if varying:
        raise InputError(Problem(what="validate runs one plan", remedy="give each option once"))
    combinations[0].pop("host_memory", None)
    host_memory = _host_memory(options["host_memory"])
    fault = _fault(inject)
    plan = _plan(spec, combinations[0])
    if output is not None and (seat is None or seat.rank == 0):
        check_target(output)  # now, and not after minutes of work
    if seat is not None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # errors come by name, not as a C++ stack
    _prepare(gpu=gpu)
    if seat is not None:
        run_as_rank(
            seat, plan, gpu=gpu, steps=steps, host_memory=host_memory, fault=fault, as_json=as_json, output=output
        )
        return
    if ranks is not None:
        start_ranks(called.find_root().obj, plan, ranks, gpu=gpu, steps=steps, fault=fault)
    from hsplan.gpu.validate import validate as run  # noqa: PLC0415 - torch and triton take seconds to import

    with progress("validate") as report:
        found = run(plan, gpu=gpu, steps=steps, host_memory=host_memory, fault=fault, report=report)
    if as_json:
        emit_json(found.to_dict(), output)
    else:
        emit(measured(plan, found), output)
    leave([check.name for check in found.checks if not check.passed], injected=found.injected, caught=found.caught)


def _plan(spec: str, overrides: Overrides) -> Plan:
    """The plan; where it is wrong about its GPU, this command's name of that option is told."""
    try:
        return make_plan(spec, **overrides)
    except HsplanError as error:
        raise type(error)([_renamed(problem) for problem in error.problems]) from None


def _renamed(problem: Problem) -> Problem:
    where, remedy = (_PLAN_GPU.sub("--planned-gpu", text) for text in (problem.where, problem.remedy))
    return Problem(what=problem.what, where=where, remedy=remedy)


def _fault(name: str | None) -> Fault | None:
    for fault in FAULTS:
        if fault == name:
            return fault
    if name is None:
        return None
    raise InputError(Problem(where="--inject", what=f"unknown fault {shown(name)}", remedy=nearest(name, FAULTS)))


def _host_memory(given: list[str] | None) -> int | None:
    """Bytes; None when the machine is to be asked."""
    value = given[-1] if given else "auto"
    if value in ("auto", "here"):
        return None
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise InputError(Problem(where="--host-memory", what=f"{shown(value)} is no size", remedy=str(error))) from None


def _prepare(*, gpu: bool) -> None:
    """Import torch and triton, and what must be so before; raises CannotRunError without them."""
    if gpu:
        # Segments of their own would round each tensor up to 2 MiB.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    load("numpy", "torch", "triton", extra="gpu")
