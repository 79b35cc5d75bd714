"""
What the experts of a rank ask of the scratch buffer, and how much of it attention has asked for already.

Sources: model_executor/layers/fused_moe/{modular_kernel.py,oracle/fp8.py,experts/,prepare_finalize/} of 0.28.0 and
0.33.0.
"""

from __future__ import annotations

from hsplan.engines.base import Launch
from hsplan.engines.loading import formats_of
from hsplan.engines.vllm.workspace import Scratch
from hsplan.units import ceil_div


def expert_scratch(launch: Launch) -> Scratch | None:
    """
    What the experts ask for, where their kernel is known: fp8 in blocks on SM90, read in 0.28.0 and 0.33.0.

    Without EP Triton's two intermediates of every chosen expert, with EP the output of FlashInfer's CUTLASS kernel.
    They get the tokens of all replicas (`naive_dp_ep.py`).
    """
    deployment, shape = launch.loaded.spec.deployment, _expert_shape(launch)
    chosen = launch.model.experts_per_token
    if shape is None or chosen is None or not _has_known_experts(launch):
        return None
    width, hidden = shape
    tokens = launch.extra.scheduler.max_num_batched_tokens * deployment.dp
    if deployment.ep > 1:
        return Scratch(tokens * hidden * 2, f"{tokens:,} tokens × {hidden:,} × 2 B")
    shard = ceil_div(width, launch.extra.world // deployment.pp)
    columns = max(shard, hidden) + max(2 * shard, hidden)
    return Scratch(tokens * chosen * columns * 2, f"{tokens:,} tokens × {chosen} experts × {columns:,} × 2 B")


def shared_bytes(launch: Launch, attention: int) -> int:
    """
    Of the experts' scratch, what lies where attention's lies; 0 where the kernel is not known.

    Until 0.30.0 FlashMLA's layers held on to their part when the experts outgrew it.
    """
    experts = expert_scratch(launch)
    if experts is None:
        return 0
    kept = launch.extra.row.attention_backend == "flashmla_sparse" and not launch.release.has("flashmla_outputs")
    return 0 if kept and experts.bytes > attention else min(experts.bytes, attention)


def gathered_rows(launch: Launch) -> Scratch | None:
    """
    What the tokens of other replicas add in the profiling run, where every rank gathers those of all: best guess.

    Inputs in bf16, and the experts' scratch; where their kernel is not known, outputs alone (`naive_dp_ep.py`).
    """
    replicas, shape = launch.loaded.spec.deployment.dp, _expert_shape(launch)
    if replicas == 1 or shape is None:
        return None
    rows = (replicas - 1) * launch.extra.scheduler.max_num_batched_tokens
    known = expert_scratch(launch)
    each = 2 * shape[1] if known is None else known.bytes // (launch.extra.scheduler.max_num_batched_tokens * replicas)
    return Scratch(rows * (2 * shape[1] + each), f"{rows:,} tokens × (2 × {shape[1]:,} + {each:,}) B")


def gathered_range(launch: Launch, best: int) -> tuple[int, int]:
    """
    Least and most of `gathered_rows`: inputs in fp4; rows of every chosen expert, before and after it, beside them.

    Kernels that are known do not gather fewer bytes; FlashInfer's keep the rows of chosen experts to themselves.
    """
    shape = _expert_shape(launch)
    assert shape is not None  # noqa: S101 - asked where rows are gathered only
    rows = (launch.loaded.spec.deployment.dp - 1) * launch.extra.scheduler.max_num_batched_tokens
    chosen = launch.model.experts_per_token or 0
    least = best if expert_scratch(launch) is not None else rows * shape[1] * 5 // 2
    return least, max(best, rows * shape[1] * (4 + 4 * chosen))


def _has_known_experts(launch: Launch) -> bool:
    if launch.gpu.capability != 90 or not launch.release.has("experts_by_ep"):
        return False
    formats = formats_of(launch.loaded.spec, launch.model)
    expert = f"model.layers.{launch.plan.stages[-1][1] - 1}.mlp.experts.0.gate_proj"  # of the last layer, no dense one
    return not isinstance(formats, str) and formats.of(expert) == "fp8"


def _expert_shape(launch: Launch) -> tuple[int, int] | None:
    """Width of an expert and hidden size."""
    inventory = launch.model.inventory
    tensors = () if inventory is None else inventory.tensors
    return next(((t.rows, t.cols) for t in tensors if t.shard == "expert" and t.split == "rows"), None)
