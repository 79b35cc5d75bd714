"""
The start-up lines of SGLang and vLLM that say something of memory: how they are found, and what is read from them.

Source: the published wheels of SGLang 0.5.17 to 0.5.23 (model_runner.py, memory_pool.py, kv_cache_configurator.py,
scheduler.py, pool_host/) and of vLLM 0.24.0, 0.28.0, 0.30.0 and 0.33.0 (gpu_worker.py, kv_cache_utils.py,
kv_cache_planning.py, hisparse/layout.py). A group of a pattern is a reading of that name. SGLang prints GiB as GB for
the GPU, and 10^9 bytes for host pools.
"""

from __future__ import annotations

import re

import msgspec

SGLANG, VLLM = "sglang", "vllm"
# What precedes a message: nothing, or the end of a prefix. A figure inside other words is no start-up line.
_START = r"(?:^|[\s\]|:\"])"
_GIB = r"[\d.]{1,20}"
_INT = r"(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})"


class Printed(msgspec.Struct, frozen=True):
    """A line: the engine that prints it, bytes that every such line holds, and what is read from it."""

    engine: str
    needle: bytes
    pattern: re.Pattern[str]


def _line(engine: str, needle: str, pattern: str) -> Printed:
    return Printed(engine, needle.encode(), re.compile(_START + pattern))


LINES = (
    _line(SGLANG, "Load weight begin.", rf"Load weight begin\. avail mem=(?P<free_before>{_GIB}) GB"),
    _line(SGLANG, "Load weight end.",
          rf"Load weight end\. .{{0,400}}?avail mem=(?P<free_after>{_GIB}) GB, mem usage=(?P<weights>{_GIB}) GB"),
    _line(SGLANG, "KV Cache is allocated.",
          rf"KV Cache is allocated\. (?:dtype: torch\.(?P<dtype>\w{{1,30}}), )?#tokens: (?P<pool_tokens>{_INT}), "
          rf"KV size: (?P<pool>{_GIB}) GB"),
    _line(SGLANG, "Memory pool end.", rf"Memory pool end\. avail mem=(?P<free_beside>{_GIB}) GB"),
    _line(SGLANG, "max_total_num_tokens=",
          rf"max_total_num_tokens=(?P<tokens>{_INT}), .{{0,200}}?max_running_requests=(?P<max_running>{_INT}), "
          rf"context_len=(?P<context>{_INT})"),
    _line(SGLANG, "host memory",
          rf"Allocating (?:.{{0,60}}?: \d{{1,20}} tokens, )?(?P<host_pool>{_GIB}) GB host memory"),
    _line(SGLANG, "mem_fraction_static",
          r"server_args=.{0,60000}?mem_fraction_static['\"]?[=:] ?(?P<fraction>0\.\d{1,20})"),
    _line(SGLANG, "leave no GPU memory",
          r"Loaded weights leave no GPU memory .{0,300}?minimum viable = 1 - available/pre = "
          r"(?P<least_fraction>0\.\d{1,20})"),
    _line(VLLM, "V1 LLM engine", r"Initializing a V1 LLM engine \(v(?P<release>[\w.+-]{1,60})\)"),
    _line(VLLM, "Model loading took", rf"Model loading took (?P<weights>{_GIB}) GiB"),
    _line(VLLM, "KV cache memory:", rf"Available KV cache memory: (?P<budget>{_GIB}) GiB"),
    _line(VLLM, "KV cache size:", rf"GPU KV cache size: (?P<tokens>{_INT}) tokens"),
    _line(VLLM, "Maximum concurrency for",
          rf"Maximum concurrency for (?P<context>{_INT}) tokens per request: (?P<concurrency>[\d.,]{{1,20}})x"),
    _line(VLLM, "KV cache is needed",
          rf"To serve at least one request with the model'?s'? max seq len \((?P<context>{_INT})\), "
          rf"\(?(?P<need>{_GIB}) GiB KV cache is needed, .{{0,80}}?memory \((?P<budget>{_GIB}) GiB\)"),
    _line(VLLM, "HiSparse HMA:",
          rf"HiSparse HMA: [\d.]{{1,20}} GiB host source \((?P<host_blocks>{_INT}) blocks\), [\d.]{{1,20}} GiB "
          rf"shared GPU indexer/resident/hot pool \((?P<blocks>{_INT}) blocks\)"),
    _line(VLLM, "gpu-memory-utilization=", r"The current --gpu-memory-utilization=(?P<fraction>0\.\d{1,20}) is"),
    _line(VLLM, "gpu_memory_utilization",
          r"non-default args: .{0,60000}?'gpu_memory_utilization': (?P<fraction>0\.\d{1,20})"),
)  # fmt: skip
# A server starts, and has started: what stands between two starts of a log belongs to the first.
STARTS = (b"server_args=", b"vLLM API server version")
READY = (b"The server is fired up and ready to roll", b"Application startup complete")
RANK = re.compile(r"[ _(]TP(\d{1,4})\b")
