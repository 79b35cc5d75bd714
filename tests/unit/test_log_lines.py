"""Every line that is read, in the words of the release that prints it."""

from __future__ import annotations

import pytest

from hsplan.calibrate.lines import LINES
from hsplan.calibrate.log import log_of

SGLANG = "[2026-11-01 10:00:00 TP0] "
VLLM = "(Worker_TP0 pid=90) INFO 11-01 10:00:00 [gpu_worker.py:773] "
WEIGHTS = (
    "Load weight end. elapsed=61.20 s, type=GlmMoeDsaForCausalLM, quant=fp8, fmt=e4m3, avail mem=48.72 GB, "
    "mem usage=89.24 GB."
)
TOKENS = (
    "max_total_num_tokens=142208, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, "
    "context_len=202752, available_gpu_mem=36.00 GB"
)
ALLOCATED = "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 142208, KV size: 8.14 GB"
NO_ROOM = (
    "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. "
    "Raise --mem-fraction-static above 0.648 (minimum viable = 1 - available/pre = 0.6470)."
)
BLOCKS = "GPU KV cache size: 249,599 tokens"
CONCURRENCY = "Maximum concurrency for 202,752 tokens per request: 1.23x"
HISPARSE = (
    "HiSparse HMA: 160.0 GiB host source (59747 blocks), 20.0 GiB shared GPU indexer/resident/hot pool (103959 blocks)."
)
GRAPHS = (
    "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9200 is "
    "equivalent to --gpu-memory-utilization=0.8900 without"
)
REPR = "server_args=ServerArgs(model_path='m', mem_fraction_static={}, tp_size=8)"
NEED = (
    "ValueError: To serve at least one request with the model's max seq len (250000), (14.5 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (10.3 GiB). Based on the available memory, the estimated "
    "maximum model length is 177728. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)
SERVED = {"context": "202,752", "concurrency": "1.23"}
CASES = [
    # release, line, readings
    ("sglang 0.5.17", "Load weight begin. avail mem=138.01 GB", {"free_before": "138.01"}),
    ("sglang 0.5.17", WEIGHTS, {"free_after": "48.72", "weights": "89.24"}),
    ("sglang 0.5.17", ALLOCATED, {"dtype": "float8_e4m3fn", "pool_tokens": "142208", "pool": "8.14"}),
    ("sglang main-2026-02-18", "KV Cache is allocated. #tokens: 142208, KV size: 8.14 GB",
     {"pool_tokens": "142208", "pool": "8.14"}),
    ("sglang 0.5.23", "Memory pool end. avail mem=38.99 GB", {"free_beside": "38.99"}),
    ("sglang 0.5.18", REPR.format(0.7), {"fraction": "0.7"}),
    ("sglang 0.5.19", "server_args={'model_path': 'm', 'mem_fraction_static': 0.886}", {"fraction": "0.886"}),
    ("sglang 0.5.17", REPR.format(None), {}),
    ("sglang 0.5.23", "Allocating MLA hierarchical KV host pool: 5400000 tokens, 242.61 GB host memory.",
     {"host_pool": "242.61"}),
    ("sglang 0.5.23", "Allocating 55.60 GB host memory for DSA indexer (layout=page_first).", {"host_pool": "55.60"}),
    ("sglang 0.5.23", NO_ROOM, {"least_fraction": "0.6470"}),
    ("sglang 0.5.23", TOKENS, {"tokens": "142208", "max_running": "2048", "context": "202752"}),
    ("vllm 0.33.0", "Initializing a V1 LLM engine (v0.33.0) with config: model='m'", {"release": "0.33.0"}),
    ("vllm 0.24.0", "Model loading took 89.31 GiB memory and 61.200000 seconds", {"weights": "89.31"}),
    ("vllm 0.24.0", "Model loading took 89.31 GiB and 61.200000 seconds", {"weights": "89.31"}),
    ("vllm 0.24.0", "Available KV cache memory: 19.55 GiB", {"budget": "19.55"}),
    ("vllm 0.26.0", BLOCKS, {"tokens": "249,599"}),
    ("vllm 0.26.0", CONCURRENCY, SERVED),
    ("vllm 0.28.0", f"{BLOCKS}, {CONCURRENCY}", {"tokens": "249,599", **SERVED}),
    # with HiSparse every request of this line is in its admission window: blocks are read instead
    ("vllm 0.33.0", f"GPU + host KV cache size: 1,000 tokens, {CONCURRENCY}", SERVED),
    ("vllm 0.33.0", HISPARSE, {"host_blocks": "59747", "blocks": "103959"}),
    ("vllm 0.30.0", NEED, {"context": "250000", "need": "14.5", "budget": "10.3"}),
    ("vllm 0.24.0", "non-default args: {'model': 'm', 'gpu_memory_utilization': 0.9}", {"fraction": "0.9"}),
    ("vllm 0.30.0", GRAPHS, {"fraction": "0.9200"}),
]  # fmt: skip


@pytest.mark.parametrize(("release", "message", "readings"), CASES, ids=[f"{case[0]} {case[1][:30]}" for case in CASES])
def test_a_line_of_a_release_is_read(release: str, message: str, readings: dict[str, str]):
    engine = release.partition(" ")[0]
    # a line that says nothing needs one beside it that does
    beside = [] if readings else ["Memory pool end. avail mem=1.00 GB"]
    found = log_of([(SGLANG if engine == "sglang" else VLLM) + text for text in (message, *beside)], "log")
    assert found.engine == engine
    assert found.readings == {name: (text,) for name, text in (readings or {"free_beside": "1.00"}).items()}


def test_every_pattern_is_tested_above():
    matched = {
        line.needle for line in LINES for _, message, readings in CASES if readings and line.pattern.search(message)
    }
    assert matched == {line.needle for line in LINES}
