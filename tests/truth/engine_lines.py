"""Start-up logs in each release's own words, from the figures of a record; calibrate/lines.py names the source."""

from __future__ import annotations

from hsplan.engines.vllm.releases import RELEASES as VLLM_RELEASES

# #50462: tokens and concurrency stand in one line.
ONE_LINE = "2026-08-04"


def sglang_log(
    *,
    tokens: int,
    release: str = "0.5.17",
    ranks: int = 1,
    fraction: float | None = None,
    before: float | None = None,
    after: float | None = None,
    weights: float | None = None,
    pool: float | None = None,
    draft: float | None = None,
    dtype: str = "float8_e4m3fn",
    running: int = 2048,
    context: int = 202_752,
) -> str:
    lines = []
    if fraction is not None:
        repr_of_class = release in ("0.5.17", "0.5.18") or release.startswith("main-")
        one = f"ServerArgs(model_path='m', mem_fraction_static={fraction}, tp_size={ranks})"
        other = f"{{'model_path': 'm', 'mem_fraction_static': {fraction}, 'tp_size': {ranks}}}"
        lines.append(f"[2026-11-01 10:00:00] server_args={one if repr_of_class else other}")
    for rank in range(ranks):
        head = f"[2026-11-01 10:00:01{f' TP{rank}' if ranks > 1 else ''}]"
        if before is not None:
            lines.append(f"{head} Load weight begin. avail mem={before:.2f} GB")
        if after is not None and weights is not None:
            usage = f"avail mem={after:.2f} GB, mem usage={weights:.2f} GB."
            lines.append(f"{head} Load weight end. elapsed=61.20 s, type=GlmMoeDsaForCausalLM, quant=fp8, {usage}")
        sizes = [size for size in (pool, draft) if size is not None]
        lines += [
            f"{head} KV Cache is allocated. dtype: torch.{dtype}, #tokens: {tokens}, KV size: {size:.2f} GB"
            for size in sizes
        ]
        lines.append(f"{head} Memory pool end. avail mem=30.00 GB")
    lines.append(
        f"[2026-11-01 10:00:09{' TP0' if ranks > 1 else ''}] max_total_num_tokens={tokens}, "
        f"chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests={running}, "
        f"context_len={context}, available_gpu_mem=28.00 GB"
    )
    return "\n".join([*lines, "[2026-11-01 10:00:10] The server is fired up and ready to roll!"])


def vllm_log(*, tokens: int, concurrency: float, length: int, gib: float | None = None, release: str = "0.33.0") -> str:
    day = VLLM_RELEASES.get(release, release.removeprefix("main-"))
    core = "(EngineCore pid=77)" if release == "0.33.0" else "(EngineCore_DP0 pid=77)"
    held = f"GPU KV cache size: {tokens:,} tokens"
    served = f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x"
    lines = [f"(APIServer pid=70) INFO 11-01 10:00:00 [utils.py:299] vLLM API server version {release}"]
    if release in VLLM_RELEASES:
        config = f"Initializing a V1 LLM engine (v{release}) with config: model='m'"
        lines.append(f"{core} INFO 11-01 10:00:01 [core.py:109] {config}")
    if gib is not None:
        lines += [
            f"(Worker_TP{rank} pid=9{rank}) INFO 11-01 10:01:00 [gpu_worker.py:509] "
            f"Available KV cache memory: {round(gib, 2)} GiB"
            for rank in range(2)
        ]
    if day >= ONE_LINE:
        lines.append(f"{core} INFO 11-01 10:01:01 [kv_cache_utils.py:1870] {held}, {served}")
    else:
        lines += [f"{core} INFO 11-01 10:01:01 [kv_cache_utils.py:1307] {text}" for text in (held, served)]
    return "\n".join(lines)
