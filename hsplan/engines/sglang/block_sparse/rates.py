"""
Bytes per token of MiniMax-M3: the cell of a stage, and what one rank stores for it.

Source: pool_configurator.py and get_minimax_sparse_index_dtype of 0.5.17 to 0.5.23.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Launch, Rates, Row, Step
from hsplan.engines.sglang.block_sparse.pools import index_vectors
from hsplan.engines.sglang.releases import Release
from hsplan.families import BlockSparse, Model
from hsplan.hardware import Gpu

ITEM = {"bfloat16": 2, "fp8_e4m3": 1}


class Widths(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a token on one rank: K and V of a layer, an index key of a sparse layer as charged and as stored."""

    row: int
    index_charged: int
    index: int


def kv_of(model: Model) -> BlockSparse:
    """How the model's KV lies; its family always says so."""
    assert isinstance(model.kv, BlockSparse)  # noqa: S101
    return model.kv


def widths_of(launch: Launch, row: Row) -> Widths:
    """Bytes of a token on one rank with the resolved dtype and backend."""
    return rank_widths(
        launch.model, launch.gpu, launch.release, row.kv_cache_dtype, row.attention_backend, launch.extra.attention_tp
    )


def rank_widths(model: Model, gpu: Gpu, release: Release, dtype: str, backend: str, attention_tp: int) -> Widths:
    """
    Heads beyond the KV heads are copies.

    The index key is fp8 with fp8 attention, with an fp8 cache on Hopper from 0.5.23 on, and with any on gfx950 from
    0.5.21 on (`SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE`, on unless switched off).
    """
    kv = kv_of(model)
    heads = max(1, kv.kv_heads // attention_tp)
    fp8_attention = dtype == "fp8_e4m3" and backend == "trtllm_mha" and gpu.capability in (100, 103)
    hopper = dtype == "fp8_e4m3" and gpu.capability == 90 and release.has("m3_fp8_index_hopper")
    gfx950 = gpu.rocm == "gfx950" and release.has("m3_fp8_index_gfx950")
    index = kv.index_dim * (1 if fp8_attention or hopper or gfx950 else 2)
    charged = index if release.has("m3_index_charged") else kv.index_dim * 2
    return Widths(2 * heads * kv.head_dim * ITEM[dtype], charged, index)


def stage_rates(launch: Launch, row: Row, stage: tuple[int, int], ratio: float) -> Rates:
    """Dense layers and index keys span the logical tokens, sparse layers the device tokens."""
    widths, sparse, vectors = widths_of(launch, row), launch.plan.owners_in(*stage), index_vectors(launch, stage)
    dense = stage[1] - stage[0] - sparse
    return Rates(
        charged=int((dense * ratio + sparse) * widths.row) + int(vectors * widths.index_charged * ratio),
        draft=0,
        stored_kv=int((dense * ratio + sparse) * widths.row),
        stored_index=int(vectors * widths.index * ratio),
        stored_draft=0,
    )


def rate_steps(launch: Launch, row: Row, stage: tuple[int, int], ratio: float, rates: Rates) -> tuple[Step, ...]:
    """The cell with its numbers."""
    widths, sparse = widths_of(launch, row), launch.plan.owners_in(*stage)
    dense, times = stage[1] - stage[0] - sparse, f" × {ratio:g}" if ratio != 1 else ""
    formula = (
        f"{widths.row} × ({dense} dense{times} + {sparse} sparse layers) + "
        f"{widths.index_charged} × {index_vectors(launch, stage)} index keys{times} = {rates.charged:,}"
    )
    return (Step("cell, bytes per token", formula, f"SGLang {launch.release.name}: pool_configurator.py"),)
