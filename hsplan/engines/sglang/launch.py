"""Ranks of a deployment, and the keys that SGLang does not have."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hsplan.engines.ranks import tp_and_gpus
from hsplan.errors import InputError, Problem
from hsplan.families import Compressed, Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded

VLLM_KEYS = ("dp", "pcp", "indexer_kv_dtype", "max_num_batched_tokens", "async_scheduling")


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Group sizes of one engine: `tp` over all nodes, ranks that share a node, attention TP, expert parallel."""

    tp: int
    per_node: int
    attention_tp: int
    ep: int


def stage_sizes(layers: int, pp: int) -> list[int]:
    """Layers of each pipeline stage: the last ones take the remainder (`get_pp_indices`)."""
    each, more = divmod(layers, pp)
    return [each + (stage >= pp - more) for stage in range(pp)]


def ranks_of(loaded: Loaded) -> Ranks:
    """Fill `tp` and `gpus` from each other; raises InputError when ranks do not fill gpus × nodes."""
    deployment = loaded.spec.deployment
    nodes, pp = deployment.nodes, deployment.pp
    tp, gpus = tp_and_gpus(loaded, pp)
    if tp * pp != gpus * nodes:
        what = f"tp {tp} × pp {pp} = {tp * pp} ranks do not fill {nodes} × {gpus} GPUs"
        raise InputError(Problem(where=loaded.where("deployment.tp"), what=what, remedy="let tp × pp = gpus × nodes"))
    groups = deployment.dp_attention * deployment.cp
    if tp % groups:
        what = f"tp {tp} is not divisible by dp_attention {deployment.dp_attention} × cp {deployment.cp}"
        raise InputError(
            Problem(where=loaded.where("deployment.dp_attention"), what=what, remedy=f"use a divisor of {tp}")
        )
    ep = deployment.ep if deployment.moe_a2a_backend == "none" else tp
    if tp % ep:
        what = f"tp {tp} is not divisible by ep {ep}"
        raise InputError(Problem(where=loaded.where("deployment.ep"), what=what, remedy=f"use a divisor of {tp}"))
    if (tp // groups) % deployment.dcp:
        what = f"attention TP {tp // groups} is not divisible by dcp {deployment.dcp}"
        raise InputError(
            Problem(where=loaded.where("deployment.dcp"), what=what, remedy=f"use a divisor of {tp // groups}")
        )
    return Ranks(tp=tp, per_node=gpus, attention_tp=tp // groups, ep=ep)


def check_deployment(loaded: Loaded, model: Model) -> None:
    """Raise InputError for keys that this engine or this kind of model does not have."""
    problems = list(_foreign_keys(loaded, windowed=isinstance(model.kv, Compressed)))
    if problems:
        raise InputError(problems)


def common_notes(deployment: Deployment, model: Model, gpu: Gpu, ranks: Ranks) -> Iterator[str]:
    """What is changed or worth knowing, whatever the kind of cache."""
    if ranks.ep != deployment.ep:
        yield f"moe_a2a_backend {deployment.moe_a2a_backend}: SGLang sets ep to tp {ranks.ep}"
    if ranks.per_node > gpu.per_node:
        yield f"{ranks.per_node} GPUs in a node: the usual {gpu.name} board has {gpu.per_node}"
    if deployment.pp > 1 and deployment.draft_layers:
        yield "SGLang starts pipeline parallelism with draft layers only on PD prefill nodes, from 0.5.22 on"
    if deployment.draft_layers and model.mtp_layers and deployment.draft_layers != model.mtp_layers:
        yield f"draft_layers {deployment.draft_layers}: the model has {model.mtp_layers} MTP layer(s)"


def _foreign_keys(loaded: Loaded, *, windowed: bool) -> Iterator[Problem]:
    """Keys of other engines and of other models, and keys that exclude each other."""
    deployment = loaded.spec.deployment
    for key in VLLM_KEYS:
        if getattr(deployment, key) != _DEFAULTS[key]:
            remedy = "plan one server; dp_attention is SGLang's own" if key == "dp" else "leave it out"
            yield Problem(
                where=loaded.where(f"deployment.{key}"), what=f"{key} is a key of vLLM, not of SGLang", remedy=remedy
            )
    if deployment.hierarchical_cache and not deployment.radix_cache:
        what = "HiCache extends the radix cache, which is off"
        yield Problem(where=loaded.where("deployment.radix_cache"), what=what, remedy="leave one of them out")
    if deployment.swa_full_tokens_ratio is not None and not windowed:
        where = loaded.where("deployment.swa_full_tokens_ratio")
        yield Problem(where=where, what="this model has no sliding-window layers", remedy="leave it out")
    if loaded.spec.offload is not None and loaded.spec.offload.host_pool != "auto":
        remedy = "SGLang sizes its host pool by host_to_device_ratio"
        yield Problem(where=loaded.where("offload.host_pool"), what="host_pool is a key of vLLM", remedy=remedy)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Deployment)}
