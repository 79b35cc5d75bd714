"""
MLA and DSA models as a kind of cache: one group of latent rows and, in layers that own an indexer, index keys.

Sources: deepseek_v2.py, models/deepseek_v32, kv_cache_planning.py and hisparse/layout.py of 0.24.0 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.vllm.groups import DRAFT, INDEX, KV, BlockPool, Part, one_group
from hsplan.engines.vllm.hisparse import refused
from hsplan.engines.vllm.memory import Reserved, sparse_reserve
from hsplan.engines.vllm.printed import shards_of_tokens
from hsplan.engines.vllm.releases import Release
from hsplan.engines.vllm.rows import index_bytes, resolve_row
from hsplan.engines.vllm.scenarios import drafts_on, layers_of
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded


class LatentCache:
    """One latent row a token and layer, the same on every tensor-parallel rank."""

    def check(self, loaded: Loaded, model: Model, release: Release) -> list[str]:  # noqa: ARG002 - asked of every kind
        """Raise for shapes of the indexer that no kernel takes; return notes."""
        _check_index(loaded, model)
        return list(_notes(loaded.spec.deployment, model))

    def row(self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row | str:
        """The row by backend and dtype."""
        return resolve_row(model, gpu, release, deployment, (model.num_attention_heads or 0) // tp)

    def no_offload(self, model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:
        """Why there is no HiSparse with these flags."""
        return refused(model, release, deployment, row)

    def pool(self, launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:
        """The pages of all layers; MTP layers hold a row and an index key."""
        row, deployment = launch.extra.row, launch.loaded.spec.deployment
        layers, drafts = layers_of(launch, scenario, stage), drafts_on(launch, stage)
        page, index_row = row.page_tokens, index_bytes(launch.model, deployment)
        index = layers.index - (drafts if index_row else 0)
        parts = (
            Part(name=KV, rows=page, row_bytes=row.bytes, layers=layers.rows - drafts),
            Part(name=INDEX, rows=page, row_bytes=index_row, layers=index),
            Part(name=DRAFT, rows=page, row_bytes=row.bytes + index_row, layers=drafts),
        )
        return one_group(parts, page * shards_of_tokens(launch.release, deployment.dcp, deployment.pcp))

    def reserve(self, launch: Launch, stage: tuple[int, int]) -> list[Reserved]:
        """Workspaces of the sparse backends, and the tables of a stage's index groups."""
        return sparse_reserve(launch, launch.extra.row, launch.extra.scheduler, stage)


def _check_index(loaded: Loaded, model: Model) -> None:
    """The index key is 128 values and a scale; packed rows scale 128 values at a time."""
    if model.index_topk is None:
        return
    if model.index_head_dim is None:
        what, remedy = "`model.index_head_dim` is missing", "give it as in config.json, usually 128"
        raise InputError(Problem(where=loaded.where("model"), what=what, remedy=remedy))
    if model.index_head_dim != 128:
        what = f"index_head_dim is {model.index_head_dim}; hsplan knows 128 only"
        raise UnsupportedError(Problem(where=loaded.where("model.index_head_dim"), what=what))
    if (model.kv_lora_rank, model.qk_rope_head_dim) != (512, 64):
        what = f"rows of {model.kv_lora_rank} + {model.qk_rope_head_dim} values; sparse MLA backends take 512 + 64"
        raise UnsupportedError(Problem(where=loaded.where("model.kv_lora_rank"), what=what))


def _notes(deployment: Deployment, model: Model) -> Iterator[str]:
    if deployment.indexer_kv_dtype != "auto" and model.index_topk is None:
        yield "indexer_kv_dtype is for models with an indexer and is ignored here"
    if deployment.indexer_kv_dtype == "mxfp4" and model.index_topk is not None:
        yield (
            "indexer_kv_dtype mxfp4: the DSA indexers of vLLM 0.24.0 to 0.33.0 store fp8 keys (132 B) whatever it "
            "says; the 68 B here are a what-if"
        )
    types = model.schedule.get("indexer_types") or ()
    by_rule = model.schedule.get("index_topk_pattern") or model.schedule.get("index_topk_freq")
    if "shared" in types and not by_rule:
        yield "indexer_types: vLLM does not read it, every layer computes its own top-k"
