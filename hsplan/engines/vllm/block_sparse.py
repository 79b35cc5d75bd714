"""
MiniMax-M3 as a kind of cache: K and V of the KV heads of a rank, and a K-only index in sparse layers; one group.

Sources: models/minimax_m3/common/{sparse_attention,indexer}.py and models/minimax_m3/nvidia/model.py of 0.24.0 to
0.33.0; the page of 38,528 B a token is that of an InferenceX log (TP2, fp8, EAGLE3).
"""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.vllm.groups import DRAFT, INDEX, KV, BlockPool, Part, one_group
from hsplan.engines.vllm.memory import Reserved
from hsplan.engines.vllm.printed import shards_of_tokens
from hsplan.engines.vllm.releases import RELEASES, Release
from hsplan.engines.vllm.rows import checkpoint_dtype
from hsplan.engines.vllm.scenarios import drafts_on
from hsplan.errors import Problem, UnsupportedError
from hsplan.families import BlockSparse, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

PAGE = 128  # one sparse block a page
HEAD_DIM = 128
ITEM = {"bfloat16": 2, "fp8_e4m3": 1}
INDEX_ITEM = {"auto": 2, "fp8": 1}  # bf16 unless asked, whatever the main cache is
FIRST_RELEASE = "0.24.0"


class BlockSparseCache:
    """MiniMax-M3: dense and sparse layers, and the index keys of the sparse ones, the same on every rank."""

    def check(self, loaded: Loaded, model: Model, release: Release) -> list[str]:
        """Raise UnsupportedError for what cannot run; return notes."""
        problem = _unsupported(loaded, model, release)
        if problem is not None:
            raise UnsupportedError(problem)
        return list(_notes(loaded.spec.deployment))

    def row(self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row | str:  # noqa: ARG002
        """K and V of the heads of one rank; heads beyond the KV heads are copies."""
        if deployment.attention_backend != "auto":
            return f"MiniMax-M3 has attention of its own, {deployment.attention_backend} cannot be chosen"
        if deployment.page_size not in ("auto", PAGE):
            return f"the sparse kernels take pages of {PAGE} tokens, not {deployment.page_size}"
        if deployment.indexer_kv_dtype not in INDEX_ITEM:
            return f"the index of MiniMax-M3 is bf16 or fp8, not {deployment.indexer_kv_dtype}"
        kv, dtype = _kv_of(model), checkpoint_dtype(model, deployment)
        size = 2 * max(1, kv.kv_heads // tp) * kv.head_dim * ITEM[dtype]
        return Row(
            format="kv_fp8" if dtype == "fp8_e4m3" else "kv_bf16",
            bytes=size,
            charged_bytes=size,
            attention_backend="minimax_m3_msa" if gpu.capability // 10 == 10 else "minimax_m3_triton",
            kv_cache_dtype=dtype,
            page_tokens=PAGE,
        )

    def no_offload(self, model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:  # noqa: ARG002
        """Its config has no index_topk, and its K and V are no MLA rows (config/vllm.py, hisparse/layout.py)."""
        if not release.has("hisparse"):
            return f"vLLM {release.name} has no HiSparse (from 0.30.0 on, for DSA models)"
        return f"HiSparse of vLLM {release.name} takes DSA models with index_topk only, not MiniMax-M3"

    def pool(self, launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:  # noqa: ARG002
        """The pages of all layers; draft layers hold K and V and no index."""
        row, deployment = launch.extra.row, launch.loaded.spec.deployment
        index_row = _kv_of(launch.model).index_dim * INDEX_ITEM[deployment.indexer_kv_dtype]
        parts = (
            Part(name=KV, rows=PAGE, row_bytes=row.bytes, layers=stage[1] - stage[0]),
            Part(name=INDEX, rows=PAGE, row_bytes=index_row, layers=launch.plan.owners_in(*stage)),
            Part(name=DRAFT, rows=PAGE, row_bytes=row.bytes, layers=drafts_on(launch, stage)),
        )
        return one_group(parts, PAGE)

    def reserve(self, launch: Launch, stage: tuple[int, int]) -> list[Reserved]:  # noqa: ARG002 - asked of every kind
        """None: blocks are selected in place, and the scores of SM10x are not measured before the pool."""
        return []


def _kv_of(model: Model) -> BlockSparse:
    """How the model's KV lies; its family always says so."""
    assert isinstance(model.kv, BlockSparse)  # noqa: S101
    return model.kv


def _unsupported(loaded: Loaded, model: Model, release: Release) -> Problem | None:
    deployment = loaded.spec.deployment
    if release.date < RELEASES[FIRST_RELEASE]:
        what = f"how vLLM {release.name} sizes MiniMax-M3 is not known"
        return Problem(where=loaded.where("deployment.release"), what=what, remedy=f"known from {FIRST_RELEASE} on")
    if _kv_of(model).index_values:
        what = "index values beside index keys: vLLM's indexer of MiniMax-M3 keeps keys only"
        return Problem(where=loaded.where("model.sparse_attention_config"), what=what)
    if _kv_of(model).head_dim != HEAD_DIM:
        what = f"heads of {_kv_of(model).head_dim} values: vLLM's kernels of MiniMax-M3 take {HEAD_DIM} only"
        return Problem(where=loaded.where("model.head_dim"), what=what)
    if shards_of_tokens(release, deployment.dcp, deployment.pcp) > 1:
        key = "dcp" if deployment.dcp > 1 else "pcp"
        return Problem(where=loaded.where(f"deployment.{key}"), what=f"{key} with MiniMax-M3 is not modelled")
    return None


def _notes(deployment: Deployment) -> Iterator[str]:
    if deployment.draft_layers:
        yield (
            "draft_layers: priced as layers of an EAGLE3 draft with the KV heads of MiniMax-M3 and no index, "
            "its weights not counted"
        )
