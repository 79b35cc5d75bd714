"""
The keys of a spec, their types, ranges and defaults: the one place where they stand.

`"auto"` means that the engine's own rule decides. Bytes are ints here: sizes such as "134.127GiB" are parsed
before these types see them (`hsplan.spec.load`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hsplan.missrate import DEFAULT_PROFILE
from hsplan.steptime import Ms, StepMs, step_profile
from hsplan.units import MAX_BYTES

MAX_RANKS = 4096
MAX_TOKENS = 2**31 - 1
MIN_BYTES = 2**20  # a smaller number is a size without its unit

Auto = Literal["auto"]
Ranks = Annotated[int, Meta(ge=1, le=MAX_RANKS)]
Count = Annotated[int, Meta(ge=0, le=MAX_RANKS)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Bytes = Annotated[int, Meta(ge=MIN_BYTES, le=MAX_BYTES)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
StepName = Annotated[str, Meta(description="the name of a step profile")]

Backend = Literal[
    "auto",
    "aiter",
    "cutedsl_mla",
    "cutlass_mla",
    "fa3",
    "fa4",
    "flashinfer",
    "flashinfer_mla_sparse",
    "flashinfer_sparse_mla",
    "flashmla",
    "flashmla_auto",
    "flashmla_kv",
    "flashmla_sparse",
    "flashmla_sparse_q8",
    "tilelang",
    "tokenspeed_mla",
    "triton",
    "trtllm",
    "trtllm_mla",
]
A2A = Literal[
    "none", "deepep", "mooncake", "nixl", "mori", "megamoe", "flashinfer", "ascend_fuseep"
]  # fmt: skip


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """
    Where the weight bytes of a rank come from: exactly one of the three.

    `checkpoint`: the model in another number format; `bytes_per_rank`: as logged or measured, bytes;
    `path`: a folder of safetensors files, of which only the headers are read.
    """

    checkpoint: Literal["bf16", "fp8", "nvfp4", "int4"] | None = None
    bytes_per_rank: Bytes | None = None
    path: str | None = None


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    How and on what the model is launched. Sizes in bytes, ranks and tokens as counts.

    `link_curve`: a file of `hsplan validate --json`, whose gathers are those of this machine; `host_gb_s`: GB/s that
    the host memory of a node gives to all its GPUs together, "auto": as much as their links take.
    """

    engine: str = "sglang"
    release: str = "latest"
    preset: str | None = None
    gpu: str
    gpus: Ranks | Auto = "auto"
    nodes: Ranks = 1
    tp: Ranks | Auto = "auto"
    pp: Ranks = 1
    dp: Ranks = 1
    dp_attention: Ranks = 1
    ep: Ranks = 1
    cp: Ranks = 1
    dcp: Ranks = 1
    pcp: Ranks = 1
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8_e4m3"] = "auto"
    indexer_kv_dtype: Literal["auto", "fp8", "mxfp4"] = "auto"
    attention_backend: Backend = "auto"
    page_size: Annotated[int, Meta(ge=1, le=65536)] | Auto = "auto"
    mem_fraction: Fraction | Auto = "auto"
    chunked_prefill_size: Tokens | Auto = "auto"
    cuda_graph_max_bs: Annotated[int, Meta(ge=0, le=65536)] | Auto = "auto"
    moe_a2a_backend: A2A = "none"
    enable_dp_lm_head: bool = False
    draft_layers: Annotated[int, Meta(ge=0, le=64)] = 0
    num_speculative_tokens: Annotated[int, Meta(ge=0, le=1024)] = 0
    hierarchical_cache: bool = False
    unified_cache_linker: bool = False
    disaggregation: Literal["prefill", "decode"] | None = None
    layer_range: Annotated[list[Count], Meta(min_length=2, max_length=2)] | None = None
    max_running_requests: Annotated[int, Meta(ge=1, le=2**24)] | Auto = "auto"
    max_model_len: Tokens | Auto = "auto"
    max_total_tokens: Tokens | None = None
    radix_cache: bool = True
    swa_full_tokens_ratio: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_num_batched_tokens: Tokens | Auto = "auto"
    async_scheduling: bool = True
    kv_budget: Bytes | Auto = "auto"
    link_curve: str | None = None
    host_gb_s: Annotated[float, Meta(ge=1e-3, le=1e6)] | Auto = "auto"


class Offload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    CPU offload of the KV rows (HiSparse). `device_buffer_size` in tokens, pools and memory in bytes.

    `overlap`: the share of the loading that is taken to be hidden behind other work of a decode step.
    """

    device_buffer_size: Annotated[int, Meta(ge=1, le=2**24)] | Auto = "auto"
    host_to_device_ratio: Annotated[float, Meta(ge=1, le=1000)] = 2
    host_pool: Bytes | Auto = "auto"
    host_memory: Bytes | Literal["auto", "here"] = "auto"
    overlap: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One request: `context` is prompt plus output, tokens; `tpot_ms` the wished time per token.

    `profile` names the stored curve of how often hot buffers miss; `step_ms` is the rest of a decode step: one number
    that holds for any requests, its parts, or the name of a stored step profile.
    """

    context: Tokens = 32768
    tpot_ms: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    step_ms: StepMs | Ms | StepName | None = None
    profile: str = DEFAULT_PROFILE

    @property
    def step(self) -> StepMs | None:
        """The rest of a decode step in numbers; None where it is not known."""
        match self.step_ms:
            case str(name):
                return step_profile(name).step_ms
            case int() | float() as fixed:
                return StepMs(fixed=fixed)
            case parts:
                return parts


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deployment of one model; `model` holds config.json fields, unchanged."""

    name: str | None = None
    model: dict[str, Any]
    weights: Weights | Auto = "auto"
    deployment: Deployment
    offload: Offload | None = None
    workload: Workload = Workload()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "weights": Weights,
    "deployment": Deployment,
    "offload": Offload,
    "workload": Workload,
}
SIZE_KEYS = {
    "weights": ("bytes_per_rank",),
    "deployment": ("kv_budget",),
    "offload": ("host_pool", "host_memory"),
}


def leaf_sections() -> dict[str, str]:
    """Leaf key -> its section, for options and overrides; leaf names are unique over all sections."""
    return {key: section for section, struct in SECTIONS.items() for key in struct.__struct_fields__}
