"""
mem_fraction_static, chunked_prefill_size and cuda_graph_max_bs when the user gives none.

Source: `_handle_gpu_memory_settings` (server_args.py of 0.5.17 and 0.5.18, memory_hook.py of 0.5.20 to 0.5.23);
PRs #10975, #16331, #23862, #29615.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hsplan.engines.sglang.releases import Release
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment

# Kimi-K2.5's vision tower, 27 layers of 1152: 0.95 × (1 − 0.1 × (27·1152² / (24·1024²) − 1)).
KIMI_VISION_FACTOR = 0.909736328125
AITER_FACTOR = 0.85
A2A_WITH_PREFILL_GRAPH = ("none", "deepep", "megamoe", "flashinfer")


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved fraction, prefill chunk in tokens (before DP attention divides it) and largest graph batch."""

    fraction: float
    chunk_tokens: int
    max_bs: int
    formula: str


def memory_settings(
    model: Model,
    gpu: Gpu,
    release: Release,
    deployment: Deployment,
    *,
    tp: int,
    aiter_mla: bool,
    graph_mib: Callable[[int], int],
) -> MemorySettings:
    """
    Fill what the user left to the engine.

    `tp` is the resolved tensor-parallel size; `graph_mib(chunk)` what the model's kind of cache leaves for prefill
    graphs where the flags allow them; `aiter_mla` says that dense MLA runs on aiter with a context above
    8192 tokens, which takes 15 % off even a given fraction.
    """
    chunk, max_bs = _defaults(gpu.reported_mib, tp, release)
    if deployment.chunked_prefill_size != "auto":
        chunk = deployment.chunked_prefill_size
    given_requests = deployment.max_running_requests
    if deployment.cuda_graph_max_bs != "auto":
        max_bs = deployment.cuda_graph_max_bs
    elif release.has("max_bs_capped") and given_requests != "auto":
        max_bs = min(max_bs, given_requests)
    if deployment.mem_fraction != "auto":
        fraction = deployment.mem_fraction
        formula = f"given: {fraction:g}"
    else:
        prefill = graph_mib(chunk) if _allows_prefill_graph(gpu, release, deployment) else 0
        reserve, terms = _reserve_mib(gpu, release, deployment, tp, chunk, max_bs, prefill)
        fraction = max(round((gpu.reported_mib - reserve) / gpu.reported_mib, 3), 0.0)
        formula = f"round(({gpu.reported_mib:,} − {reserve:,.0f}) / {gpu.reported_mib:,}, 3) = {fraction:g}"
        formula += f", reserve in MiB: {terms}"
        if model.multimodal and deployment.disaggregation != "decode":
            fraction *= KIMI_VISION_FACTOR
            formula += f" × {KIMI_VISION_FACTOR} (vision tower) = {fraction:.4f}"
    if aiter_mla:
        fraction *= AITER_FACTOR
        formula += f" × {AITER_FACTOR} (aiter) = {fraction:.4f}"
    return MemorySettings(fraction=fraction, chunk_tokens=chunk, max_bs=max_bs, formula=formula)


def _defaults(gpu_mib: int, tp: int, release: Release) -> tuple[int, int]:
    """Prefill chunk and largest decode-graph batch by the size of the card."""
    wide = tp >= 4
    if gpu_mib < 20 * 1024:
        return 2048, 8
    if gpu_mib < 35 * 1024:
        if release.has("small_gpu_defaults"):
            return 4096, 160 if wide else 48
        return 2048, 80 if wide else 24
    if gpu_mib < 60 * 1024:
        return 4096, 160 if wide else 32
    if gpu_mib < 160 * 1024:
        return 8192, 512 if wide else 256
    return 16384, 512


def _reserve_mib(
    gpu: Gpu, release: Release, deployment: Deployment, tp: int, chunk: int, max_bs: int, prefill_mib: int
) -> tuple[float, str]:
    """MiB that the automatic fraction leaves for activations, graphs and parallel state, and the terms of the sum."""
    role, dp = deployment.disaggregation, deployment.dp_attention
    graphs = role != "prefill" and max_bs > 0
    terms: list[tuple[str, float]] = [
        ("base", 512),
        ("activations", 1.5 * _activation_tokens(release, deployment, chunk, max_bs)),
        ("parallel state", tp * deployment.pp / 8 * 1024),
    ]
    if graphs:
        terms.append(("decode graphs", 2 * max_bs))
    if dp > 1 and role != "prefill":
        terms.append(("DP attention", 3 * max_bs * dp + (1.5 * max_bs * dp if max_bs > 300 else 0)))
    if prefill_mib:
        terms.append(("prefill graph", prefill_mib + (1024 if deployment.moe_a2a_backend == "deepep" else 0)))
    if deployment.draft_layers and not release.has("draft_charged"):
        terms.append(("draft", 4096 if release.has("draft_reserve_4gib") else 2048))
    total = sum(value for _, value in terms)
    least = 10 * 1024 if gpu.reported_mib > 60 * 1024 else 0
    text = " + ".join(f"{name} {value:,.0f}" for name, value in terms)
    if total < least:
        text, total = f"at least {least:,}, not {text}", least
    if deployment.moe_a2a_backend == "deepep" and graphs:
        text, total = f"{text} + deepep graphs 2,048", total + 2048
    return total, text


def _activation_tokens(release: Release, deployment: Deployment, chunk: int, max_bs: int) -> int:
    if deployment.disaggregation == "decode" and release.has("pd_decode_activations"):
        requests = deployment.max_running_requests
        batch = requests if requests != "auto" else max_bs or 1
        # As given: the engine fills in its own number of draft tokens only after this rule.
        return max(batch * (deployment.num_speculative_tokens + 1), 2048)
    return max(chunk, 2048)


def _allows_prefill_graph(gpu: Gpu, release: Release, deployment: Deployment) -> bool:
    return (
        release.has("prefill_graph_reserve")
        and not gpu.rocm
        and deployment.disaggregation != "decode"
        and not (deployment.pp > 1 and release.has("pp_without_prefill_graph"))
        and deployment.cp == 1
        and deployment.dcp == 1
        and deployment.moe_a2a_backend in A2A_WITH_PREFILL_GRAPH
    )


def latent_graph_mib(model: Model, release: Release, deployment: Deployment) -> int:
    """What prefill graphs of MLA and DSA take, MiB."""
    has = model.index_topk is not None or release.has("mla_prefill_graph") or _piecewise(model, deployment)
    return 1536 if has else 0


def _piecewise(model: Model, deployment: Deployment) -> bool:
    """0.5.17 gives multimodal MLA a piecewise prefill graph, unless one of these switches it off."""
    off = deployment.dp_attention > 1 or deployment.pp > 1 or deployment.hierarchical_cache
    return model.multimodal and not off and deployment.disaggregation is None and deployment.moe_a2a_backend == "none"


def draft_tokens(deployment: Deployment) -> int:
    """Tokens one request verifies in a step: given + 1; 4 when only draft layers are named (steps 3, top-k 1)."""
    if deployment.num_speculative_tokens:
        return deployment.num_speculative_tokens + 1
    return 4 if deployment.draft_layers else 1
