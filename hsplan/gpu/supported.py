"""What of a plan the kernels can run: a plan and options in, or an error that says what cannot be validated."""

from __future__ import annotations

from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.gpu.faults import Fault
from hsplan.gpu.scale import pools_of
from hsplan.gpu.small import MOST_STEPS, small_plan, small_sizes
from hsplan.result import Plan
from hsplan_kernels.index_k import PAGE_TOKENS

SCENARIO = "elided+offload"  # both tricks at once: index-K of owner layers, hot buffers, replayed miss plans
LEAST_FAULT_STEPS = 4  # a row that was backed up must be read again, a slot grow old


def check_supported(plan: Plan, *, gpu: bool, steps: int | None, fault: Fault | None) -> None:
    """
    Raise what is wrong whatever the machine.

    UnsupportedError for plans that the kernels do not run, InputError for a fault that could not show and for more
    steps than the interpreter takes.
    """
    _check_plan(plan)
    if fault and steps is not None and steps < LEAST_FAULT_STEPS:
        what = f"a fault may not show in {steps} steps"
        raise InputError(Problem(where="--steps", what=what, remedy=f"give at least {LEAST_FAULT_STEPS}"))
    if not gpu and steps is not None and steps > MOST_STEPS:
        what = f"the interpreter takes at most {MOST_STEPS} steps, not {steps:,}"
        raise InputError(Problem(where="--steps", what=what, remedy="give fewer, or --gpu"))
    _check_shows(fault, _owners(plan) if gpu else small_sizes(plan, small_plan(plan, SCENARIO), 1).owners)


def _check_plan(plan: Plan) -> None:
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
