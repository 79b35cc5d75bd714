"""Ranks of a deployment, its scheduler settings, and the combinations that vLLM or hsplan cannot take."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hsplan.engines.ranks import longest_request, tp_and_gpus
from hsplan.engines.vllm.releases import Release
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded, Offload
from hsplan.units import GIB

# Keys of SGLang, and what vLLM has in their place.
SGLANG_KEYS = {
    "dp_attention": "use dp",
    "cp": "use pcp",
    "chunked_prefill_size": "use max_num_batched_tokens",
    "enable_dp_lm_head": "leave it out",
    "hierarchical_cache": "leave it out",
    "unified_cache_linker": "leave it out",
    "max_total_tokens": "use kv_budget",
    "radix_cache": "leave it out",
}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Deployment)}
MAX_SEQS = (256, 1024)  # max_num_seqs on small and large GPUs
BATCHED_TOKENS = (2048, 8192, 16384)  # max_num_batched_tokens of the API server: small, from 70 GiB, from 160 GiB on


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Group sizes: `tp` of one replica, ranks that share a node, ranks that share the experts, and those of `ep`."""

    tp: int
    per_node: int
    moe: int
    ep: int


class Scheduler(msgspec.Struct, frozen=True, kw_only=True):
    """
    Requests and tokens of one replica: running at once, in one step, in flight, and rows of one decode step.

    `decode_in_flight_tokens` are those of one request that decodes.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    decode_in_flight_tokens: int
    decode_query_len: int

    @property
    def decode_rows(self) -> int:
        """Rows of a step in which every request decodes."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * self.decode_query_len)


def stage_sizes(layers: int, pp: int) -> list[int]:
    """Layers of each pipeline stage: the remainder goes to the stages before the last one (`get_pp_indices`)."""
    each, more = divmod(layers, pp)
    return [each + (pp - 1 - more <= stage < pp - 1) for stage in range(pp)]


def ranks_of(loaded: Loaded) -> Ranks:
    """Fill `tp` and `gpus` from each other; raises InputError when ranks do not fill gpus × nodes."""
    deployment = loaded.spec.deployment
    outer, nodes = deployment.pp * deployment.dp * deployment.pcp, deployment.nodes
    tp, gpus = tp_and_gpus(loaded, outer)
    if tp * outer != gpus * nodes:
        parts = f"tp {tp} × pp {deployment.pp} × dp {deployment.dp} × pcp {deployment.pcp}"
        what = f"{parts} = {tp * outer} ranks do not fill {nodes} × {gpus} GPUs"
        remedy = "let tp × pp × dp × pcp = gpus × nodes"
        raise InputError(Problem(where=loaded.where("deployment.tp"), what=what, remedy=remedy))
    moe = tp * deployment.dp * deployment.pcp
    _check_groups(loaded, tp, moe)
    return Ranks(tp=tp, per_node=gpus, moe=moe, ep=deployment.ep)


def _check_groups(loaded: Loaded, tp: int, moe: int) -> None:
    """Expert parallelism is on or off; DCP lies inside TP, with PCP it spans PCP or both."""
    deployment = loaded.spec.deployment
    if deployment.ep not in (1, moe):
        what = f"ep {deployment.ep}: vLLM spreads experts over tp × dp × pcp = {moe} ranks or not at all"
        raise InputError(Problem(where=loaded.where("deployment.ep"), what=what, remedy=f"use 1 or {moe}"))
    pcp, dcp = deployment.pcp, deployment.dcp
    allowed = [n for n in range(1, tp + 1) if tp % n == 0] if pcp == 1 else sorted({1, pcp, tp * pcp})
    if dcp not in allowed:
        what = f"dcp {dcp} with tp {tp} and pcp {pcp}"
        remedy = "use one of " + ", ".join(map(str, allowed))
        raise InputError(Problem(where=loaded.where("deployment.dcp"), what=what, remedy=remedy))


def max_model_len(loaded: Loaded, model: Model) -> tuple[int, list[str]]:
    """The longest request of the engine; raises InputError for one beyond the model, or a workload beyond it."""
    return longest_request(loaded, model, stand_in="workload.context stands for max_model_len")


def scheduler_of(deployment: Deployment, gpu: Gpu, release: Release, length: int) -> Scheduler:
    """Defaults of the API server by the size of the card (`get_batch_defaults`), and the in-flight window."""
    large = gpu.reported_bytes >= 70 * GIB and not gpu.name.startswith("a100")
    largest = release.has("large_gpu_batches") and gpu.reported_bytes >= 160 * GIB
    given, batched = deployment.max_running_requests, deployment.max_num_batched_tokens
    seqs = MAX_SEQS[large] if given == "auto" else given
    tokens = min(seqs * length, BATCHED_TOKENS[2 if largest else int(large)]) if batched == "auto" else batched
    if given == "auto":
        seqs = min(seqs, tokens)
    query = 1 + speculative_tokens(deployment)
    steps = deployment.pp + int(deployment.async_scheduling)
    windowed = steps if release.has("in_flight_of_all_steps") else 1
    return Scheduler(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        in_flight_tokens=windowed * tokens,
        decode_in_flight_tokens=windowed * query,
        decode_query_len=query,
    )


def speculative_tokens(deployment: Deployment) -> int:
    """Tokens drafted in a step; as many as MTP layers when only those are given."""
    return deployment.num_speculative_tokens or deployment.draft_layers


def check_deployment(loaded: Loaded, model: Model, gpu: Gpu, ranks: Ranks) -> list[str]:
    """Raise InputError or UnsupportedError for what cannot run; return notes on what is ignored."""
    problems = list(_foreign_keys(loaded))
    if problems:
        raise InputError(problems)
    if gpu.rocm:
        what = f"hsplan does not know how vLLM sizes its cache on ROCm, that is on the {gpu.name}"
        raise UnsupportedError(Problem(where=loaded.where("deployment.gpu"), what=what))
    return list(_notes(loaded.spec.deployment, model, gpu, ranks))


def _foreign_keys(loaded: Loaded) -> Iterator[Problem]:
    deployment = loaded.spec.deployment
    for key, remedy in SGLANG_KEYS.items():
        if getattr(deployment, key) != _DEFAULTS[key]:
            what = f"{key} is a key of SGLang, not of vLLM"
            yield Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy=remedy)
    offload = loaded.spec.offload or Offload()
    if offload.host_to_device_ratio != Offload().host_to_device_ratio:
        where = loaded.where("offload.host_to_device_ratio")
        remedy = "vLLM sizes its host pool by host_pool"
        yield Problem(where=where, what="host_to_device_ratio is a key of SGLang", remedy=remedy)


def _notes(deployment: Deployment, model: Model, gpu: Gpu, ranks: Ranks) -> Iterator[str]:
    if deployment.swa_full_tokens_ratio is not None:
        yield "swa_full_tokens_ratio is SGLang's: vLLM sizes windows by max_num_batched_tokens"
    if deployment.cuda_graph_max_bs not in ("auto", 0):
        yield "cuda_graph_max_bs: the estimate of vLLM's CUDA graphs does not depend on it"
    if deployment.disaggregation is not None:
        yield f"disaggregation {deployment.disaggregation}: vLLM sizes its pool the same"
    if deployment.moe_a2a_backend != "none":
        yield f"moe_a2a_backend {deployment.moe_a2a_backend}: its buffers are not in this plan"
    if ranks.per_node > gpu.per_node:
        yield f"{ranks.per_node} GPUs in a node: the usual {gpu.name} board has {gpu.per_node}"
    if deployment.draft_layers and model.mtp_layers and deployment.draft_layers != model.mtp_layers:
        yield f"draft_layers {deployment.draft_layers}: the model has {model.mtp_layers} MTP layer(s)"
