"""Ranks of a deployment, and the combinations that SGLang or hsplan cannot take."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.rows import DSA_BACKENDS, DSA_PAGE, MLA_BACKENDS
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model
from hsplan.families.longcat import ARCHITECTURES as LONGCAT
from hsplan.families.longcat import REGISTERED as LONGCAT_REGISTERED
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
    tp, gpus = _tp_and_gpus(loaded)
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


def _tp_and_gpus(loaded: Loaded) -> tuple[int, int]:
    """Tensor-parallel size and GPUs of a node, each from the other when only one is given."""
    deployment = loaded.spec.deployment
    tp, gpus, nodes, pp = deployment.tp, deployment.gpus, deployment.nodes, deployment.pp
    if tp != "auto":
        return tp, gpus if gpus != "auto" else max(tp * pp // nodes, 1)
    if gpus != "auto":
        return max(gpus * nodes // pp, 1), gpus
    what, remedy = "the number of GPUs is not known", "give tp, or gpus (of a node)"
    raise InputError(Problem(where=loaded.where("deployment.tp"), what=what, remedy=remedy))


def context_length(loaded: Loaded, model: Model) -> tuple[int, list[str]]:
    """The engine's context length; raises InputError for one beyond the model, or a workload beyond it."""
    given, native = loaded.spec.deployment.max_model_len, model.max_position_embeddings
    context = loaded.spec.workload.context
    notes = []
    if given != "auto" and native is not None and given > native:
        what = f"{given:,} tokens, but the model has {native:,} positions"
        raise InputError(
            Problem(where=loaded.where("deployment.max_model_len"), what=what, remedy=f"give at most {native}")
        )
    length = native if given == "auto" else given
    if length is None:
        length = context
        notes.append("max_position_embeddings is missing: request tables are sized for workload.context")
    if context > length:
        what = f"requests of {context:,} tokens, but the engine stops at {length:,}"
        remedy = f"set workload.context (--context) to at most {length}"
        raise InputError(Problem(where=loaded.where("workload.context"), what=what, remedy=remedy))
    return length, notes


def check_deployment(loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> list[str]:
    """Raise InputError or UnsupportedError for what cannot run; return notes on what is changed or ignored."""
    deployment = loaded.spec.deployment
    problems = list(_foreign_keys(loaded))
    if problems:
        raise InputError(problems)
    problem = _unsupported(loaded, model, gpu, release)
    if problem is not None:
        raise UnsupportedError(problem)
    _check_index(loaded, model)
    _check_rocm_page(loaded, model, gpu)
    return list(_notes(deployment, model, gpu, ranks))


def _foreign_keys(loaded: Loaded) -> Iterator[Problem]:
    """Keys of other engines and of other models, and keys that exclude each other."""
    deployment = loaded.spec.deployment
    for key in VLLM_KEYS:
        if getattr(deployment, key) != _DEFAULTS[key]:
            remedy = "use dp_attention" if key == "dp" else "leave it out"
            yield Problem(
                where=loaded.where(f"deployment.{key}"), what=f"{key} is a key of vLLM, not of SGLang", remedy=remedy
            )
    if deployment.hierarchical_cache and not deployment.radix_cache:
        what = "HiCache extends the radix cache, which is off"
        yield Problem(where=loaded.where("deployment.radix_cache"), what=what, remedy="leave one of them out")
    if deployment.swa_full_tokens_ratio is not None:
        where = loaded.where("deployment.swa_full_tokens_ratio")
        yield Problem(where=where, what="this model has no sliding-window layers", remedy="leave it out")
    if loaded.spec.offload is not None and loaded.spec.offload.host_pool != "auto":
        remedy = "SGLang sizes its host pool by host_to_device_ratio"
        yield Problem(where=loaded.where("offload.host_pool"), what="host_pool is a key of vLLM", remedy=remedy)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Deployment)}


def _unsupported(loaded: Loaded, model: Model, gpu: Gpu, release: Release) -> Problem | None:
    deployment = loaded.spec.deployment
    if model.architecture in LONGCAT and model.architecture != LONGCAT_REGISTERED:
        what = f"no SGLang release up to 0.5.23 registers {model.architecture}"
        remedy = "`hsplan specs show` draws its layer plan; the engine cannot load it"
        return Problem(where=loaded.where("model.architectures"), what=what, remedy=remedy)
    if model.family == "longcat" and deployment.pp > 1:
        return Problem(
            where=loaded.where("deployment.pp"), what="SGLang does not split LongCat's pool over pipeline stages"
        )
    if deployment.dcp > 1 and model.index_topk is not None:
        where = loaded.where("deployment.dcp")
        if not release.has("dsa_dcp"):
            return Problem(
                where=where, what=f"SGLang {release.name} has no DCP for DSA models", remedy="from 0.5.22 on"
            )
        if deployment.hierarchical_cache or deployment.disaggregation:
            return Problem(where=where, what="SGLang refuses DCP with HiCache or PD disaggregation for DSA models")
    if deployment.attention_backend in ("trtllm_mla", "cutedsl_mla") and gpu.capability < 100:
        what = f"{deployment.attention_backend} needs a Blackwell GPU"
        return Problem(where=loaded.where("deployment.attention_backend"), what=what, remedy="leave it to auto")
    if release.lacks_backend(deployment.attention_backend):
        what = f"SGLang {release.name} no longer has the backend {deployment.attention_backend}"
        return Problem(where=loaded.where("deployment.attention_backend"), what=what, remedy="leave it to auto")
    if deployment.attention_backend not in (*DSA_BACKENDS, *MLA_BACKENDS, "auto"):
        what = f"SGLang has no backend {deployment.attention_backend}"
        return Problem(where=loaded.where("deployment.attention_backend"), what=what, remedy="leave it to auto")
    if model.index_topk is not None and deployment.attention_backend not in (*DSA_BACKENDS, "auto"):
        where = loaded.where("deployment.attention_backend")
        what = f"{deployment.attention_backend} is no backend of DSA models in SGLang"
        return Problem(where=where, what=what, remedy="known: " + ", ".join(sorted(DSA_BACKENDS)))
    return None


def _check_index(loaded: Loaded, model: Model) -> None:
    """The index key is 128 values and a scale; packed rows scale 128 values at a time."""
    if model.index_topk is None:
        return
    if model.index_head_dim is None:
        what = "`model.index_head_dim` is missing"
        raise InputError(
            Problem(where=loaded.where("model"), what=what, remedy="give it as in config.json, usually 128")
        )
    if model.index_head_dim != 128:
        what = f"index_head_dim is {model.index_head_dim}; the engine asserts 128"
        raise UnsupportedError(Problem(where=loaded.where("model.index_head_dim"), what=what))
    if model.kv_lora_rank % 128:
        what = f"kv_lora_rank is {model.kv_lora_rank}; packed rows need a multiple of 128"
        raise UnsupportedError(Problem(where=loaded.where("model.kv_lora_rank"), what=what))


def _check_rocm_page(loaded: Loaded, model: Model, gpu: Gpu) -> None:
    """The index-K layouts of ROCm: 1 on the legacy path, a multiple of 16 on the other."""
    page = loaded.spec.deployment.page_size
    if gpu.rocm and model.index_topk is not None and page not in ("auto", 1) and page % 16:
        where, what = loaded.where("deployment.page_size"), f"{page} tokens: ROCm takes 1 or a multiple of 16"
        raise InputError(Problem(where=where, what=what, remedy="leave it to auto (64)"))


def _notes(deployment: Deployment, model: Model, gpu: Gpu, ranks: Ranks) -> Iterator[str]:
    dsa = model.index_topk is not None
    if dsa and not gpu.rocm and deployment.page_size not in ("auto", DSA_PAGE):
        yield f"page_size {deployment.page_size}: SGLang forces {DSA_PAGE} for DSA models on CUDA"
    if not dsa and deployment.attention_backend not in (*MLA_BACKENDS, "auto"):
        yield f"attention_backend {deployment.attention_backend} is for DSA models and is ignored here"
    if not deployment.radix_cache:
        yield "radix_cache: without it less is reused; the capacity is the same"
    if ranks.ep != deployment.ep:
        yield f"moe_a2a_backend {deployment.moe_a2a_backend}: SGLang sets ep to tp {ranks.ep}"
    if ranks.per_node > gpu.per_node:
        yield f"{ranks.per_node} GPUs in a node: the usual {gpu.name} board has {gpu.per_node}"
    if deployment.pp > 1 and deployment.draft_layers:
        yield "SGLang starts pipeline parallelism with draft layers only on PD prefill nodes, from 0.5.22 on"
    if deployment.cp > 1 and dsa and deployment.disaggregation == "prefill":
        yield "cp on a PD prefill node is priced with the DSA layer split (--enable-dsa-cache-layer-split)"
    elif deployment.cp > 1:
        yield "prefill context parallelism does not shard the KV pool: every rank stores all tokens"
    if deployment.draft_layers and model.mtp_layers and deployment.draft_layers != model.mtp_layers:
        yield f"draft_layers {deployment.draft_layers}: the model has {model.mtp_layers} MTP layer(s)"
