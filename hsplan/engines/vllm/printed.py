"""
The two numbers that vLLM prints: `GPU KV cache size` in tokens and `Maximum concurrency`.

Doubles are kept where the engine has them: 3,900 blocks of 3,168 a request print 249,599 tokens, not 249,600.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.vllm.pages import Packing
from hsplan.engines.vllm.releases import Release
from hsplan.units import ceil_div

TAIL_PAGES = 2  # ACTIVE_TAIL_PAGES, hisparse/types.py


class Printed(msgspec.Struct, frozen=True, gc=False):
    """Tokens and concurrency as logged."""

    tokens: int
    concurrency: float


def shards_of_tokens(release: Release, dcp: int, pcp: int) -> int:
    """Ranks over which the tokens of one request are spread: PCP divides them before 0.26.0 only."""
    return dcp if release.has("pcp_replicates") else dcp * pcp


def printed(release: Release, num_blocks: int, max_model_len: int, each: int, block_tokens: int) -> Printed:
    """
    Tokens from the concurrency of requests of `each` blocks since #41069, from the blocks before.

    `get_kv_cache_capacity` and `get_max_concurrency_for_kv_cache_config`.
    """
    if release.has("tokens_by_concurrency"):
        concurrency = num_blocks / each
        return Printed(int(concurrency * max_model_len), concurrency)
    tokens = num_blocks * block_tokens
    return Printed(tokens, tokens / max_model_len)


class Demand(msgspec.Struct, frozen=True, gc=False):
    """
    Blocks of one request while it is admitted, and at rest: decoding, under HiSparse reading from host memory.

    `host` are the blocks of its whole context in the host pool, 0 where there is none.
    """

    admission: int
    steady: int
    host: int = 0


def demand(packed: Packing, tokens: int, page_tokens: int, hot_rows: int, in_flight: int) -> Demand:
    """Blocks of a request of `tokens` with `hot_rows` rows on the GPU, `in_flight` tokens scheduled at most."""
    groups, context = len(packed.hot), ceil_div(tokens, page_tokens)
    fixed = context + groups * ceil_div(hot_rows, page_tokens)
    resident = ceil_div(min(in_flight, tokens), page_tokens)
    return Demand(fixed + groups * resident, fixed + groups * min(resident, TAIL_PAGES), context)


def gpu_concurrency(num_blocks: int, need: Demand) -> float:
    """Requests of the GPU pool, all but one of them at rest and one being admitted."""
    if num_blocks < need.admission:
        return num_blocks / need.admission
    return 1 + (num_blocks - need.admission) / need.steady


def steady_state(num_blocks: int, host_blocks: int, need: Demand, max_model_len: int) -> Printed:
    """The steady-state concurrency of 0.32.0 and later, and the tokens it stands for."""
    concurrency = min(gpu_concurrency(num_blocks, need), host_blocks / need.host)
    return Printed(int(concurrency * max_model_len), concurrency)


def gpu_requests(num_blocks: int, need: Demand) -> int:
    """`gpu_concurrency` in whole requests."""
    return 0 if num_blocks < need.admission else 1 + (num_blocks - need.admission) // need.steady
