"""
DeepSeek-V4 as a kind of cache: entries of 4 and of 128 tokens, index keys, windows, and the state of compressors.

Sources: models/deepseek_v4/{attention,compressor}.py, models/deepseek_v4/nvidia/{model,flashmla}.py and
v1/attention/backends/mla/sparse_swa.py of 0.24.0 to 0.33.0.
"""

from __future__ import annotations

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.vllm.groups import INDEX, BlockPool, Part
from hsplan.engines.vllm.memory import Reserved, compressed_reserve, draft_inputs
from hsplan.engines.vllm.packed import Kind, packed_pool
from hsplan.engines.vllm.printed import shards_of_tokens
from hsplan.engines.vllm.releases import Release
from hsplan.engines.vllm.rows import fp4_refused, index_bytes
from hsplan.engines.vllm.scenarios import drafts_on
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import Compressed, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

PAGE = 256
INDEX_DIM = 128
WINDOW_BLOCK = 64
C4_BLOCK, C4_WINDOW = 4, 8  # entries of 4 tokens overlap by 4
C128_BLOCK, C128_WINDOW = 8, 128
# 448 fp8 values, 64 of bf16 rope and 8 scales, in pages of whole 576 B; plain rows in pages of whole 512 B.
ENTRIES = {"v4_packed": (584, 576), "fp8_raw": (512, 512), "bf16": (1024, 512)}
# The first one is that of a GPU family when none is given (`_select_dsv4_attn_cls`).
BACKENDS = {9: ("flashmla_sparse",), 10: ("flashmla_sparse", "flashinfer_mla_sparse"), 12: ("flashinfer_mla_sparse",)}
FIRST_BUILD = "2026-04-28"
PRINTED_NOTE = (
    "vLLM prints tokens and concurrency as if every request had all tokens in flight at once; the requests by GPU pool "
    "count these once, for one request that is admitted while the others decode"
)


class CompressedCache:
    """DeepSeek-V4: several groups of layers that take their blocks from one pool."""

    def check(self, loaded: Loaded, model: Model, release: Release) -> list[str]:
        """Raise UnsupportedError for what cannot run; return notes."""
        problem = _unsupported(loaded, model, release)
        if problem is not None:
            raise UnsupportedError(problem)
        return [PRINTED_NOTE]

    def row(self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row | str:
        """The entry: packed in fp8, but for FlashInfer on SM10x, whose rows are plain."""
        family, given = gpu.capability // 10, deployment.attention_backend
        backends = BACKENDS.get(family, ())
        if not backends:
            return f"vLLM has no attention of DeepSeek-V4 for the {gpu.name}: SM90, SM10x and SM12x only"
        groups = kv_of(model).groups
        if groups is not None and groups % tp:
            return f"{groups} output groups of DeepSeek-V4 cannot be divided over {tp} ranks"
        if given not in ("auto", *backends):
            return f"{given} is no backend of DeepSeek-V4 on the {gpu.name} (known: {', '.join(backends)})"
        if deployment.page_size not in ("auto", PAGE):
            return f"the kernels of DeepSeek-V4 take pages of {PAGE} tokens, not {deployment.page_size}"
        backend = backends[0] if given == "auto" else given
        kind = _entry(deployment, plain=backend == "flashinfer_mla_sparse" and family == 10)
        if kind == "v4_packed" and deployment.kv_cache_dtype == "bfloat16":
            return "packed entries of DeepSeek-V4 are fp8; only flashinfer_mla_sparse on SM10x keeps bfloat16"
        if kind != "v4_packed" and not release.has("v4_plain_rows"):
            return f"how vLLM {release.name} pads plain rows of DeepSeek-V4 is not modelled (from 0.25.0 on)"
        return fp4_refused(gpu, deployment) or Row(
            format=kind,
            bytes=ENTRIES[kind][0],
            charged_bytes=ENTRIES[kind][0],
            attention_backend=f"{backend}_dsv4",
            kv_cache_dtype="bfloat16" if kind == "bf16" else "fp8_e4m3",
            page_tokens=PAGE,
        )

    def no_offload(self, model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:  # noqa: ARG002
        """It is rejected by name (`_partition_hisparse_specs`)."""
        if not release.has("hisparse"):
            return f"vLLM {release.name} has no HiSparse (from 0.30.0 on, and not for DeepSeek-V4)"
        return f"HiSparse of vLLM {release.name} does not support DeepSeek-V4"

    def pool(self, launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:  # noqa: ARG002
        """Its groups on a stage; MTP and DSpark layers are windows."""
        model, deployment = launch.model, launch.loaded.spec.deployment
        drafts = range(model.num_attention_layers, model.num_attention_layers + deployment.draft_layers)
        held = {*range(*stage), *(drafts if drafts_on(launch, stage) else ())}
        kinds = _kinds(kv_of(model), launch.extra.row.format, index_bytes(model, deployment), tuple(drafts))
        return packed_pool(kinds, launch.release, held)

    def reserve(self, launch: Launch, stage: tuple[int, int]) -> list[Reserved]:
        """Workspaces of a prefill over entries of 4 tokens, and what drafts are made from."""
        workspaces = compressed_reserve(launch, launch.extra.scheduler, kv_of(launch.model).window, C4_BLOCK)
        return workspaces + draft_inputs(launch, drafts_on(launch, stage))


def _entry(deployment: Deployment, *, plain: bool) -> str:
    """Format of an entry; plain rows are bf16 unless fp8 is asked for."""
    if not plain:
        return "v4_packed"
    return "fp8_raw" if deployment.kv_cache_dtype == "fp8_e4m3" else "bf16"


def kv_of(model: Model) -> Compressed:
    """How the model's KV lies; its family always says so."""
    assert isinstance(model.kv, Compressed)  # noqa: S101
    return model.kv


def _kinds(kv: Compressed, entry: str, index_row: int, drafts: tuple[int, ...]) -> tuple[Kind, ...]:
    """Full attention, windows, and the states of both compressors, values and scores of a token in fp32."""
    size, alignment = ENTRIES[entry]
    c4 = tuple(layer for layer, ratio in enumerate(kv.ratios) if ratio == 4)
    c128 = tuple(layer for layer, ratio in enumerate(kv.ratios) if ratio == 128)
    every = (*range(len(kv.ratios)), *drafts)

    def page(name: str, rows: int, row_bytes: int) -> Part:
        return Part(name=name, rows=rows, row_bytes=row_bytes, layers=1, padding=-rows * row_bytes % alignment)

    full = (
        (page("ratio-4 KV", PAGE // 4, size), c4),
        (page(INDEX, PAGE // 4, index_row), c4),
        (page("ratio-128 KV", PAGE // 128, size), c128),
    )
    windows = (page("window KV", WINDOW_BLOCK, size), every)
    state = page("ratio-128 state", C128_BLOCK, 2 * kv.head_dim * 4), c128
    # Ratio 4 overlaps: each state is of two groups of tokens.
    overlapping = (
        (page("ratio-4 state", C4_BLOCK, 2 * 2 * kv.head_dim * 4), c4),
        (page("index state", C4_BLOCK, 2 * 2 * INDEX_DIM * 4), c4),
    )
    return (
        Kind(block_tokens=PAGE, pages=full),
        Kind(block_tokens=WINDOW_BLOCK, window=kv.window, pages=(windows,)),
        Kind(block_tokens=C128_BLOCK, window=C128_WINDOW, pages=(state,)),
        Kind(block_tokens=C4_BLOCK, window=C4_WINDOW, pages=overlapping),
    )


def _unsupported(loaded: Loaded, model: Model, release: Release) -> Problem | None:
    deployment, kv = loaded.spec.deployment, kv_of(model)
    if release.date < FIRST_BUILD:
        what = f"how vLLM {release.name} sizes DeepSeek-V4 is not known"
        return Problem(where=loaded.where("deployment.release"), what=what, remedy=f"known from main-{FIRST_BUILD} on")
    if not {4, 128} <= set(kv.ratios) <= {0, 4, 128}:
        what = "hsplan knows how vLLM groups DeepSeek-V4 with layers of ratio 4 and of ratio 128 only"
        return Problem(where=loaded.where("model.compress_ratios"), what=what)
    if (kv.head_dim, model.qk_rope_head_dim, model.index_head_dim) != (512, 64, INDEX_DIM):
        what = "entries other than of 448 + 64 values and index keys other than of 128: vLLM's kernels take these only"
        return Problem(where=loaded.where("model.head_dim"), what=what)
    if shards_of_tokens(release, deployment.dcp, deployment.pcp) > 1:
        key = "dcp" if deployment.dcp > 1 else "pcp"
        what = f"{key} with DeepSeek-V4: vLLM's sliding windows do not run with it"
        return Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy="leave it out")
    if not release.has("v4_packed") and (deployment.pp > 1 or deployment.layer_range is not None):
        what = f"what vLLM {release.name} prints for pipeline stages of DeepSeek-V4 is not modelled"
        return Problem(where=loaded.where("deployment.pp"), what=what, remedy="from 0.27.0 on")
    return None
