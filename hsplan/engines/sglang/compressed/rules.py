"""
What SGLang refuses for DeepSeek-V4, and what hsplan does not know of it.

Sources: deepseek_v4_hook.py, hisparse_hook.py and deepseek_v4_memory_pool.py of 0.5.17 to 0.5.23.
"""

from __future__ import annotations

from hsplan.engines.base import Launch
from hsplan.engines.sglang.compressed.sizing import LAUNCHER_REQUESTS, has_may_rule
from hsplan.engines.sglang.fraction import draft_tokens
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.releases import FIRST_RELEASE, Release
from hsplan.engines.sglang.requests import is_speculative
from hsplan.errors import Problem
from hsplan.families import Compressed, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

BACKENDS = ("flashmla", "trtllm")
LAUNCHER_RATIO = 0.1  # model_overrides/deepseek_v4.py, not for V4.1
# The most draft tokens that a ring of ratio 4 keeps under speculation: 16 rows less a window of 8, and 2.
MOST_DRAFTS = 10


def unsupported(loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> Problem | None:
    """The first thing that cannot run."""
    deployment, kv = loaded.spec.deployment, model.kv
    assert isinstance(kv, Compressed)  # noqa: S101
    if release.date < FIRST_RELEASE and not has_may_rule(release):
        what = f"how SGLang {release.name} sizes DeepSeek-V4 is not known"
        remedy = "known: 0.5.17 to 0.5.23, and main builds of May 2026"
        return Problem(where=loaded.where("deployment.release"), what=what, remedy=remedy)
    if model.shares_keys and not release.has("v41"):
        what = f"how SGLang {release.name} sizes DeepSeek-V4.1 is not known"
        return Problem(where=loaded.where("deployment.release"), what=what, remedy="known: 0.5.23")
    if gpu.rocm:
        what = "DeepSeek-V4 on ROCm keeps another layout (unified KV), which hsplan does not know"
        return Problem(where=loaded.where("deployment.gpu"), what=what)
    if (kv.head_dim, model.qk_rope_head_dim, model.index_head_dim) != (512, 64, 128):
        what = "the engine asserts head_dim 512, qk_rope_head_dim 64 and index_head_dim 128"
        return Problem(where=loaded.where("model.head_dim"), what=what)
    if deployment.kv_cache_dtype == "bfloat16":
        where = loaded.where("deployment.kv_cache_dtype")
        return Problem(where=where, what="DeepSeek-V4's pool is fp8 in SGLang", remedy="leave it to auto")
    for key in ("cp", "dcp"):
        if getattr(deployment, key) > 1:
            return Problem(where=loaded.where(f"deployment.{key}"), what=f"{key} with DeepSeek-V4 is not modelled")
    if kv.groups is not None and kv.groups % ranks.attention_tp:
        what = f"{kv.groups} output groups cannot be divided over {ranks.attention_tp} attention ranks"
        return Problem(where=loaded.where("deployment.tp"), what=what, remedy="use fewer, or dp_attention")
    if is_speculative(deployment) and draft_tokens(deployment) > MOST_DRAFTS:
        what = f"{draft_tokens(deployment)} draft tokens, but the state ring of ratio 4 keeps {MOST_DRAFTS}"
        return Problem(where=loaded.where("deployment.num_speculative_tokens"), what=what)
    return _backend_refused(loaded, gpu, release)


def _backend_refused(loaded: Loaded, gpu: Gpu, release: Release) -> Problem | None:
    """`apply_deepseek_v4_defaults`: what trtllm needs."""
    deployment, where = loaded.spec.deployment, loaded.where("deployment.attention_backend")
    backend = deployment.attention_backend
    if backend not in ("auto", *BACKENDS):
        what = f"{backend} is no backend of DeepSeek-V4 in SGLang"
        return Problem(where=where, what=what, remedy="known: " + ", ".join(BACKENDS))
    if backend != "trtllm":
        return None
    if not release.has("v4_trtllm"):
        return Problem(where=where, what=f"SGLang {release.name} has no trtllm for DeepSeek-V4", remedy="from 0.5.20")
    if gpu.capability not in (100, 103):
        return Problem(where=where, what="trtllm for DeepSeek-V4 needs SM100 or SM103", remedy="leave it to auto")
    if deployment.disaggregation:
        return Problem(where=where, what="trtllm for DeepSeek-V4 does not run with PD disaggregation")
    return None


def backend_of(kv: Compressed, gpu: Gpu, deployment: Deployment, attention_tp: int) -> str:
    """flashmla; its mega kernel for V4.1 on SM100 where attention is not tensor-parallel, or on a PD node."""
    low = any(ratio in {1, 2} for ratio in kv.ratios)
    alone = attention_tp == 1 or deployment.disaggregation is not None
    return "flashmla_mega" if low and gpu.capability in (100, 103) and alone else "flashmla"


def hisparse_refused(kv: Compressed, deployment: Deployment, backend: str) -> str | None:
    """Why the engine does not start with HiSparse."""
    if 4 not in kv.ratios:
        return "HiSparse moves the entries of ratio 4, and the model has none"
    if backend == "trtllm":
        return "trtllm for DeepSeek-V4 does not run with HiSparse"
    if deployment.hierarchical_cache:
        return "HiSparse needs the radix cache off, HiCache needs it on"
    if is_speculative(deployment):
        return "HiSparse with speculation runs on DSA models only"
    return None


def stage_refused(launch: Launch, stage: tuple[int, int], *, offload: bool) -> Problem | None:
    """What a pipeline stage lacks to start."""
    kv, (first, end) = launch.model.kv, stage
    assert isinstance(kv, Compressed)  # noqa: S101
    key = "pp" if launch.loaded.spec.deployment.layer_range is None else "layer_range"
    where, layers = launch.loaded.where(f"deployment.{key}"), f"layers {first} to {end - 1}"
    for layer in range(first, end):
        ratio = kv.ratios[layer]
        if ratio in {1, 2} and not any(first <= s <= layer and kv.ratios[s] == ratio for s in kv.sources):
            return Problem(where=where, what=f"{layers}: layer {layer} has no source layer in the stage to read from")
    if not any(kv.ratios[first:end]):
        return Problem(where=where, what=f"{layers} store windows only; SGLang then has no rate to divide by")
    if offload and 4 not in kv.ratios[first:end]:
        return Problem(where=where, what=f"{layers} have no entries of ratio 4 for HiSparse to move")
    return None


def launcher_notes(loaded: Loaded, model: Model, release: Release) -> list[str]:
    """Where SGLang's launcher hands its pool code something else than what was, or was not, given."""
    deployment, found = loaded.spec.deployment, []
    if deployment.max_running_requests == "auto" and is_speculative(deployment):
        found.append(f"max_running_requests is not given: SGLang's launcher sets {LAUNCHER_REQUESTS} for DeepSeek-V4")
    elif deployment.max_running_requests == "auto":
        found.append(
            f"max_running_requests is not given, and the pool code then keeps state for thousands; SGLang's launcher "
            f"sets {LAUNCHER_REQUESTS} for DeepSeek-V4: give the number that you launch with"
        )
    if deployment.swa_full_tokens_ratio is None and release.has("v4_window_cap") and not model.shares_keys:
        found.append(
            "swa_full_tokens_ratio is not given, and the pool code then sizes windows by the request cap; SGLang's "
            f"launcher sets {LAUNCHER_RATIO:g} for DeepSeek-V4: give the ratio that you launch with"
        )
    if deployment.dp_attention > 1 and deployment.chunked_prefill_size != "auto" and release.has("v4_window_cap"):
        found.append(
            "chunked_prefill_size is taken as that of one rank; SGLang's launcher divides it by dp_attention, and "
            "windows by the request cap are then fewer"
        )
    return found
