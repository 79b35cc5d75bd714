"""Many plans at once: the combinations of a grid in, one table or `hsplan.grid/1` out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hsplan.calibration import Calibration
from hsplan.cli.figures import NONE, best_runnable, launched, milliseconds, number, percent, tokens_a_second
from hsplan.cli.grid import Overrides
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.errors import MAX_PROBLEMS, HsplanError, printable
from hsplan.planner import plan as make_plan
from hsplan.result import Plan

SCHEMA = "hsplan.grid/1"
GAIN = "runnable gain"
FEW = 4  # plans whose notes are read
DOUBTS = ("not verified", "the given kv_budget leaves")  # that stand under any grid
TIMES = ("swap-in, ms", "step, ms", "tokens/s")
IN_ALL = "in all"
HEADS = ("as launched", "KV row", "logical tokens", "requests", IN_ALL, "binding", *TIMES, "fits", GAIN)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One combination: its options, and the plan in its final form or the error that refuses it."""

    options: Overrides
    form: Any = None
    fits: bool = False
    why_not: str = ""
    notes: tuple[str, ...] = ()
    error: HsplanError | None = None


def outcomes(
    spec: str,
    combinations: Sequence[Overrides],
    varying: Sequence[str],
    calibration: Calibration | None,
    *,
    as_json: bool,
) -> list[Outcome]:
    """
    Every combination planned and reduced to a row of cells or to JSON, so that a large grid stays small.

    Raises the first error when all combinations are refused.
    """
    found = [_outcome(spec, overrides, varying, calibration, as_json=as_json) for overrides in combinations]
    if found[0].error is not None and all(outcome.error for outcome in found):
        raise found[0].error
    return found


def exit_code(found: Sequence[Outcome]) -> int:
    """That of the first refusal; else 1 when a combination does not fit; else 0."""
    refused = [outcome.error.exit_code for outcome in found if outcome.error]
    return refused[0] if refused else int(not all(outcome.fits for outcome in found))


def grid_json(found: Sequence[Outcome]) -> dict[str, Any]:
    """The plans, each with the options that vary, and what was refused."""
    return {
        "schema": SCHEMA,
        "plans": [outcome.form for outcome in found if outcome.error is None],
        "refused": [
            {"options": outcome.options, "exit_code": outcome.error.exit_code, "error": outcome.error.lines()}
            for outcome in found
            if outcome.error is not None
        ],
    }


def grid_table(found: Sequence[Outcome], varying: Sequence[str]) -> str:
    """One line a combination: its options, and the figures of the scenario as launched; times where any is known."""
    priced = [outcome for outcome in found if outcome.error is None]
    ranked = any(outcome.form[IN_ALL] != outcome.form["requests"] for outcome in priced)
    timed = {head for head in TIMES if any(outcome.form[head] != NONE for outcome in priced)}
    known = [head for head in HEADS if head in timed or head not in (*TIMES, *([] if ranked else [IN_ALL]))]
    wide = bool(timed) or ranked  # too many columns for one line of heads
    heads = [*varying, *(head.replace(" ", "\n") if wide else head for head in known)]
    rows = [[*_texts(outcome.options), *(outcome.form[head] for head in known)] for outcome in priced]
    lines = [table(heads, rows, left=[*range(len(varying) + 1), len(heads) - 1])]
    if ranked:
        lines.append(wrapped("in all: ", "requests of all data-parallel ranks; the other figures are of one"))
    if any(outcome.form[GAIN] != NONE for outcome in priced):
        lines.append(wrapped(f"{GAIN}: ", "logical tokens of the scenario named, of those that run, over as launched"))
    lines += (
        wrapped(f"{_named(outcome)}: ", f"does not fit: {outcome.why_not}") for outcome in priced if outcome.why_not
    )
    return "\n".join([*lines, *_notes(priced)])


def refusals(found: Sequence[Outcome]) -> Iterator[str]:
    """Printable lines: what is refused and why, at most two lines for each of at most ten."""
    refused = [outcome for outcome in found if outcome.error is not None]
    for outcome in refused[:MAX_PROBLEMS]:
        assert outcome.error is not None  # noqa: S101
        yield f"{_named(outcome)}: {outcome.error.lines()[0]}"
        yield from outcome.error.lines()[1:2]
    if len(refused) > MAX_PROBLEMS:
        yield f"and {len(refused) - MAX_PROBLEMS} more"


def _outcome(
    spec: str, overrides: Overrides, varying: Sequence[str], calibration: Calibration | None, *, as_json: bool
) -> Outcome:
    options = {key: _printable(overrides[key]) for key in varying}
    try:
        plan = make_plan(spec, calibration=calibration, **overrides)
    except HsplanError as error:
        return Outcome(options=options, error=error)
    form = msgspec.Raw(msgspec.json.encode({"options": options, **plan.to_dict()})) if as_json else _cells(plan)
    return Outcome(
        options=options,
        form=form,
        fits=plan.fits,
        why_not=launched(plan).capacity.why_not,
        notes=tuple(plan.notes),
    )


def _cells(plan: Plan) -> dict[str, str]:
    """The text of each of HEADS."""
    found = launched(plan)
    capacity, best = found.capacity, best_runnable(plan)
    cells = (
        plan.as_launched,
        f"{found.layout.row.bytes:,} B",
        number(found.pools.logical_tokens),
        number(capacity.requests if capacity.fits else None),
        number(capacity.requests * plan.launch.data_parallel if capacity.fits else None),
        capacity.binding,
        *(milliseconds(time if capacity.fits else None) for time in (capacity.swap_in_ms, capacity.step_ms)),
        tokens_a_second(capacity.tokens_s if capacity.fits else None),
        "yes" if capacity.fits else "NO",
        f"{percent(best[1])} {best[0]}" if best else NONE,
    )
    return dict(zip(HEADS, cells, strict=True))


def _notes(priced: Sequence[Outcome]) -> Iterator[str]:
    """What is not verified; of a few plans every note, with the plan that it is of where that is not all of them."""
    if len(priced) > FEW:
        unverified = (note for outcome in priced for note in outcome.notes if note.startswith(DOUBTS))
        yield from (wrapped("note: ", note) for note in dict.fromkeys(unverified))
        return
    for note in dict.fromkeys(note for outcome in priced for note in outcome.notes):
        of = [outcome for outcome in priced if note in outcome.notes]
        where = "" if len(of) == len(priced) else f" on {'; '.join(map(_named, of))}"
        yield wrapped(f"note{where}: ", note)


def _named(outcome: Outcome) -> str:
    return " ".join(f"{key}={text}" for key, text in zip(outcome.options, _texts(outcome.options), strict=True))


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def _texts(options: Overrides) -> list[str]:
    return [str(value) for value in options.values()]
