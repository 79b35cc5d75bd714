"""
How many requests the scheduler admits, and the table that maps their tokens.

Sources: `resolve_max_num_reqs`, allocation_sizing.py, pd_disaggregation_hook.py and speculative_hook.py of 0.5.17 to
0.5.23.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.releases import Release
from hsplan.spec import Deployment

SPECULATIVE_REQUESTS = 48  # that drafts set where nothing did before them


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """The cap of one DP rank, the rows of the request tables, their columns, and how the cap came about."""

    cap: int
    rows: int
    cols: int
    formula: str


def is_speculative(deployment: Deployment) -> bool:
    """Whether the deployment drafts tokens."""
    return deployment.draft_layers > 0 or deployment.num_speculative_tokens > 0


def requests_of(
    deployment: Deployment,
    release: Release,
    *,
    tokens: int,
    context_len: int,
    page_tokens: int,
    with_drafts: int = SPECULATIVE_REQUESTS,
) -> Requests:
    """
    `tokens` are the device tokens of the rank; `context_len` the engine's own context length.

    `with_drafts` is what the engine sets for a deployment that drafts when no number is given.
    """
    given = deployment.max_running_requests
    dp = deployment.dp_attention
    if given == "auto" and is_speculative(deployment):
        given = with_drafts
    half = tokens // 2
    if given == "auto":
        estimate = min(max(int(tokens / context_len * 512), 2048), 4096)
        cap = min(estimate, half)
        formula = f"min(clamp(int({tokens:,} / {context_len:,} × 512), 2048, 4096), {tokens:,} // 2) = {cap:,}"
    else:
        each = max(1, given // dp) if release.has("at_least_one_request") else given // dp
        cap = min(each, half)
        formula = f"min({given:,} // dp {dp}, {tokens:,} // 2) = {cap:,}"
    rows = cap + 1 + reserved_slots(deployment, release)
    cols = context_len + _extra_columns(deployment, page_tokens)
    return Requests(cap=cap, rows=rows, cols=cols, formula=formula)


def reserved_slots(deployment: Deployment, release: Release) -> int:
    """Slots of requests in transfer on a PD decode node: twice a small cap, else none."""
    given = deployment.max_running_requests
    if deployment.disaggregation != "decode" or given == "auto":
        return 0
    each = given // deployment.dp_attention
    if release.has("at_least_one_request"):
        each = max(1, each)
    return 2 * each if each <= 32 else 0


def _extra_columns(deployment: Deployment, page_tokens: int) -> int:
    if not is_speculative(deployment):
        return 4
    drafts = draft_tokens(deployment)
    if page_tokens == 1:
        return 4 + drafts
    return max(4 + drafts, 2 * drafts + page_tokens - 1)
