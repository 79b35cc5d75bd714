"""`hsplan simulate`: a spec and a workload in; how often a hot buffer misses, by its size and policy, out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hsplan.cli.figures import number
from hsplan.cli.heavy import load
from hsplan.cli.options import spec_argument
from hsplan.cli.output import check_target, emit, emit_json, wrapped
from hsplan.cli.progress import progress
from hsplan.cli.tables import table
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import read_model
from hsplan.spec import load_spec

EXAMPLE = "Example: hsplan simulate glm-5.2-fp8 --context 131072"
SCHEMA = "hsplan.misses/1"
MULTIPLES = (1, 2, 3, 4, 6, 8)  # of top-k
MOST_CONTEXT = 2**21 - 1
TITLES = {"fifo": "FIFO", "random": "random", "clock": "CLOCK", "belady": "Bélády"}


def simulate(
    spec: Annotated[str, spec_argument()],
    *,
    context: Annotated[
        int | None, typer.Option(help="Tokens of the request; the spec's if not given.", show_default=False)
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="A workload profile, shipped or a YAML file.")
    ] = "glm-5.1-longbench",
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A recorded trace (.npy), no profile.", show_default=False),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the drawn trace to FILE (.npy).", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(min=2, max=1_000_000, help="Decode steps; the first half warms up.")] = 600,
    seed: Annotated[int, typer.Option(min=0, help="Another draw of the same profile.")] = 0,
    slots: Annotated[
        list[int] | None, typer.Option(help="Hot-buffer sizes; 1 to 8 times top-k if not given.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=f"Print JSON ({SCHEMA}).")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.", show_default=False),
    ] = None,
) -> None:
    """
    How often a hot buffer misses, by its size: exact for the kernel's order, and for FIFO, random, CLOCK and Bélády.

    One layer of one request. Misses are shares of the ids that a step reads.
    """
    for target in filter(None, (output, record)):
        check_target(target)
    loaded = load_spec(spec, {} if context is None else {"context": context})
    top_k = read_model(loaded).index_topk
    if top_k is None:
        raise UnsupportedError(Problem(where=spec, what="the model computes no top-k: nothing is read sparsely"))
    load("numpy", extra="sim")
    # numpy takes longer to import than a plan to compute
    from hsplan.workload import recording  # noqa: PLC0415
    from hsplan.workload.policies import POLICIES  # noqa: PLC0415
    from hsplan.workload.profile import load_profile  # noqa: PLC0415
    from hsplan.workload.simulate import simulate as run  # noqa: PLC0415
    from hsplan.workload.trace import draw  # noqa: PLC0415

    if trace is not None:
        traces = recording.load_traces(trace)
        top_k = max(step.size for one in traces for step in one)
        source = f"recorded in {trace}"
    else:
        tokens = loaded.spec.workload.context
        _check_context(tokens, top_k)
        drawn = draw(load_profile(profile), context=tokens, top_k=top_k, steps=steps, seed=seed)
        traces = [[ids[:-1] for ids in drawn]]  # the newest token, the largest, has a slot of its own
        source = f"profile {profile}, seed {seed}"
    sizes = _sizes(slots, top_k)
    if record is not None:
        recording.save_trace(record, traces[0])
    with progress("simulate") as report:
        found = run(traces, sizes, policies=list(POLICIES), report=lambda done, total: report("misses", done, total))
    if as_json:
        emit_json({"schema": SCHEMA, "source": source, **msgspec.to_builtins(found)}, output)
        return
    heads = ["hot buffer, slots", "LRU", *(TITLES[name] for name in found.policies)]
    shares = [found.lru, *found.policies.values()]
    rows = [[number(size), *(f"{100 * share[i]:.1f} %" for share in shares)] for i, size in enumerate(found.slots)]
    read = f"{found.most_ids:,} ids a step, {found.steps:,} steps counted, {source}"
    title = wrapped("misses: ", f"tokens 0 to {found.highest_token:,}, {read}")
    emit(f"{title}\n\n{table(heads, rows)}", output)


def _sizes(given: list[int] | None, top_k: int) -> list[int]:
    sizes = sorted(set(given)) if given else [multiple * top_k for multiple in MULTIPLES]
    if sizes[0] < top_k:
        what = f"a hot buffer of {sizes[0]} is smaller than the {top_k} ids of a step"
        raise InputError(Problem(where="--slots", what=what, remedy=f"give at least {top_k}"))
    return sizes


def _check_context(tokens: int, top_k: int) -> None:
    if not top_k < tokens <= MOST_CONTEXT:
        what = f"{tokens:,} tokens, of which a step reads {top_k:,}"
        remedy = f"give from {top_k + 1:,} to {MOST_CONTEXT:,}"
        raise InputError(Problem(where="--context", what=what, remedy=remedy))
