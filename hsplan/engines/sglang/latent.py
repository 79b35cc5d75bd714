"""
MLA with or without the DSA indexer: one latent row a token and layer, and an index key a token in layers that have one.

Rows, cells, pools and HiSparse stand in rows.py, cell.py, pools.py and hisparse.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from hsplan.engines.base import Budget, Launch, Layout, Pools, Row, Scenario
from hsplan.engines.sglang.cell import rates
from hsplan.engines.sglang.fraction import latent_graph_mib
from hsplan.engines.sglang.hisparse import hot_buffer, speculation_refused
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.pools import pools_of, ratio_of
from hsplan.engines.sglang.releases import Release
from hsplan.engines.sglang.rows import DSA_BACKENDS, DSA_PAGE, MLA_BACKENDS, resolve_row
from hsplan.errors import InputError, Problem, UnsupportedError
from hsplan.families import Model
from hsplan.families.longcat import ARCHITECTURES as LONGCAT
from hsplan.families.longcat import REGISTERED as LONGCAT_REGISTERED
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded


class LatentCache:
    """DeepSeek-V3 to V3.2, Kimi-K2, GLM-5.x, LongCat."""

    def check(self, loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> list[str]:  # noqa: ARG002
        """Raise InputError or UnsupportedError for what cannot run; return notes on what is changed or ignored."""
        problem = _unsupported(loaded, model, gpu, release)
        if problem is not None:
            raise UnsupportedError(problem)
        _check_index(loaded, model)
        return list(_notes(loaded.spec.deployment, model, gpu))

    def row(
        self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, ranks: Ranks, *, offload: bool
    ) -> Row | str:
        """The row with or without the flags of HiSparse, or the reason why the engine refuses to start with them."""
        return resolve_row(model, gpu, release, deployment, ranks.tp, offload=offload)

    def prefill_graph_mib(self, model: Model, release: Release, deployment: Deployment, chunk_tokens: int) -> int:  # noqa: ARG002
        """MiB that the automatic fraction leaves for prefill graphs."""
        return latent_graph_mib(model, release, deployment)

    def layout(self, launch: Launch, scenario: Scenario, row: Row) -> Layout | Problem:
        """Row and rates of the stage that charges most, or what is wrong with the hot buffer."""
        if scenario.offload:
            buffer = hot_buffer(launch, row.page_tokens)
            if isinstance(buffer, Problem):
                return buffer
            refused = speculation_refused(launch.loaded, launch.model, launch.release)
            if refused is not None:
                return refused
        deployment, ratio = launch.loaded.spec.deployment, ratio_of(launch, scenario)
        found = [
            (*rates(row, launch.release, deployment, launch.plan, stage, scenario, ratio), stage)
            for stage in launch.plan.stages
        ]
        result, index_layers, explain, stage = max(found, key=lambda entry: entry[0].charged)
        return Layout(row=row, rates=result, stage=stage, index_layers=index_layers, explain=explain)

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens and everything that is allocated for them."""
        return pools_of(launch, scenario, layout, budget)


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


def _notes(deployment: Deployment, model: Model, gpu: Gpu) -> Iterator[str]:
    dsa, page = model.index_topk is not None, deployment.page_size
    if dsa and gpu.rocm and page == 1:
        yield f"page_size 1 is SGLang's legacy path on ROCm; with aiter's preshuffled index keys it is {DSA_PAGE}"
    elif dsa and page not in ("auto", DSA_PAGE):
        yield f"page_size {page}: SGLang forces {DSA_PAGE} for DSA models"
    if not dsa and deployment.attention_backend not in (*MLA_BACKENDS, "auto"):
        yield f"attention_backend {deployment.attention_backend} is for DSA models and is ignored here"
    if not deployment.radix_cache:
        yield "radix_cache: without it less is reused; the capacity is the same"
    if deployment.cp > 1 and dsa and deployment.disaggregation == "prefill":
        yield "cp on a PD prefill node is priced with the DSA layer split (--enable-dsa-cache-layer-split)"
    elif deployment.cp > 1:
        yield "prefill context parallelism does not shard the KV pool: every rank stores all tokens"
