"""
Backend, KV dtype, page size and row bytes, as vLLM resolves `auto` for MLA and DSA models on CUDA.

Sources: platforms/cuda.py, `_canonicalize_sparse_mla_kv_cache_dtype`, GlmMoeDsaForCausalLM in models/config.py and
the backends under v1/attention/backends/mla of 0.24.0 to 0.33.0. HiSparse changes none of it.
"""

from __future__ import annotations

from hsplan.engines.base import Row
from hsplan.engines.vllm.releases import Release
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment
from hsplan.weights import kv_cache_is_fp8

INDEX_ROWS = {"fp8": 132, "mxfp4": 68}  # 128 fp8 values and an fp32 scale; 64 bytes of fp4 pairs and 4 scales
DSA_PAGE = 64
SPARSE_BACKENDS = ("flashinfer_mla_sparse", "flashmla_sparse")
# vLLM's name of each dense backend that a spec can name, and the page sizes of its kernels, the preferred one first.
DENSE_BACKENDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "cutlass_mla": ("cutlass_mla", (128,)),
    "fa3": ("flash_attn_mla", (16, 32, 64, 128)),
    "flashinfer": ("flashinfer_mla", (32, 64)),
    "flashmla": ("flashmla", (64,)),
    "tokenspeed_mla": ("tokenspeed_mla", (32, 64)),
    "triton": ("triton_mla", (16, 32, 64, 128)),
}
OLD_DENSE_PAGE = 64  # FlashMLA's; logs of 2025-11 and 2026-04
SM120_TOPK = 2048


def resolve_row(model: Model, gpu: Gpu, release: Release, deployment: Deployment, heads: int) -> Row | str:
    """The row of a model whose ranks hold `heads` attention heads, or the reason why the engine does not start."""
    if model.index_topk is None:
        return _dense_row(model, gpu, release, deployment)
    reason = fp4_refused(gpu, deployment)
    return reason or _sparse_row(model, gpu, release, deployment, heads)


def takes_dcp(row: Row, release: Release) -> bool:
    """Whether a published build runs a sparse backend under DCP (`can_return_lse_for_decode`)."""
    if row.attention_backend == "flashinfer_mla_sparse":
        return release.has("dcp_flashinfer_sparse")
    packed = row.attention_backend == "flashmla_sparse" and row.format == "fp8_packed"
    return packed and release.has("dcp_flashmla_sparse")


def index_bytes(model: Model, deployment: Deployment) -> int:
    """Bytes of one index key; 0 without an indexer."""
    if model.index_topk is None:
        return 0
    return INDEX_ROWS["fp8" if deployment.indexer_kv_dtype == "auto" else deployment.indexer_kv_dtype]


def fp4_refused(gpu: Gpu, deployment: Deployment) -> str | None:
    """Why index keys in fp4 do not run on this GPU (`dsa_indexer_uses_fp4`)."""
    if deployment.indexer_kv_dtype == "mxfp4" and gpu.capability // 10 != 10:
        return "indexer_kv_dtype mxfp4 needs a Blackwell datacenter GPU (SM10x)"
    return None


def _sparse_dtype(model: Model, gpu: Gpu, release: Release, deployment: Deployment) -> str:
    dtype = deployment.kv_cache_dtype
    if dtype != "auto":
        return dtype
    glm = model.architecture == "GlmMoeDsaForCausalLM"
    fp8 = (
        _checkpoint_is_fp8(model)
        or gpu.capability // 10 == 12  # its backend packs rows for `auto` too
        or (glm and gpu.capability // 10 == 10 and release.has("glm_fp8_on_sm100"))
    )
    return "fp8_e4m3" if fp8 else "bfloat16"


def checkpoint_dtype(model: Model, deployment: Deployment) -> str:
    """The dtype as given, or that of the checkpoint; bf16 where neither says one."""
    if deployment.kv_cache_dtype != "auto":
        return deployment.kv_cache_dtype
    return "fp8_e4m3" if _checkpoint_is_fp8(model) else "bfloat16"


def _checkpoint_is_fp8(model: Model) -> bool:
    """Only a ModelOpt checkpoint chooses the cache's dtype (`get_kv_cache_quant_algo_string`)."""
    method = (model.quantization or {}).get("quant_method")
    return isinstance(method, str) and method.startswith("modelopt") and kv_cache_is_fp8(model.quantization)


def _sparse_row(model: Model, gpu: Gpu, release: Release, deployment: Deployment, heads: int) -> Row | str:
    dtype, given = _sparse_dtype(model, gpu, release, deployment), deployment.attention_backend
    fp8, family = dtype == "fp8_e4m3", gpu.capability // 10
    if family not in (9, 10, 12):
        return f"vLLM has no sparse MLA backend for the {gpu.name}: SM90, SM10x and SM12x only"
    if given not in ("auto", *SPARSE_BACKENDS):
        return f"{given} is no sparse MLA backend of vLLM (known: {', '.join(SPARSE_BACKENDS)})"
    if family == 12:
        if not fp8:
            return "vLLM's sparse MLA backend on SM12x takes packed fp8 rows only"
        if given == "flashmla_sparse" or model.index_topk != SM120_TOPK:
            return f"SM12x takes flashinfer_mla_sparse and an index_topk of {SM120_TOPK} only"
        backend = "flashinfer_mla_sparse_sm120"
    elif given == "auto":
        backend = _sparse_backend(release, deployment, family, heads, fp8=fp8)
    elif given == "flashinfer_mla_sparse" and family == 9:
        if not release.has("hisparse"):
            return "flashinfer_mla_sparse runs on SM90 from 0.30.0 on"
        backend = "flashinfer_mla_sparse_sm90"
    else:
        backend = given
    if deployment.page_size not in ("auto", DSA_PAGE):
        return f"the indexer's kernels take pages of {DSA_PAGE} tokens, not {deployment.page_size}"
    packed = fp8 and backend in ("flashmla_sparse", "flashinfer_mla_sparse_sm120")
    return _row(model, backend, dtype, DSA_PAGE, packed=packed)


def _sparse_backend(release: Release, deployment: Deployment, family: int, heads: int, *, fp8: bool) -> str:
    """`_get_backend_priorities` of SM90 and SM10x."""
    if family == 9:
        flash = not fp8 and release.has("flash_attn_sparse") and deployment.dcp == 1
        return "flash_attn_mla_sparse" if flash else "flashmla_sparse"
    if fp8:
        return "flashinfer_mla_sparse"
    if not 0 < heads <= 16:
        return "flashmla_sparse"
    return "flash_attn_mla_sparse_fa4" if release.has("flash_attn_4_sparse") else "flashinfer_mla_sparse"


def _dense_row(model: Model, gpu: Gpu, release: Release, deployment: Deployment) -> Row | str:
    dtype, given, family = checkpoint_dtype(model, deployment), deployment.attention_backend, gpu.capability // 10
    fp8 = dtype == "fp8_e4m3"
    if given == "auto":
        given = {9: "flashmla" if fp8 or not release.has("page_of_backend") else "fa3", 10: "flashinfer"}.get(
            family, "triton"
        )
    if given not in DENSE_BACKENDS:
        return f"{given} is no dense MLA backend of vLLM (known: {', '.join(DENSE_BACKENDS)})"
    backend, pages = DENSE_BACKENDS[given]
    if not release.has("page_of_backend") and OLD_DENSE_PAGE in pages and given != "triton":
        pages = (OLD_DENSE_PAGE, *pages)
    page = deployment.page_size
    if page != "auto" and page not in pages:
        return f"{backend} takes pages of {', '.join(map(str, pages))} tokens, not {page}"
    return _row(model, backend, dtype, pages[0] if page == "auto" else page, packed=False)


def _row(model: Model, backend: str, dtype: str, page_tokens: int, *, packed: bool) -> Row:
    lora, rope = model.kv_lora_rank, model.qk_rope_head_dim
    if dtype == "bfloat16":
        kind, size = "bf16", (lora + rope) * 2
    elif packed:
        # lora fp8 values, an fp32 scale for each 128 of them, and the rope part in bf16
        kind, size = "fp8_packed", lora + lora // 128 * 4 + rope * 2
    else:
        kind, size = "fp8_raw", lora + rope
    return Row(
        format=kind,
        bytes=size,
        charged_bytes=size,
        attention_backend=backend,
        kv_cache_dtype=dtype,
        page_tokens=page_tokens,
    )
