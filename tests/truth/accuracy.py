"""
The accuracy page: predicted against logged for every record of engine-logs.yaml that is run, and why not the others.

    python tests/truth/accuracy.py        writes docs/accuracy.md; test_accuracy.py holds that it is up to date
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import test_engine_logs as sglang
import test_published_points as points
import test_vllm_families as families
import test_vllm_logs as vllm

GIB = 2**30
DSPARK = "dsv4flash-rtxpro5000-tp4-dspark"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
HEAD = """\
# Accuracy: predicted against logged

Every record of real runs in `tests/truth/data/engine-logs.yaml`, made by `python tests/truth/accuracy.py`; a test holds
that this page is what the code gives. GiB = 2^30 bytes. A record without a published budget cannot test tokens, one
without a pool size cannot test bytes.

* **tokens**: of the budget in the middle of the recorded interval. The interval comes from the logged tokens and the
  cell that SGLang charges, so that this tests the cell, pages and rounding, not the memory of the machine.
* **pool**, **draft pool**: bytes that hsplan allocates for the logged tokens, against the printed GiB (two digits).
* **budget, from the spec**: weights, reserve and fraction alone, with nothing of the log; best guess and range. The
  reserve was tuned on these runs, among others: consistency, not proof.
* **tokens of the printed GiB**: vLLM's, with those at both ends of the print rounding of `Available KV cache memory`.
"""
TABLE = "| record | what | predicted | logged | error |\n|---|---|---:|---:|---:|\n"


THROUGHPUT = """\
## Tokens a second with offload

GLM-5.1-FP8 on 8 × H200, all 8 ranks, by the step profile that is fitted to the runs without offload. **Second hand**:
the figures of arXiv 2608.07009 are quoted through a secondary note, and the chart of the blog that has the launch
command (LMSYS, 2026-04-10) shows other ones at 32K. The requests that ran, and that prefill is in the figures, are
assumed: `hsplan/data/steptime-glm-5.1-8xh200.json`.

| source | tokens a request | predicted | quoted | error |
|---|---:|---:|---:|---:|
"""


def page() -> str:
    """The whole page, the same each time."""
    parts = [
        HEAD,
        "## SGLang\n",
        TABLE + "".join(row for record in sglang.RUNS for row in _sglang(record)),
        "## vLLM\n",
        TABLE + "".join(row for record in vllm.RUNS for row in _vllm(record)) + _dspark(),
        THROUGHPUT + "".join(_throughput()),
        "## Not run\n",
        "".join(f"* {_link(record)}: {why}\n" for record, why in _left_out()),
    ]
    return "\n".join(parts)


def _sglang(name: str) -> Iterator[str]:
    record, run = sglang.RECORDS[name], sglang.RUNS[name]
    if record.get("budget_interval"):
        found = sglang.plan_of(name, kv_budget=sglang._budget_bytes(name))
        yield _row(record, "tokens", found["max_total_num_tokens"], record["tokens"])
    for key, what, lines in (
        ("kv_size_gb", "pool, GiB", ("KV rows", "index-K")),
        ("draft_kv_size_gb", "draft pool, GiB", ("draft KV pool",)),
    ):
        if record.get(key):
            found = sglang.plan_of(name, kv_budget=250 * GIB, max_total_tokens=record["tokens"])
            yield _row(record, what, sglang.line_gib(found, *lines), record[key])
    if "mem_fraction" in run:
        found = sglang.plan_of(name, max_running_requests=2048)
        interval = record["budget_interval"]
        logged = (interval["gib_low"] + interval["gib_high"]) / 2
        yield _row(record, "budget, from the spec, GiB", found["kv_budget_bytes"] / GIB, logged, *_gib_range(found))


def _vllm(name: str) -> Iterator[str]:
    record, gib = vllm.RECORDS[name], vllm.RECORDS[name]["available_kv_gib"]
    low, best, high = (
        vllm.plan_of(vllm.RUNS[name], kv_budget=int((gib + half) * GIB))["max_total_num_tokens"]
        for half in (-0.005, 0, 0.005)
    )
    yield _row(record, f"tokens of {gib:g} GiB", best, record["tokens"], f"{low:,}", f"{high:,}")


def _throughput() -> Iterator[str]:
    for source, figures in (("paper, by a note", points.PAPER), ("chart of the blog, about", points.CHART)):
        for context, _, quoted in figures:
            found = points.planned(context).tokens_s * points.RANKS
            yield f"| {source} | {context:,} | {found:,.0f} | {quoted:,} | {100 * (found / quoted - 1):+.0f} % |\n"


def _dspark() -> str:
    """The one V4 run with GiB and tokens; its pool is 3 blocks of 13,270 off."""
    record = families.RECORDS[DSPARK]
    gib = record["available_kv_gib"]
    low, best, high = (
        families.launched(kv_budget=int((gib + half) * GIB), **families.DSPARK)["max_total_num_tokens"]
        for half in (-0.005, 0, 0.005)
    )
    return _row(record, f"tokens of {gib:g} GiB", best, record["tokens"], f"{low:,}", f"{high:,}")


def _gib_range(found: dict[str, Any]) -> tuple[str, str]:
    low, high = (edge / GIB for edge in found["kv_budget_bytes_range"])
    return f"{low:.2f}", f"{high:.2f}"


def _row(record: dict[str, Any], what: str, predicted: float, logged: float, low: str = "", high: str = "") -> str:
    def words(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"

    within = f" ({low} to {high})" if low else ""
    error = f"{100 * (predicted / logged - 1):+.3f} %" if predicted != logged else "exact"
    return f"| {_link(record)} | {what} | {words(predicted)}{within} | {words(logged)} | {error} |\n"


def _link(record: dict[str, Any]) -> str:
    source = str(record.get("source_url", "")).partition(" ")[0]
    return f"[{record['id']}]({source})" if source.startswith("https://") else str(record["id"])


def _left_out() -> Iterator[tuple[dict[str, Any], str]]:
    yield from ((sglang.RECORDS[name], why) for name, why in sglang.LEFT_OUT.items())
    bare = (name for name in sglang.RUNS if not any(_sglang(name)))
    yield from ((sglang.RECORDS[name], "neither budget nor pool in this record; its rows are tested") for name in bare)
    blocks = "tokens alone are published; the blocks that they imply are tested"
    whys = {**dict.fromkeys(vllm.BY_BLOCKS, blocks), **vllm.ELSEWHERE, **vllm.LEFT_OUT}
    parts = "its blocks, or the length that would fit, are tested in tests/truth/test_vllm_families.py"
    others = {**dict.fromkeys(sorted(families.RUN - {DSPARK}), parts), **families.LEFT_OUT}
    yield from ((vllm.RECORDS[name], why) for name, why in {**whys, **others}.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
