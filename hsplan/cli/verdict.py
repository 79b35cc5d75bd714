"""The last lines of `hsplan advise`: what was found in; whether and from where offload pays out."""

from __future__ import annotations

from hsplan.cli.figures import counted
from hsplan.cli.output import wrapped
from hsplan.result import Plan
from hsplan.trial import Setting
from hsplan.tuning import NOISE, Tuned, longest_context


def verdict(plan: Plan, found: Tuned) -> str:
    """Two sentences; one where nothing fits at any context."""
    lines = [] if found.pays_from is None and found.top is None else [_from(plan, found)]
    return "\n".join(wrapped("", line) for line in [*lines, _here(plan, found)])


def _from(plan: Plan, found: Tuned) -> str:
    if found.pays_from is None:
        return f"offload does not pay at any context up to {longest_context(plan):,} tokens"
    context = plan.launch.loaded.spec.workload.context
    if found.pays and context < found.pays_from:
        return f"offload pays from contexts of {context:,} tokens on, or of fewer"
    return f"offload pays from contexts of {found.pays_from:,} tokens on"


def _here(plan: Plan, found: Tuned) -> str:
    at, ranks = f"at {plan.launch.loaded.spec.workload.context:,} tokens", plan.launch.data_parallel
    best, without = found.best, found.without
    if best is None and without is None:
        why = next(entry.why for entry in found.left_out if entry.device_buffer_size is None)
        return f"nothing fits {at}, with offload or without: {why}"
    if best is None:
        return f"offload does not pay {at}: no setting with it fits"
    held = f"hold {counted(best.requests, 'request')}{_on_each(ranks)}"
    if without is None:
        return f"offload pays {at}: hot buffers of {best.device_buffer_size:,} {held}, without it not one fits"
    if found.pays and best.tokens_s is None:
        return f"offload pays {at}: hot buffers of {best.device_buffer_size:,} {held} instead of {without.requests:,}"
    both = _both(best, without, ranks)
    if found.pays:
        more = f"yield {best.yields / without.yields:.2f} × the tokens a second"
        of_all = f": {both}" if ranks > 1 else ""
        return f"offload pays {at}: hot buffers of {best.device_buffer_size:,} {more}{of_all}"
    if abs(best.yields / without.yields - 1) <= NOISE:
        return f"offload makes no difference {at}, within {100 * NOISE:g} %: {both}"
    return f"offload does not pay {at}: {both}"


def _both(best: Setting, without: Setting, ranks: int) -> str:
    """What all ranks give with offload and without."""
    on_all = f" on {ranks} ranks" if ranks > 1 else ""
    given = (
        f"{best.yields * ranks:,.0f} tokens a second" if best.tokens_s else counted(best.requests * ranks, "request")
    )
    return f"{given}{on_all} with it, {without.yields * ranks:,.0f} without"


def _on_each(ranks: int) -> str:
    return f" on each of {ranks} ranks" if ranks > 1 else ""
