"""What a rank loads from host memory in a step, for every engine with hot buffers of latent rows."""

from __future__ import annotations

from pathlib import Path

from hsplan.engines.base import Launch, Layout
from hsplan.linkcurve import read_curve
from hsplan.linkrate import Curve, shipped_curve
from hsplan.missrate import miss_share
from hsplan.spec import Offload
from hsplan.swapin import SwapIn
from hsplan.units import ceil_div


def swap_in_of(launch: Launch, layout: Layout, *, slots: int) -> SwapIn:
    """
    The rows that requests of `workload.context` miss in hot buffers of `slots`, by the curve of `workload.profile`.

    Layers that share their owner's top-k miss the same tokens, and load their own rows of them.
    """
    spec, plan, row = launch.loaded.spec, launch.plan, layout.row
    workload, deployment = spec.workload, spec.deployment
    first, end = layout.stage
    top_k = launch.model.index_topk or 0
    share = miss_share(workload.profile, top_k=top_k, slots=slots, context=workload.context)
    return SwapIn(
        gpu=launch.gpu,
        curve=_curve(launch),
        row_bytes=row.bytes,
        layers=end - first,
        owners=plan.owners_in(first, end),
        misses=top_k * share,
        request_bytes=ceil_div(workload.context, row.page_tokens) * row.page_tokens * row.bytes,
        gpus=launch.ranks_per_node,
        host_gb_s=None if deployment.host_gb_s == "auto" else deployment.host_gb_s,
        overlap=(spec.offload or Offload()).overlap,
    )


def _curve(launch: Launch) -> Curve:
    path = launch.loaded.spec.deployment.link_curve
    return shipped_curve() if path is None else read_curve(Path(path), launch.loaded.where("deployment.link_curve"))
