"""
The capacity calculator of vLLM's blog, number by number: a preset to compare with, not what an engine allocates.

Source: hisparse_concurrency_calculator.html beside the post of 2026-09-08 on GLM-5.3. GPU sizes in 10^9 bytes, two
weight constants, a flat reserve, 4,096 hot rows, whole requests only, and no room for the one being admitted.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hsplan.engines.base import (
    SCENARIOS,
    Blocks,
    Budget,
    Flag,
    Launch,
    Layout,
    Line,
    Pools,
    Rates,
    Row,
    Scenario,
    exactly,
)
from hsplan.engines.vllm.hisparse import HOST_SHARE
from hsplan.engines.vllm.launch import max_model_len, ranks_of, stage_sizes
from hsplan.engines.vllm.pages import Layers, packing, plain_page
from hsplan.engines.vllm.printed import TAIL_PAGES
from hsplan.engines.vllm.rows import INDEX_ROWS
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model, layer_plan
from hsplan.hardware import gpu_named
from hsplan.spec import Deployment, Loaded, Offload
from hsplan.units import GIB, ceil_div

NAME = "vllm-calculator"
GPU_BYTES = {"h200": 141 * 10**9, "b200": 180 * 10**9, "b300": 288 * 10**9}
UTILIZATION = 0.92
DENSE_GIB, EXPERT_GIB, RESERVE_GIB = 19.556, 684.167, 15
HOT_ROWS, PAGE, MAX_SEQS = 4096, 64, 1024
KEYS = frozenset(
    "engine release preset gpu gpus nodes tp dp ep kv_cache_dtype max_running_requests max_model_len".split()
)
SOURCE = "the calculator of vLLM's blog, 2026-09-08"


class Page(msgspec.Struct, frozen=True):
    """The day of the page, where an engine has its release."""

    name: str


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """Row, weights of a rank in GiB, and requests at most."""

    row: Row
    weights_gib: float
    max_seqs: int
    as_launched: Scenario


class Calculator:
    """The page as an engine; stateless."""

    name = NAME

    def resolve(self, loaded: Loaded, model: Model) -> Launch:
        """Ranks and constants; raises InputError or UnsupportedError for what the page does not have."""
        deployment = loaded.spec.deployment
        gpu = gpu_named(deployment.gpu, loaded.where("deployment.gpu"))
        ranks = ranks_of(loaded)
        plan = layer_plan(model, ("index_topk_pattern", "index_topk_freq"), stage_sizes, loaded)
        _check(loaded, gpu.name, (len(plan.owners), len(plan.owner_ids)))
        seqs = deployment.max_running_requests
        bf16 = deployment.kv_cache_dtype == "bfloat16"
        row = Row(
            format="bf16" if bf16 else "fp8_raw",
            bytes=1152 if bf16 else 576,
            charged_bytes=1152 if bf16 else 576,
            attention_backend="any",
            kv_cache_dtype="bfloat16" if bf16 else "fp8_e4m3",
            page_tokens=PAGE,
        )
        max_model_len(loaded, model)  # refuses a context beyond the model
        offload = loaded.spec.offload is not None
        return Launch(
            loaded=loaded,
            model=model,
            plan=plan,
            gpu=gpu,
            release=Page("2026-09-08"),
            tp=ranks.tp,
            ranks_per_node=ranks.per_node,
            data_parallel=deployment.dp,
            context_len=loaded.spec.workload.context,
            notes=tuple(_notes(deployment)),
            not_modelled=("MTP, and what the page leaves out: see the figures of the release",),
            extra=Extra(
                row=row,
                weights_gib=DENSE_GIB / ranks.tp + EXPERT_GIB / (ranks.moe if ranks.ep > 1 else ranks.tp),
                max_seqs=MAX_SEQS if seqs == "auto" else seqs,
                as_launched=next(s for s in SCENARIOS if s.elided and s.offload == offload),
            ),
        )

    def as_launched(self, launch: Launch) -> Scenario:
        """With or without offload; index-K of owner layers only."""
        extra: Extra = launch.extra
        return extra.as_launched

    def applies(self, launch: Launch, scenario: Scenario) -> bool:  # noqa: ARG002 - the question of every engine
        """The page elides index-K."""
        return scenario.elided

    def layout(self, launch: Launch, scenario: Scenario) -> Layout | str:
        """One row for all scenarios; under offload only index-K lies on the GPU for every token."""
        layers, row = _layers(launch, scenario), launch.extra.row
        kv, index = 0 if scenario.offload else row.bytes * layers.rows, INDEX_ROWS["fp8"] * layers.index
        charged = 0 if scenario.offload else kv + index
        rates = Rates(charged=charged, draft=0, stored_kv=kv, stored_index=index, stored_draft=0)
        return Layout(row=row, rates=rates, stage=(0, layers.rows), index_layers=layers.index, explain=tuple)

    def budget(self, launch: Launch, scenario: Scenario) -> Budget:  # noqa: ARG002 - the same for all scenarios
        """GB × 0.92 − weights − 15 GiB."""
        size, weights = GPU_BYTES[launch.gpu.name], launch.extra.weights_gib
        kv = int((size / GIB * UTILIZATION - weights - RESERVE_GIB) * GIB)
        lines = (
            _line("size in 10^9 bytes", launch.gpu.reported_bytes - size, f"reported less {size // 10**9} GB"),
            _line("weights", int(weights * GIB), f"{DENSE_GIB} / tp + {EXPERT_GIB} / (ep ? dp × tp : tp) GiB"),
            _line("reserve", RESERVE_GIB * GIB, f"{RESERVE_GIB} GiB"),
        )
        free = launch.gpu.reported_bytes - sum(line.bytes for line in lines)
        return Budget(kv_bytes=exactly(kv), lines=lines, free_bytes=free, explain=tuple)

    def flags(self, launch: Launch, pools: Pools) -> tuple[Flag, ...]:
        """None: a calculator launches nothing."""
        del launch, pools
        return ()

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Whole requests of workload.context."""
        layers, row = _layers(launch, scenario), layout.row
        context = launch.loaded.spec.workload.context
        pages = ceil_div(context, PAGE)
        plain = plain_page(row, INDEX_ROWS["fp8"], layers)
        whole = max(budget.kv_bytes.best, 0) // plain
        if not scenario.offload:
            blocks = Blocks(bytes_per_block=plain, num_blocks=whole, max_concurrency=whole / pages)
            return _pools(launch, whole * PAGE, whole // pages, blocks)
        packed = packing(PAGE, row.bytes, INDEX_ROWS["fp8"], layers)
        num_blocks = max(budget.kv_bytes.best, 0) // packed.block
        each = pages + len(packed.hot) * (ceil_div(_hot_rows(launch), PAGE) + TAIL_PAGES)
        requests = max(num_blocks // each, whole // pages)
        stride = PAGE * row.bytes * layers.rows
        size = _host_bytes(launch, min(requests, launch.extra.max_seqs) * pages * stride)
        blocks = Blocks(
            bytes_per_block=packed.block,
            num_blocks=num_blocks,
            steady_state_concurrency=num_blocks / each,
            host_num_blocks=size // stride,
            host_block_stride=stride,
            shared_host_pool=launch.tp > 1,
            device_groups=packed.device_groups,
            hot_groups=len(packed.hot),
        )
        return _pools(launch, int(num_blocks / each * context), requests, blocks, size)


def _pools(launch: Launch, tokens: int, requests: int, blocks: Blocks, host_bytes: int = 0) -> Pools:
    size = blocks.num_blocks * blocks.bytes_per_block
    lines = [_line("GPU pool", size, f"{blocks.num_blocks:,} blocks × {blocks.bytes_per_block:,} B")]
    if host_bytes:
        formula = "requests × pages × block, in whole GiB"
        lines.append(Line(name="host KV pool", bytes=host_bytes, place="host", formula=formula, evidence="assumed"))
    return Pools(
        tokens=exactly(tokens),
        logical_tokens=tokens,
        request_cap=launch.extra.max_seqs,
        max_request_tokens=launch.context_len,
        page_tokens=PAGE,
        host_tokens=(blocks.host_num_blocks or 0) * PAGE,
        host_bytes=host_bytes,
        gpu_requests=requests,
        host_sharers=launch.tp,
        host_is_sized=host_bytes > 0,
        host_share=HOST_SHARE,
        blocks=blocks,
        lines=tuple(lines),
    )


def _host_bytes(launch: Launch, needed: int) -> int:
    """The pool as given, or the least in whole GiB that does not limit."""
    given = (launch.loaded.spec.offload or Offload()).host_pool
    return ceil_div(needed, GIB) * GIB if given == "auto" else given


def _hot_rows(launch: Launch) -> int:
    given = (launch.loaded.spec.offload or Offload()).device_buffer_size
    return HOT_ROWS if given == "auto" else given


def _layers(launch: Launch, scenario: Scenario) -> Layers:
    owners = launch.plan.owners
    return Layers(owners if scenario.elided else (True,) * len(owners), has_indexer=True)


def _line(name: str, size: int, formula: str) -> Line:
    return Line(name=name, bytes=size, formula=formula, evidence="assumed")


def _notes(deployment: Deployment) -> Iterator[str]:
    yield f"preset {NAME}: the figures of {SOURCE}, not of a release, for the FP8 checkpoint"
    plain = Deployment(gpu=deployment.gpu)
    release = "" if deployment.release == plain.release else f" {deployment.release}"
    if release or deployment.engine != plain.engine:
        yield f"engine {deployment.engine}{release} is not asked: the preset stands in its place"


def _check(loaded: Loaded, gpu: str, shape: tuple[int, int]) -> None:
    """The page knows GLM-5.2 and 5.3 in fp8, three GPUs, and none of the other keys."""
    deployment = loaded.spec.deployment
    if shape != (78, 21):
        what = f"the calculator knows GLM-5.2 and GLM-5.3, 78 layers with 21 indexers, not {shape[0]} with {shape[1]}"
        raise UnsupportedError(Problem(where=loaded.where("model"), what=what, remedy="leave out the preset"))
    if gpu not in GPU_BYTES:
        what, remedy = f"the calculator has no {gpu}", "known: " + ", ".join(GPU_BYTES)
        raise UnsupportedError(Problem(where=loaded.where("deployment.gpu"), what=what, remedy=remedy))
    for field in msgspec.structs.fields(Deployment):
        if field.name not in KEYS and getattr(deployment, field.name) != field.default:
            what = f"the calculator has no {field.name}"
            where = loaded.where(f"deployment.{field.name}")
            raise InputError(Problem(where=where, what=what, remedy="leave it out, or leave out the preset"))
