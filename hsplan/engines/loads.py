"""What a rank loads from host memory in a step, for every engine with hot buffers of latent rows."""

from __future__ import annotations

from pathlib import Path

from hsplan.engines.base import Launch, Layout
from hsplan.linkcurve import read_curve
from hsplan.linkrate import Curve, shipped_curve
from hsplan.missrate import ids_read, miss_share, most_steps
from hsplan.spec import Offload
from hsplan.swapin import SwapIn
from hsplan.units import ceil_div


def swap_in_of(launch: Launch, layout: Layout, *, slots: int, steps: int) -> SwapIn | str:
    """
    The rows that requests of `workload.context` miss in hot buffers of `slots`, by the curve of `workload.profile`.

    A call reads `steps` steps at once, with drafts more than one; why there is no figure where the curve ends before.
    Layers that share their owner's top-k miss the same tokens, and load their own rows of them.
    """
    spec, plan, row = launch.loaded.spec, launch.plan, layout.row
    workload, deployment = spec.workload, spec.deployment
    first, end = layout.stage
    top_k = launch.model.index_topk or 0
    context = workload.context
    share = miss_share(workload.profile, top_k=top_k, slots=slots, context=context, steps=steps)
    ids = ids_read(workload.profile, top_k=top_k, context=context, steps=steps)
    if share is None or ids is None:
        return f"swap-in of calls that read {steps} steps: the miss curves end at {most_steps(workload.profile)}"
    return SwapIn(
        gpu=launch.gpu,
        curve=_curve(launch),
        row_bytes=row.bytes,
        kv_cache_dtype=row.kv_cache_dtype,
        layers=end - first,
        owners=plan.owners_in(first, end),
        misses=top_k * share,
        steps=steps,
        ids=ids,
        slots=slots,
        request_bytes=ceil_div(context, row.page_tokens) * row.page_tokens * row.bytes,
        gpus=launch.ranks_per_node,
        host_gb_s=None if deployment.host_gb_s == "auto" else deployment.host_gb_s,
        overlap=(spec.offload or Offload()).overlap,
    )


def _curve(launch: Launch) -> Curve:
    path = launch.loaded.spec.deployment.link_curve
    return shipped_curve() if path is None else read_curve(Path(path), launch.loaded.where("deployment.link_curve"))
