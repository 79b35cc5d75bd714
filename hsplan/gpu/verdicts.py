"""Claims of a plan that need no decode step: figures in, a `Check` out."""

from __future__ import annotations

import torch

from hsplan.capacity import Capacity
from hsplan.gpu.group import Alone
from hsplan.gpu.scale import Fitted, pools_of
from hsplan.measurement import Check, LineCheck, TokenCheck
from hsplan.units import gib


def plan_check(scenario: str, capacity: Capacity) -> Check:
    """Whether the plan of a scenario fits."""
    held = f"{capacity.requests:,} request{'' if capacity.requests == 1 else 's'}, {capacity.binding} binds"
    return Check(
        name="plan",
        claim=f"the deployment fits as planned with {scenario}",
        passed=capacity.fits,
        detail=f"{scenario} does not fit: {capacity.why_not}" if capacity.why_not else held,
    )


def ledger_check(lines: tuple[LineCheck, ...]) -> Check:
    """Whether each line is what was taken for it."""
    wrong = [line for line in lines if not line.passed]
    text = ", ".join(f"{line.name}: {line.measured_bytes:,} B, not {line.predicted_bytes:,} B" for line in wrong)
    claim = "each ledger line is what the allocator took, within 0.1 % or 2 MiB"
    return Check(name="ledger", claim=claim, passed=not wrong, detail=text or f"{len(lines)} lines")


def token_check(check: TokenCheck) -> Check:
    """Whether the card takes the tokens of the rule."""
    text = f"{check.confirmed_tokens:,} confirmed, {check.predicted_tokens:,} predicted"
    return Check(
        name=f"tokens, {check.scenario}",
        claim=f"a budget of {gib(check.kv_budget_bytes)} holds the tokens of the engine's rule, within 0.1 %",
        passed=check.passed,
        detail=text,
    )


def room_check(fit: Fitted, free_bytes: int) -> Check:
    """All that is planned beside the pools must still fit: graphs, activations, communication."""
    rest = sum(line.bytes for line in pools_of(fit.entry).lines if line.name in ("decode graphs", "activations"))
    text = f"{gib(free_bytes)} are free beside weights and pools, {gib(rest)} of graphs and activations are planned"
    return Check(name="room", claim="what is planned beside the pools fits", passed=free_bytes >= rest, detail=text)


def copies_check(order: torch.Tensor, copies: int, group: Alone) -> tuple[Check, ...]:
    """
    Ranks of a TP group decide alone which rows to keep, and must decide alike: compared with the first of the group.

    `order`: `Decode.order` of this rank; `copies` ranks hold the same rows. Nothing to compare without other ranks, or
    where each holds requests of its own.
    """
    if group.size == 1 or copies == 1:
        return ()
    first = group.rank // copies * copies
    orders = group.all_tensors(order)
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
