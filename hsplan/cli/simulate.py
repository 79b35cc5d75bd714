"""`hsplan simulate`: a spec and a workload in; how often a hot buffer misses, by its size and policy, out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hsplan.cli.heavy import load
from hsplan.cli.modelview import view
from hsplan.cli.options import spec_argument
from hsplan.cli.output import check_target, emit, emit_json, write_bytes
from hsplan.cli.progress import progress
from hsplan.errors import InputError, Problem, UnsupportedError

if TYPE_CHECKING:
    from hsplan.workload.recording import Ids

EXAMPLE = "Example: hsplan simulate glm-5.2-fp8 --context 131072"
SCHEMA = "hsplan.misses/1"
MULTIPLES = (1, 2, 3, 4, 6, 8)  # of top-k
MOST_CONTEXT = 2**21 - 1
DRAWN = ("context", "profile", "steps", "seed")  # options of a drawn trace


def simulate(
    called: typer.Context,
    spec: Annotated[str, spec_argument()],
    *,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of the request; the spec's if not given.", show_default=False),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="A workload profile, shipped or a YAML file.")
    ] = "glm-5.1-longbench",
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A recorded trace (.npy, .jsonl, .json), no profile.", show_default=False),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the trace to FILE (.npy), a layer a trace.", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, max=1_000_000, help="Decode steps to draw.")] = 600,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Steps that fill the buffer and do not count, half of all if not given; 0 starts empty.",
            show_default=False,
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, max=64, metavar="N", help="Drafts read with each step; the spec's if not given.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Another draw of the same profile.")] = 0,
    slots: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Hot-buffer sizes; 1 to 8 times top-k if not given.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=f"Print JSON ({SCHEMA}).")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.", show_default=False),
    ] = None,
) -> None:
    """
    How often a hot buffer misses, by its size: exact for the kernel's order, and for FIFO, random, CLOCK and Bélády.

    One request; one trace for all layers with the same weights in the profile. Misses are shares of the ids read.
    """
    _check_options(called, trace, record, output)
    for target in filter(None, (output, record)):
        check_target(target)
    shown = view(spec)
    top_k, pattern = shown.model.index_topk, shown.plan.pattern
    if top_k is None:
        raise UnsupportedError(Problem(where=spec, what="the model computes no top-k: nothing is read sparsely"))
    load("numpy", extra="sim")
    # numpy takes longer to import than a plan to compute
    from hsplan.cli.misses import misses  # noqa: PLC0415
    from hsplan.workload import model  # noqa: PLC0415
    from hsplan.workload.calls import in_calls  # noqa: PLC0415
    from hsplan.workload.policies import POLICIES  # noqa: PLC0415
    from hsplan.workload.recording import as_array  # noqa: PLC0415
    from hsplan.workload.simulate import simulate as run  # noqa: PLC0415

    workload, deployment = shown.loaded.spec.workload, shown.loaded.spec.deployment
    if trace is not None:
        traces = model.recorded(trace, pattern, top_k=top_k)
        top_k = max(ids.size for one in traces.steps for ids in one)
    else:
        if shown.model.kv is not None:
            what = f"profiles draw tokens, and top-k of {shown.model.architecture} names blocks or entries of several"
            raise UnsupportedError(Problem(where=spec, what=what, remedy="give a recorded --trace"))
        tokens = workload.context if context is None else context
        _check_context(tokens, top_k)
        traces = model.drawn(profile, pattern, context=tokens, top_k=top_k, steps=steps, seed=seed)
    if record is not None:
        write_bytes(record, as_array(traces.steps))
    per_call = 1 + (deployment.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens)
    calls = [in_calls(one, per_call) for one in traces.steps]
    before = (len(traces.steps[0]) // 2 if warm_up is None else warm_up) // per_call
    sizes = _sizes(slots, top_k, _most_ids(calls, before, per_call))
    with progress("simulate") as report:
        found = run(
            calls,
            traces.layers,
            sizes,
            warm_up=before,
            policies=list(POLICIES),
            report=lambda done, total: report("misses", done, total),
        )
    if as_json:
        head = {"schema": SCHEMA, "source": traces.source, "steps_a_call": per_call}
        emit_json({**head, **msgspec.to_builtins(found)}, output)
        return
    emit(misses(found, traces.source, per_call), output)


def _check_options(called: typer.Context, trace: Path | None, record: Path | None, output: Path | None) -> None:
    """Raise InputError for options that would do nothing, or undo another."""
    if trace is not None:
        for name in DRAWN:
            source = called.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                what = "a recorded trace is not drawn"
                raise InputError(Problem(where=f"--{name}", what=what, remedy=f"leave out --{name} or --trace"))
    if record is not None and output is not None and record.absolute() == output.absolute():
        raise InputError(Problem(where="--record", what="is the file of --output too", remedy="give two files"))


def _most_ids(calls: list[list[Ids]], warm_up: int, per_call: int) -> int:
    """The most ids that a call reads; raises InputError when none is left to count."""
    most = max((ids.size for one in calls for ids in one), default=0)
    if len(calls[0]) <= warm_up or not most:
        what = f"{len(calls[0]):,} calls of {per_call} steps, of which {warm_up:,} warm up: nothing is left to count"
        raise InputError(Problem(where="--warm-up", what=what, remedy="give fewer, or more --steps"))
    return most


def _sizes(given: list[int] | None, top_k: int, most_ids: int) -> list[int]:
    """The sizes asked for; if none are, multiples of top-k that hold the ids of a call."""
    least = max(top_k, most_ids)
    if not given:
        return [multiple * top_k for multiple in MULTIPLES if multiple * top_k >= least] or [least]
    sizes = sorted(set(given))
    if sizes[0] < least:
        what = f"a hot buffer of {sizes[0]} is smaller than the {least} ids of a call"
        raise InputError(Problem(where="--slots", what=what, remedy=f"give at least {least}"))
    if sizes[-1] > MOST_CONTEXT:
        what = f"a hot buffer of {sizes[-1]:,} is larger than any request"
        raise InputError(Problem(where="--slots", what=what, remedy=f"give at most {MOST_CONTEXT:,}"))
    return sizes


def _check_context(tokens: int, top_k: int) -> None:
    if not top_k < tokens <= MOST_CONTEXT:
        what = f"{tokens:,} tokens, of which a step reads {top_k:,}"
        remedy = f"give from {top_k + 1:,} to {MOST_CONTEXT:,}"
        raise InputError(Problem(where="--context", what=what, remedy=remedy))
