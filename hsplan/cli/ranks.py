"""`hsplan validate --ranks N`: this process as the one that starts the ranks, or as one of them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import typer

from hsplan.cli.leaving import leave
from hsplan.cli.output import complain, emit, emit_json
from hsplan.cli.progress import progress
from hsplan.cli.ranked import ranked
from hsplan.errors import HsplanError
from hsplan.gpu.faults import Fault
from hsplan.gpu.seat import Seat
from hsplan.result import Plan


def start_ranks(args: list[str], plan: Plan, ranks: int, *, gpu: bool, steps: int | None, fault: Fault | None) -> None:
    """Run the command line `args` as so many ranks on this machine, and exit as the first of them."""
    # torch and triton take seconds to import
    from hsplan.gpu.launch import launch  # noqa: PLC0415
    from hsplan.gpu.ranks import check_cards, check_ranks, silence_s  # noqa: PLC0415

    check_ranks(plan, ranks, gpu=gpu, steps=steps, fault=fault)
    if gpu:
        check_cards(ranks)
    # Not the folder that it is called in, but the path of this process is where modules come from.
    code = launch([sys.executable, "-P", "-m", "hsplan", *args], ranks, silence_s=silence_s(plan))
    raise typer.Exit(code)


def run_as_rank(
    seat: Seat,
    plan: Plan,
    *,
    gpu: bool,
    steps: int | None,
    host_memory: int | None,
    fault: Fault | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Take part; the first rank writes the report and exits with 1 when a claim does not hold on some rank."""
    from hsplan.gpu.join import join  # noqa: PLC0415
    from hsplan.gpu.ranks import check_ranks, silence_s, validate_ranks  # noqa: PLC0415

    try:
        check_ranks(plan, seat.size, gpu=gpu, steps=steps, fault=fault)
        shown = progress("validate") if seat.rank == 0 else contextlib.nullcontext(_silent)
        with shown as report, join(seat, gpu=gpu, silence_s=silence_s(plan)) as group:
            found = validate_ranks(
                plan, group, gpu=gpu, report=report, steps=steps, host_memory=host_memory, fault=fault
            )
    except HsplanError as error:
        if seat.started_by is None:
            raise
        # The process that started the ranks says why: what the rank has told it, or else what it has written.
        if seat.rank:
            complain(error.lines())
        raise typer.Exit(error.exit_code) from None
    if found is None:
        return
    if as_json:
        emit_json(found.to_dict(), output)
    else:
        emit(ranked(plan, found), output)
    failed = [f"{check.name} on rank {rank}" for rank, check in found.failed]
    leave(failed, injected=found.injected, caught=found.caught)


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total
