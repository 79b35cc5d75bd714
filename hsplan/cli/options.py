"""
The options of commands that take a spec: one for each leaf key of the spec, named like the key.

`spec_options` adds them to a command's signature, from which typer builds help and completion. `HELP` is the one
table of their texts; types and choices come from the spec itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import typer
from typer.core import TyperCommand

from hsplan.engines import ENGINES, PRESETS
from hsplan.hardware import GPUS
from hsplan.spec import shipped_names
from hsplan.spec.schema import SECTIONS, SIZE_KEYS, leaf_sections
from hsplan.steptime import step_profiles

Command = TypeVar("Command", bound=Callable[..., Any])

HELP = {
    "checkpoint": "The model in another number format: bf16, fp8, nvfp4 or int4.",
    "bytes_per_rank": "Weight bytes of a rank, as logged or measured: 106.76GiB.",
    "path": "A folder of safetensors files; only their headers are read.",
    "engine": "sglang or vllm, with a release if you like: vllm@0.33.0.",
    "release": "Release of the engine: 0.5.23, or a build main-2026-06-12.",
    "preset": "The figures of a published calculator instead: vllm-calculator.",
    "gpu": "The card: h200, b200, gb300, mi300x, ...",
    "gpus": "GPUs in a node; from tp, pp and nodes if not given.",
    "nodes": "Number of nodes.",
    "tp": "Tensor-parallel size, over all nodes; all GPUs if not given.",
    "pp": "Pipeline stages.",
    "dp": "Data-parallel replicas of vLLM.",
    "dp_attention": "Data-parallel groups of SGLang's attention.",
    "ep": "Expert-parallel size.",
    "cp": "Prefill context-parallel size.",
    "dcp": "Decode context-parallel size.",
    "pcp": "Prefill context-parallel size of vLLM.",
    "kv_cache_dtype": "Number format of the KV rows: bfloat16 or fp8_e4m3.",
    "indexer_kv_dtype": "Number format of vLLM's index keys: fp8 or mxfp4.",
    "attention_backend": "Backend of prefill and decode: flashmla_kv, trtllm, ...",
    "page_size": "Tokens in a page.",
    "mem_fraction": "Share of the GPU for weights and cache; by the engine's rule if not given.",
    "chunked_prefill_size": "Tokens of a prefill chunk.",
    "cuda_graph_max_bs": "Largest batch of the decode graphs.",
    "moe_a2a_backend": "All-to-all backend of the experts: deepep, ...",
    "enable_dp_lm_head": "Shard the output head inside each DP group; else --no-enable-dp-lm-head.",
    "draft_layers": "MTP or EAGLE layers with KV rows of their own.",
    "num_speculative_tokens": "Tokens drafted in a step.",
    "hierarchical_cache": "SGLang's HiCache; else --no-hierarchical-cache.",
    "unified_cache_linker": "SGLang's external cache linker; else --no-unified-cache-linker.",
    "disaggregation": "This server's part: prefill or decode.",
    "layer_range": "One pipeline stage, first layer and end: [0,15].",
    "max_running_requests": "Requests that may run at once.",
    "max_model_len": "Longest request of the engine, tokens.",
    "max_total_tokens": "Upper limit of the pool, tokens.",
    "radix_cache": "SGLang's prefix cache, off under offload; else --no-radix-cache.",
    "swa_full_tokens_ratio": "Share of sliding-window tokens to full ones.",
    "max_num_batched_tokens": "Tokens of one step in vLLM.",
    "async_scheduling": "vLLM plans the next step early; else --no-async-scheduling.",
    "kv_budget": "Bytes for the cache: 134.127GiB; skips the estimate of weights and reserve.",
    "link_curve": "Link rates of this machine: a file of `hsplan validate --json`.",
    "host_gb_s": "GB/s that host memory gives to all GPUs of a node together; auto: as much as their links take.",
    "device_buffer_size": "Tokens of a request that stay on the GPU; the engine's default if not given.",
    "host_to_device_ratio": "Tokens in host memory for each one on the GPU.",
    "host_pool": "Host pool of vLLM: 384GiB.",
    "host_memory": "Host memory of a node: 2TiB, or here for this machine.",
    "overlap": "Share of the loading hidden behind other work: 0 to 1.",
    "context": "Prompt and output of one request, tokens.",
    "tpot_ms": "Wished time for each output token, ms.",
    "step_ms": "The rest of a decode step, ms: 12, or a profile: glm-5.1-8xh200, or "
    "'{fixed: 12, per_request: 0.2, per_context_token: 0.00003}', the last for each token of each request.",
    "profile": "How often hot buffers miss: glm-5.1-longbench, stress, ...",
}
PANELS = {"weights": "Weights", "deployment": "Deployment", "offload": "Offload", "workload": "Workload"}
ORDER = ("deployment", "offload", "workload", "weights")
FIELDS = {field.name: field for struct in SECTIONS.values() for field in msgspec.structs.fields(struct)}


class SpecCommand(TyperCommand):
    """A command whose help shows no column of negated flags: with it, no text would be left in 80 columns."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; the texts in `HELP` name the negated flags."""
        for parameter in self.params:
            parameter.secondary_opts = []
        super().format_help(ctx, formatter)


def spec_options(command: Command, *, planned_gpu: bool = False) -> Command:
    """
    `command`, which takes **options, with `--offload` and an option for each leaf key.

    A leaf comes as a list of texts or flags, None where it is absent. Leaves stand before the command's own options.
    With `planned_gpu` the option of the leaf `gpu` is `--planned-gpu`, so that the command may have a flag `--gpu`.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    sections = leaf_sections()
    leaves = [
        _parameter(leaf, home, planned_gpu=planned_gpu)
        for section in ORDER
        for leaf, home in sections.items()
        if home == section
    ]
    first = [p for p in own if p.kind is not p.KEYWORD_ONLY]
    parameters = [*first, *leaves, *(p for p in own if p not in first)]
    at = next(i for i, p in enumerate(parameters) if sections.get(p.name) == "offload")
    parameters.insert(at, _offload())
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def spec_argument() -> Any:
    """The argument SPEC of a command."""
    return typer.Argument(
        metavar="SPEC",
        help="A shipped spec (see `hsplan specs list`), a YAML file, a config.json, or a model folder.",
        autocompletion=lambda incomplete: [name for name in shipped_names() if name.startswith(incomplete)],
    )


def is_switch(leaf: str) -> bool:
    """Whether the key is true or false."""
    return FIELDS[leaf].type is bool


def is_text(leaf: str) -> bool:
    """Whether the key takes any text, which is then no number even if it looks like one."""
    kind = FIELDS[leaf].type
    return kind is str or str in get_args(kind)


def _parameter(leaf: str, section: str, *, planned_gpu: bool) -> inspect.Parameter:
    name = "planned_gpu" if planned_gpu and leaf == "gpu" else leaf
    flag = "--" + name.replace("_", "-")
    switch = is_switch(leaf)
    option = typer.Option(
        f"{flag}/--no-{flag.removeprefix('--')}" if switch else flag,
        help=HELP[leaf],
        metavar=None if switch else _metavar(leaf, section),
        rich_help_panel=PANELS[section],
        show_default=False,
        autocompletion=None if switch else _completion(leaf),
    )
    kind = list[bool] if switch else list[str]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _offload() -> inspect.Parameter:
    option = typer.Option(
        "--offload", help="Launch with offload, with the defaults.", rich_help_panel=PANELS["offload"]
    )
    return inspect.Parameter(
        "offload", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )


def _metavar(leaf: str, section: str) -> str:
    if leaf in SIZE_KEYS.get(section, ()):
        return "SIZE"
    return "NAME" if is_text(leaf) or _choices(FIELDS[leaf].type) - {"auto"} else "N"


def _completion(leaf: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        named = {"gpu": set(GPUS), "engine": set(ENGINES), "preset": set(PRESETS), "step_ms": set(step_profiles())}
        known = named.get(leaf) or _choices(FIELDS[leaf].type)
        return sorted(name for name in known if name.startswith(incomplete))

    return complete


def _choices(kind: Any) -> set[str]:
    """The words that a type takes."""
    origin = get_origin(kind)
    if origin is Literal:
        return {value for value in get_args(kind) if isinstance(value, str)}
    if origin is Annotated:
        return _choices(get_args(kind)[0])
    union = origin is Union or type(kind).__name__ == "UnionType"
    return set().union(*map(_choices, get_args(kind))) if union else set()
