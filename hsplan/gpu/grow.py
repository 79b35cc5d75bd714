"""Grow the pools of a scenario until the card has no more: the tokens it really holds against those of the rule."""

from __future__ import annotations

import torch

from hsplan.gpu.place import Place
from hsplan.gpu.pools import allocated
from hsplan.gpu.scale import bytes_of, pools_of
from hsplan.measurement import TokenCheck
from hsplan.planner import replan
from hsplan.result import Plan

POOL_LINES = ("KV rows", "index-K", "draft KV pool")


def confirm_tokens(plan: Plan, scenario: str, place: Place) -> TokenCheck:
    """
    Predict the tokens of a scenario whose budget is what the card has free now, and find how many it takes.

    The budget leaves out the tables beside the pools, which are allocated with them. To the page; a limit that the
    plan sets on tokens is lifted.
    """
    plan = replan(plan, max_total_tokens=None)
    free = place.free_bytes()
    budget = free
    for _ in range(3):  # tables and indexer weights of the scenario move the budget a little, the page hardly
        entry = replan(plan, kv_budget=budget).scenarios[scenario]
        assert entry.budget is not None  # noqa: S101 - the scenario is available
        beside = tuple(b for b in pools_of(entry).buffers() if b.line not in POOL_LINES)
        budget += free - bytes_of(beside, "gpu") - entry.budget.kv_bytes.best
    entry = replan(plan, kv_budget=budget).scenarios[scenario]
    assert entry.budget is not None  # noqa: S101
    predicted = pools_of(entry).tokens.best
    return TokenCheck(
        scenario=scenario,
        kv_budget_bytes=entry.budget.kv_bytes.best,
        predicted_tokens=predicted,
        confirmed_tokens=_most(plan, scenario, predicted, 2 * free, place),
    )


def _most(plan: Plan, scenario: str, predicted: int, budget: int, place: Place) -> int:
    """The most device tokens, in pages, whose tensors the card takes; widens from `predicted`, then halves."""
    page = pools_of(plan.scenarios[scenario]).page_tokens
    good, bad, step = 0, predicted + page, max(predicted // 1000 // page, 1) * page
    while _takes(plan, scenario, bad, budget, place):
        good, bad, step = bad, bad + step, 2 * step
    while good == 0 and bad > page:
        at = max(bad - step, page)
        if _takes(plan, scenario, at, budget, place):
            good = at
        else:
            bad, step = at, 2 * step
    while bad - good > page:
        at = (good + bad) // 2 // page * page
        if _takes(plan, scenario, at, budget, place):
            good = at
        else:
            bad = at
    return good


def _takes(plan: Plan, scenario: str, tokens: int, budget: int, place: Place) -> bool:
    entry = replan(plan, kv_budget=budget, max_total_tokens=tokens).scenarios[scenario]
    buffers = tuple(b for b in pools_of(entry).buffers() if b.place == "gpu")
    try:
        with allocated(buffers, place):
            return True
    except torch.OutOfMemoryError:
        return False
