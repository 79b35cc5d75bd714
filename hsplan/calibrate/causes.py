"""
Why a log and a plan differ: one changed key with which they agree, or a word for the kind of difference.

A cause is only named when the plan with it was priced and does not contradict the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from hsplan.calibrate.figures import GB, Figure
from hsplan.engines.sglang import releases as sglang
from hsplan.engines.vllm import releases as vllm
from hsplan.spec import Deployment
from hsplan.units import GIB

CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("kv_cache_dtype", ("fp8_e4m3", "bfloat16")),
    ("draft_layers", (0, 1)),
    ("disaggregation", (None, "prefill", "decode")),
    ("hierarchical_cache", (False, True)),
    ("attention_backend", ("flashmla_kv", "trtllm", "flashmla_sparse", "flashinfer_mla_sparse")),
)
CALENDARS = {"sglang": (sglang.RELEASES, sglang.SWITCHES), "vllm": (vllm.RELEASES, vllm.SWITCHES)}
UNIT_ERROR = 0.005  # of itself: what may be left when GiB were taken for GB
MOST_CAUSES = 3


def changes_that_agree(deployment: Deployment, agrees: Callable[[dict[str, Any]], bool]) -> str:
    """
    The changes with which the plan `agrees` with the log, for a reader; empty when there is none.

    One key is changed, or, where no one key will do, kv_cache_dtype and another: the two that are left out most.
    """
    single = [{key: value} for key, value in _changes(deployment)]
    dtypes = [change for change in single if "kv_cache_dtype" in change]
    double = [{**dtype, **change} for dtype in dtypes for change in single if change not in dtypes]
    for changes in (single, double):
        found = list(islice((_words(change) for change in changes if agrees(change)), MOST_CAUSES))
        if found:
            return ", or ".join(found)
    return ""


def _words(change: dict[str, Any]) -> str:
    return " with ".join(f"{key} {'null' if value is None else value}" for key, value in change.items())


def _changes(deployment: Deployment) -> Iterator[tuple[str, Any]]:
    for key, values in CHANGES:
        yield from ((key, value) for value in values if value != getattr(deployment, key))
    releases, switches = CALENDARS[deployment.engine]
    for name in (*releases, *(f"main-{day}" for day in sorted(set(switches.values()), reverse=True))):
        if name != deployment.release:
            yield "release", name


def cause_of(figure: Figure) -> str:
    """A word for the likeliest reason of a miss; empty when there is none."""
    if not figure.miss:
        return ""
    return unit_error(figure) or CAUSES.get(figure.line, "memory that the plan counts otherwise")


def unit_error(figure: Figure) -> str:
    """Whether GiB and GB explain the difference; empty when they do not."""
    ratio = figure.logged / figure.predicted.best if figure.predicted.best else 0
    for of, words in ((GIB / GB, "GB taken for GiB"), (GB / GIB, "GiB taken for GB")):
        if figure.scale in (GIB, GB) and abs(ratio / of - 1) < UNIT_ERROR:
            return words
    return ""


CAUSES = {
    "free before weights": "other processes on the card, or communication buffers of another size",
    "weights": "another checkpoint format, or tensors that loading keeps",
    "draft weights": "an embedding and head that the draft shares, or another draft",
    "free after weights": "free before weights, and weights",
    "available KV cache memory": "weights, and what the profiling run measured",
    "max_total_num_tokens": "the KV budget: see free after weights",
    "GPU KV cache size": "the KV budget: see available KV cache memory",
    "max_running_requests": "max_running_requests of the spec",
    "host pool": "host_to_device_ratio, or HiCache's own pools",
}
