"""The budget window of one start: from the tokens or blocks that it printed, else from what it printed of memory."""

from __future__ import annotations

from fractions import Fraction

from hsplan.calibrate.lines import SGLANG
from hsplan.calibrate.log import HALF, Log
from hsplan.calibrate.server import Server, budgets_that_give
from hsplan.calibration import Window
from hsplan.errors import InputError, Problem
from hsplan.units import GIB

LOADED = ("weights", "draft weights", "allocator and loading overhead")
LEAST_FRACTION_HALF = Fraction(1, 20_000)  # of the last digit of 0.xxxx


def logged_tokens(log: Log) -> int | None:
    """The printed tokens: of the poorest where the data-parallel engines of a server differ."""
    found = log.numbers("tokens")
    return int(found[0]) if found else None


def budget_by_pool(server: Server, log: Log) -> Window | None:
    """
    The budgets that give the printed pool; None when no pool is printed.

    Raises InputError when no budget gives it: the page, the length of requests or the ranks are other ones.
    """
    blocks, tokens = log.numbers("blocks"), logged_tokens(log)
    if blocks:
        logged, name = int(blocks[0]), "blocks"
        found = budgets_that_give(lambda kv_bytes: _blocks(server, kv_bytes), logged)
    elif tokens is not None:
        logged, name = tokens, "tokens"
        found = budgets_that_give(lambda kv_bytes: server.pools_at(kv_bytes).tokens.best, tokens)
    else:
        return None
    if found is None:
        row = server.layout.row
        what = f"the log has {logged:,} {name}, which no budget gives with pages of {row.page_tokens:,} tokens"
        remedy = "check page_size, max_total_tokens, max_model_len and dcp of the spec"
        raise InputError(Problem(where=log.where, what=what, remedy=remedy))
    return found


def budget_by_memory(server: Server, log: Log) -> Window | None:
    """The budget from printed memory alone: vLLM says it; SGLang's is free after weights less the slack."""
    if server.engine.name != SGLANG:
        return log.least("budget")
    after, before = log.least("free_after"), log.window("free_before")
    if after is None or before is None:
        return _at_least_fraction(server, log)
    outside, reserve = 1 - server.launch.fraction, _reserve(server)
    low, high = after.low - int(before.high * outside), after.high - int(before.low * outside)
    return Window(low - reserve, high - reserve)


def _reserve(server: Server) -> int:
    """What the rule takes from free memory beside the slack: for images, or less than nothing: a draft loaded later."""
    inside = int(server.launch.fraction_of.best * server.launch.fraction)
    return inside - server.budget.kv_bytes.best - server.line_bytes(*LOADED)


def _at_least_fraction(server: Server, log: Log) -> Window | None:
    """A start that failed names the fraction at which the budget would be nothing: B(f) = (f − least) × free before."""
    found = log.numbers("least_fraction")
    if not found:
        return None
    over = Fraction(str(server.launch.fraction)) - found[0]
    free = server.launch.fraction_of
    edges = [int((over + half) * edge) for half in (-LEAST_FRACTION_HALF, LEAST_FRACTION_HALF)
             for edge in (free.low, free.high)]  # fmt: skip
    return Window(min(edges), max(edges))


def multiplied_by_fraction(server: Server, log: Log) -> Window:
    """What the fraction multiplies: as printed before weights, else as planned."""
    planned = server.launch.fraction_of
    return log.window("free_before") or Window(planned.low, planned.high)


def weights(log: Log) -> tuple[Window | None, Window | None]:
    """Bytes of the target and of the draft on a rank: of two sizes that are far apart the smaller is the draft's."""
    found = log.numbers("weights")
    if not found:
        return None, None
    target = [size for size in found if 2 * size >= found[-1]]
    draft = [size for size in found if 2 * size < found[-1]]
    return _around(target), _around(draft) if draft else None


def _around(found: list[Fraction]) -> Window:
    return Window(int((found[0] - HALF) * GIB), int((found[-1] + HALF) * GIB))


def _blocks(server: Server, kv_bytes: int) -> int:
    blocks = server.pools_at(kv_bytes).blocks
    return 0 if blocks is None else blocks.num_blocks
