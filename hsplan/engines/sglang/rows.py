"""
Backend, KV dtype, page size and row bytes, as SGLang resolves `auto` for MLA and DSA models.

Sources: `_dsa_kv_cache_dtype_default`, `_dsa_split_backend_resolution`, `calculate_mla_kv_cache_dim`,
`_mla_backend_page_constraints` and hisparse_hook.py of 0.5.17 to 0.5.23; PRs in `releases.SWITCHES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hsplan.engines.base import Row
from hsplan.engines.sglang.releases import Release
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment
from hsplan.weights import kv_cache_is_fp8

DSA_BACKENDS = frozenset(
    (
        "aiter fa3 flashinfer_sparse_mla flashmla_auto flashmla_kv flashmla_sparse flashmla_sparse_q8 tilelang triton "
        "trtllm"
    ).split()
)
MLA_BACKENDS = frozenset(
    "aiter cutedsl_mla cutlass_mla fa3 fa4 flashinfer flashmla tokenspeed_mla triton trtllm_mla".split()
)
# Page sizes that a backend forces; the others take the user's, 1 when unset.
MLA_PAGES = {
    "flashmla": (64,),
    "trtllm_mla": (64, 32),
    "cutedsl_mla": (64, 32),
    "tokenspeed_mla": (64, 32),
    "cutlass_mla": (128,),
}
DSA_PAGE = 64


def resolve_row(
    model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int, *, offload: bool
) -> Row | str:
    """The row with or without the flags of HiSparse, or the reason why the engine refuses to start with them."""
    if model.index_topk is None:
        if offload:
            return "HiSparse needs a model with a top-k indexer (DSA)"
        return _mla_row(model, gpu, release, deployment, tp)
    dtype = deployment.kv_cache_dtype
    if dtype == "auto":
        dtype = "fp8_e4m3" if gpu.capability >= 100 else "bfloat16"
    backends = _dsa_backends(model, gpu, release, deployment, dtype, offload=offload)
    reason = _refused(model, gpu, release, deployment, dtype, backends, offload=offload)
    return reason or _dsa_row(model, gpu, release, deployment, dtype, backends)


def _dsa_backends(
    model: Model, gpu: Gpu, release: Release, deployment: Deployment, dtype: str, *, offload: bool
) -> tuple[str, str]:
    """Prefill and decode backend."""
    given = deployment.attention_backend
    if given == "flashmla_sparse_q8":
        return given, "flashmla_kv"  # it has a prefill kernel only
    if given != "auto":
        return given, given
    if deployment.dcp > 1:
        return "trtllm", "trtllm"
    fp8 = dtype == "fp8_e4m3"
    if release.has("sm120_packed") and _is_glm_sm12_fp8(model, gpu, fp8=fp8):
        return "flashinfer_sparse_mla", "flashinfer_sparse_mla"
    if gpu.rocm:
        name = "triton" if release.has("rocm_triton") and not offload else "tilelang"
        return name, name
    if offload:
        name = "flashmla_kv" if fp8 else "flashmla_sparse"
        return name, name
    if fp8:
        name = "trtllm" if gpu.capability >= 100 else "flashmla_kv"
        return name, name
    return "flashmla_sparse", "trtllm" if gpu.capability >= 100 else "fa3"


def _refused(
    model: Model,
    gpu: Gpu,
    release: Release,
    deployment: Deployment,
    dtype: str,
    backends: tuple[str, str],
    *,
    offload: bool,
) -> str | None:
    """Why the engine does not start with these backends: with any flags, then with those of HiSparse."""
    return _backend_refused(model, gpu, release, dtype, backends[0], backends[1]) or (
        _hisparse_refused(gpu, release, deployment, dtype, backends) if offload else None
    )


def _backend_refused(model: Model, gpu: Gpu, release: Release, dtype: str, prefill: str, decode: str) -> str | None:
    """`_check_dsa_backend_constraints`, `_validate_flashinfer_sparse_mla_backend` and the q8 rule of the backend."""
    fp8, chosen = dtype == "fp8_e4m3", {prefill, decode}
    if "flashmla_sparse_q8" in chosen and not (fp8 and gpu.capability == 90):
        return "flashmla_sparse_q8 needs an fp8 cache on SM90"
    if not gpu.rocm and "triton" in chosen:
        return "the triton backend of DSA models is for ROCm"
    if not gpu.rocm and fp8 and "tilelang" in chosen and not release.has("cuda_tilelang_fp8"):
        return "tilelang reads an fp8 cache on ROCm only, before 0.5.22"
    if release.has("sm120_packed"):
        glm_sm12 = _is_glm_sm12_fp8(model, gpu, fp8=fp8)
        if glm_sm12 and chosen != {"flashinfer_sparse_mla"}:
            return f"GLM with an fp8 cache on SM12x takes flashinfer_sparse_mla only, not {prefill}"
        if "flashinfer_sparse_mla" in chosen and not glm_sm12:
            return "flashinfer_sparse_mla is for GLM with an fp8 cache on SM12x only"
    return None


def _is_glm_sm12_fp8(model: Model, gpu: Gpu, *, fp8: bool) -> bool:
    return model.architecture == "GlmMoeDsaForCausalLM" and gpu.capability >= 120 and fp8


def _hisparse_refused(
    gpu: Gpu, release: Release, deployment: Deployment, dtype: str, backends: tuple[str, str]
) -> str | None:
    if not release.has("hisparse"):
        return f"{release.name} has no HiSparse (from 2026-03-22 on)"
    if deployment.dcp > 1:
        return "HiSparse does not run with decode context parallelism"
    if deployment.hierarchical_cache:
        return "HiSparse needs the radix cache off, HiCache needs it on"
    allowed = _hisparse_backends(gpu, release, dtype)
    wrong = [name for name in backends if name not in allowed]
    if wrong:
        return f"HiSparse with {dtype} on this GPU refuses backend {wrong[0]} (takes {', '.join(sorted(allowed))})"
    return None


def _hisparse_backends(gpu: Gpu, release: Release, dtype: str) -> set[str]:
    if gpu.rocm:
        return {"tilelang", "aiter", "triton"} if release.has("rocm_triton") else {"tilelang", "aiter"}
    if dtype == "bfloat16":
        return {"flashmla_sparse"}
    return {"flashmla_kv", "flashinfer_sparse_mla"} if release.has("hisparse_sm120") else {"flashmla_kv"}


def _dsa_row(
    model: Model, gpu: Gpu, release: Release, deployment: Deployment, dtype: str, backends: tuple[str, str]
) -> Row:
    lora, rope = model.kv_lora_rank, model.qk_rope_head_dim
    prefill, decode = backends
    if release.has("row_by_pd_role") and deployment.disaggregation:
        prefill = decode = prefill if deployment.disaggregation == "prefill" else decode
    if dtype == "bfloat16":
        kind, stored = "bf16", (lora + rope) * 2
    elif _keeps_fp8_raw(gpu, release, {prefill, decode}):
        kind, stored = "fp8_raw", lora + rope
    else:
        # lora fp8 values, an fp32 scale for each 128 of them, and the rope part in bf16
        kind, stored = "fp8_packed", lora + lora // 128 * 4 + rope * 2
    charged = stored if release.has("true_row_charged") or kind == "bf16" else lora + rope
    page = 1 if gpu.rocm and deployment.page_size == 1 else DSA_PAGE  # 1: the legacy index keys of ROCm
    name = backends[0] if backends[0] == backends[1] else "/".join(backends)
    return Row(
        format=kind, bytes=stored, charged_bytes=charged, attention_backend=name, kv_cache_dtype=dtype, page_tokens=page
    )  # fmt: skip


def _keeps_fp8_raw(gpu: Gpu, release: Release, backends: set[str]) -> bool:
    if "trtllm" in backends:
        return release.has("raw_fp8_trtllm")
    if gpu.rocm:
        return (
            ("tilelang" in backends and release.has("raw_fp8_tilelang"))
            or ("aiter" in backends and release.has("raw_fp8_aiter"))
            or ("triton" in backends and release.has("rocm_triton"))
        )
    return backends == {"tilelang"} and release.has("cuda_tilelang_fp8")


def _mla_row(model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row:
    given = deployment.attention_backend
    backend = given if given in MLA_BACKENDS else _mla_backend(model, gpu, tp)
    dtype = deployment.kv_cache_dtype
    if dtype == "auto":
        dtype = checkpoint_dtype(release, model.quantization)
    wanted = deployment.page_size
    pages = MLA_PAGES.get(backend)
    if pages is not None:
        page = wanted if wanted != "auto" and wanted in pages else pages[0]
    else:
        page = 1 if wanted == "auto" else wanted
    width = model.kv_lora_rank + model.qk_rope_head_dim
    stored, kind = (width, "fp8_raw") if dtype == "fp8_e4m3" else (2 * width, "bf16")
    return Row(
        format=kind,
        bytes=stored,
        charged_bytes=stored,
        attention_backend=backend,
        kv_cache_dtype=dtype,
        page_tokens=page,
    )


def checkpoint_dtype(release: Release, quantization: Mapping[str, Any] | None) -> Literal["fp8_e4m3", "bfloat16"]:
    """What `auto` is where no family rule sets it: fp8 when the checkpoint asks for it and the build reads that."""
    fp8 = kv_cache_is_fp8(quantization) and _reads_kv_scheme(release, quantization)
    return "fp8_e4m3" if fp8 else "bfloat16"


def _reads_kv_scheme(release: Release, quantization: Mapping[str, Any] | None) -> bool:
    """Whether the build takes the KV dtype from a checkpoint of this kind; ModelOpt's it always does."""
    method = (quantization or {}).get("quant_method")
    if method == "fp8":
        return release.has("kv_dtype_of_fp8")
    return method != "compressed-tensors" or release.has("kv_dtype_of_compressed")


def runs_on_aiter(model: Model, gpu: Gpu, deployment: Deployment, tp: int) -> bool:
    """Whether dense MLA runs on the aiter backend (ROCm)."""
    given = deployment.attention_backend
    if model.index_topk is not None or not gpu.rocm:
        return False
    return (given if given in MLA_BACKENDS else _mla_backend(model, gpu, tp)) == "aiter"


def _mla_backend(model: Model, gpu: Gpu, tp: int) -> str:
    """`get_default_attn_backend`, which divides heads by all of TP; trtllm_mla for these architectures on SM100."""
    if gpu.rocm:
        heads = (model.num_attention_heads or 0) // tp
        return "aiter" if heads in {16, 128} else "triton"
    return {9: "fa3", 10: "trtllm_mla"}.get(gpu.capability // 10, "triton")
