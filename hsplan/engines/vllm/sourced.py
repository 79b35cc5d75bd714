"""
DeepSeek-V4.1 as a kind of cache: entries and index keys in a few source layers, windows in every layer, and rings.

Entries of ratio 1 and 2 and their index keys lie in `kv_source_layer_ids` only, the layers after one read its own. A
source of ratio 2 keeps a ring of the open pair's values and scores, one block a request. Bounded replay of windows
changes what prefix caching keeps, not a block. Sources: models/deepseek_v41/{attention,compressor,sparse_mla}.py and
models/deepseek_v41/nvidia/{model,flash_mla_mega_attn,flashinfer_sparse}.py of 0.30.0 to 0.33.0.
"""

from __future__ import annotations

from itertools import accumulate
from math import lcm

import msgspec

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.vllm.compressed import ENTRIES as PLAIN_AND_V4
from hsplan.engines.vllm.compressed import INDEX_DIM, PRINTED_NOTE, kv_of
from hsplan.engines.vllm.groups import INDEX, BlockPool, Part
from hsplan.engines.vllm.launch import speculative_tokens, stage_sizes
from hsplan.engines.vllm.memory import Reserved, compressed_reserve
from hsplan.engines.vllm.packed import Kind, sourced_pool
from hsplan.engines.vllm.releases import Release
from hsplan.engines.vllm.rows import fp4_refused, index_bytes
from hsplan.engines.vllm.scenarios import drafts_on
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import Compressed, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

PAGES = {9: 64, 10: 128, 12: 128}  # tokens of a block of entries, by GPU family: what attention and indexer share
WINDOW_BLOCK = 32
RING_ROWS = 8  # at least, and a power of two
MEGA_HEADS = 8  # heads of each output group that the mega kernel takes
BACKENDS = {9: ("flashmla_sparse",), 10: ("flashmla_sparse", "flashinfer_mla_sparse"), 12: ("flashinfer_mla_sparse",)}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an entry and of a window's row, pages in whole `alignment`; `interleaved`: read as rows of the pool."""

    entry: int
    window: int
    alignment: int
    interleaved: bool = False


# V4's; 512 fp8 values and 16 of scales; the same window beside 256 B of fp4 pairs and 32 of scales; plain rows.
RECORDS = {
    **{name: Record(entry=size, window=size, alignment=unit) for name, (size, unit) in PLAIN_AND_V4.items()},
    "v41": Record(entry=528, window=528, alignment=512, interleaved=True),
    "v41_fp4": Record(entry=288, window=528, alignment=512, interleaved=True),
}


class SourcedCache:
    """DeepSeek-V4.1: entries of source layers, windows and rings take their blocks from one pool."""

    def check(self, loaded: Loaded, model: Model, release: Release) -> list[str]:
        """Raise UnsupportedError for what cannot run; return notes."""
        problem = _unsupported_model(loaded, model, release) or _unsupported_ranks(loaded, model)
        if problem is not None:
            raise UnsupportedError(problem)
        return [PRINTED_NOTE]

    def row(self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row | str:
        """The entry by backend: V4's packed one off SM10x, and there V4.1's, in fp4 with the mega kernel, or plain."""
        family, given, groups = gpu.capability // 10, deployment.attention_backend, kv_of(model).groups
        backends = BACKENDS.get(family, ())
        if not backends:
            return f"vLLM has no attention of DeepSeek-V4.1 for the {gpu.name}: SM90, SM10x and SM12x only"
        if groups is not None and groups % tp:
            return f"{groups} output groups of DeepSeek-V4.1 cannot be divided over {tp} ranks"
        if given not in ("auto", *backends):
            return f"{given} is no backend of DeepSeek-V4.1 on the {gpu.name} (known: {', '.join(backends)})"
        page = PAGES[family]
        if deployment.page_size not in ("auto", page):
            return f"blocks of DeepSeek-V4.1 on the {gpu.name} have {page} tokens, others are not modelled"
        backend = backends[0] if given == "auto" else given
        if family == 10 and given == "auto" and release.has("v41_mega") and _takes_mega(model):
            backend = "flashmla_mega_attn"
        kind = _record(backend, family, deployment)
        if kind not in ("bf16", "fp8_raw") and deployment.kv_cache_dtype == "bfloat16":
            return "packed entries of DeepSeek-V4.1 are fp8; only flashinfer_mla_sparse on SM10x keeps bfloat16"
        return fp4_refused(gpu, deployment) or Row(
            format=kind,
            bytes=RECORDS[kind].entry,
            charged_bytes=RECORDS[kind].entry,
            attention_backend=f"{backend}_dsv41",
            kv_cache_dtype={"bf16": "bfloat16", "v41_fp4": "nvfp4"}.get(kind, "fp8_e4m3"),
            page_tokens=page,
        )

    def no_offload(self, model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:  # noqa: ARG002
        """It is rejected by name (`_partition_hisparse_specs`)."""
        return f"HiSparse of vLLM {release.name} does not support DeepSeek-V4.1"

    def pool(self, launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:  # noqa: ARG002
        """Its groups on a stage; DSpark layers are windows."""
        model, deployment, row = launch.model, launch.loaded.spec.deployment, launch.extra.row
        drafts = range(model.num_attention_layers, model.num_attention_layers + deployment.draft_layers)
        held = {*range(*stage), *(drafts if drafts_on(launch, stage) else ())}
        record = RECORDS[row.format]
        kinds = _kinds(kv_of(model), record, row.page_tokens, index_bytes(model, deployment), deployment)
        # From 0.33.0 on a block has whole rows of both records.
        whole = lcm(record.entry, record.window) if record.interleaved and launch.release.has("v41_whole_rows") else 1
        return sourced_pool(kinds, launch.release, held, whole)

    def reserve(self, launch: Launch, stage: tuple[int, int]) -> list[Reserved]:  # noqa: ARG002
        """Workspaces of a prefill over the entries of the lowest ratio."""
        kv = kv_of(launch.model)
        ratio = min(kv.ratios[source] for source in kv.sources)
        return compressed_reserve(launch, launch.extra.scheduler, kv.window, ratio)


def _takes_mega(model: Model) -> bool:
    """`is_available_for`: the mega kernel wants 8 heads for each output group."""
    heads, groups = model.num_attention_heads, kv_of(model).groups
    return heads is not None and groups is not None and heads == MEGA_HEADS * groups


def _record(backend: str, family: int, deployment: Deployment) -> str:
    """Format of an entry; `fp8` is the packed one but for FlashInfer on SM10x."""
    if family != 10:
        return "v4_packed"
    if backend == "flashinfer_mla_sparse":
        return "fp8_raw" if deployment.kv_cache_dtype == "fp8_e4m3" else "bf16"
    return "v41_fp4" if backend == "flashmla_mega_attn" else "v41"


def ring_rows(deployment: Deployment) -> int:
    """Rows of a ring: the drafts, the bonus token and the row before, as a power of two of at least 8."""
    return max(RING_ROWS, 1 << (speculative_tokens(deployment) + 1).bit_length())


def _kinds(kv: Compressed, record: Record, page: int, index_row: int, deployment: Deployment) -> tuple[Kind, ...]:
    """Entries and index keys of each ratio that has a source, windows of all layers, and rings of ratio 2."""
    every = tuple(range(len(kv.ratios) + deployment.draft_layers))
    by_ratio = {ratio: tuple(i for i in kv.sources if kv.ratios[i] == ratio) for ratio in (2, 1)}

    def part(name: str, rows: int, row_bytes: int) -> Part:
        padding = -rows * row_bytes % record.alignment
        return Part(name=name, rows=rows, row_bytes=row_bytes, layers=1, padding=padding)

    full = tuple(
        (part(name, page // ratio, size), layers)
        for ratio, layers in by_ratio.items()
        for name, size in ((f"ratio-{ratio} KV", record.entry), (INDEX, index_row))
        if layers
    )
    windows = (part("window KV", WINDOW_BLOCK, record.window), every)
    found = [Kind(block_tokens=page, pages=full), Kind(block_tokens=WINDOW_BLOCK, window=kv.window, pages=(windows,))]
    if by_ratio[2]:
        rows = ring_rows(deployment)
        ring = Part(name="ratio-2 ring", rows=rows, row_bytes=2 * kv.head_dim * 4, layers=1)  # values and scores, fp32
        found.append(Kind(block_tokens=rows, ring=True, pages=((ring, by_ratio[2]),)))
    return tuple(found)


def _unsupported_model(loaded: Loaded, model: Model, release: Release) -> Problem | None:
    kv = kv_of(model)
    if not release.has("v41"):
        what = f"how vLLM {release.name} sizes DeepSeek-V4.1 is not known"
        return Problem(where=loaded.where("model.architectures"), what=what, remedy="known from 0.30.0 on")
    if not set(kv.ratios) <= {0, 1, 2} or not kv.sources or any(not kv.ratios[source] for source in kv.sources):
        what = "vLLM runs DeepSeek-V4.1 with ratios 0, 1 and 2 only, and with source layers of ratio 1 or 2"
        return Problem(where=loaded.where("model.compress_ratios"), what=what)
    if any(model.pattern is None or model.pattern[source] != "F" for source in kv.sources):
        what = "a layer of kv_source_layer_ids that is not in index_source_layer_ids has no index keys in vLLM"
        return Problem(where=loaded.where("model.index_source_layer_ids"), what=what)
    if (kv.head_dim, model.qk_rope_head_dim, model.index_head_dim) != (512, 64, INDEX_DIM):
        what = "entries other than of 448 + 64 values and index keys other than of 128: vLLM's kernels take these only"
        return Problem(where=loaded.where("model.head_dim"), what=what)
    return None


def _unsupported_ranks(loaded: Loaded, model: Model) -> Problem | None:
    """Shards of a request's tokens, and stages that part a layer from its source."""
    deployment, kv = loaded.spec.deployment, kv_of(model)
    for key in ("dcp", "pcp"):
        if getattr(deployment, key) > 1:
            what = f"{key} with DeepSeek-V4.1 on vLLM is not modelled"
            return Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy="leave it out")
    ends = [*accumulate(stage_sizes(model.num_attention_layers, deployment.pp))]
    stages = [*zip([0, *ends[:-1]], ends, strict=True)] if deployment.layer_range is None else [deployment.layer_range]
    for first, end in stages:
        layers = range(first, min(end, len(kv.ratios)))
        if any(kv.ratios[i] and max(s for s in kv.sources if s <= i) < first for i in layers):
            key = "layer_range" if deployment.layer_range is not None else "pp"
            what = f"a stage that starts at layer {first} is parted from the layer whose entries it reads"
            remedy = f"stages of vLLM start at a source layer: {', '.join(map(str, kv.sources))}"
            return Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy=remedy)
    return None
