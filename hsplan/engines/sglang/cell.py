"""
Bytes per token: the cell that SGLang divides its budget by, and what it stores for that token.

Sources: pool_configurator.py and kv_cache_configurator.py of 0.5.17 to 0.5.23 (truth/sglang-*.jsonl reproduces
them), PRs #23862, #31992 and #30531. Double-precision products are kept where the engine has them.
"""

from __future__ import annotations

from hsplan.engines.base import Explain, Rates, Row, Scenario, Step
from hsplan.engines.sglang.releases import Release
from hsplan.families import LayerPlan
from hsplan.spec import Deployment
from hsplan.units import ceil_div

INDEX_BYTES = 132  # 128 fp8 values and one fp32 scale, per layer and token
SOURCE = "SGLang {}: kv_cache_configurator.py, pool_configurator.py"


def elides(release: Release, deployment: Deployment, *, offload: bool) -> bool:
    """Whether the release stores index-K only in owner layers with these flags (`_should_elide_dsa_index_k`)."""
    if not release.has("elision") or offload:
        return False
    if release.has("linker_blocks_elision") and deployment.unified_cache_linker:
        return False
    if release.has("elision_under_pd"):
        return True
    return not deployment.hierarchical_cache and deployment.disaggregation is None


def splits_layers(release: Release, deployment: Deployment, plan: LayerPlan, *, offload: bool) -> bool:
    """Whether context parallelism splits the layers of the pool: DSA prefill nodes of PD, no pipeline."""
    return (
        deployment.cp > 1
        and plan.has_indexer
        and deployment.disaggregation == "prefill"
        and len(plan.stages) == 1
        and not offload
        and release.has("layer_split")
    )


def index_layers(
    release: Release, deployment: Deployment, plan: LayerPlan, stage: tuple[int, int], scenario: Scenario
) -> tuple[int, int]:
    """Layers of a stage whose index-K is charged, and those whose index-K is stored on one rank."""
    first, end = stage
    if not plan.has_indexer:
        return 0, 0
    stored = plan.owners_in(first, end) if scenario.elided else end - first
    if not splits_layers(release, deployment, plan, offload=scenario.offload):
        return stored, stored
    most = max(
        sum(plan.owners[lo:hi]) if scenario.elided else hi - lo for lo, hi in _even_parts(first, end, deployment.cp)
    )
    if scenario.elided:
        return most + 1, most + 1
    charged = end - first if release.has("elision") else _split_layers(end - first, deployment.cp)
    return charged, most + 1


def rates(
    row: Row,
    release: Release,
    deployment: Deployment,
    plan: LayerPlan,
    stage: tuple[int, int],
    scenario: Scenario,
    ratio: float,
) -> tuple[Rates, int, Explain]:
    """
    Charged and stored bytes per device token of one stage, the index layers stored, and the cell's formula.

    `ratio` is host_to_device_ratio under offload, else 1: index-K then spans the logical tokens.
    """
    layers, drafts = stage[1] - stage[0], deployment.draft_layers
    split = splits_layers(release, deployment, plan, offload=scenario.offload)
    held = _split_layers(layers, deployment.cp) if split else layers
    charged_index, stored_index = index_layers(release, deployment, plan, stage, scenario)
    copies = deployment.dcp if plan.has_indexer and release.has("dsa_dcp") else 1
    charged_ratio = ratio if release.has("true_row_charged") else 1

    main = row.charged_bytes * held
    index = int(INDEX_BYTES * charged_index * charged_ratio) * copies
    cell = main + index
    cell_with_draft, draft_formula = _draft(
        release, plan, drafts, layers, held, main=main, cell=cell, ratio=charged_ratio, copies=copies
    )
    draft_ratio = ratio if release.has("draft_times_ratio") else 1
    draft_index = INDEX_BYTES if plan.has_indexer else 0
    result = Rates(
        charged=cell_with_draft,
        draft=cell_with_draft - cell,
        stored_kv=row.bytes * held,
        stored_index=int(INDEX_BYTES * stored_index * ratio) * copies,
        stored_draft=(int(row.bytes * drafts * draft_ratio) + int(draft_index * drafts * ratio)) * deployment.dcp,
    )

    def explain() -> tuple[Step, ...]:
        times = f" × {charged_ratio:g}" if charged_ratio != 1 else ""
        times += f" × dcp {copies}" if copies != 1 else ""
        drawn = f"{row.charged_bytes} × {held} layers + {INDEX_BYTES} × {charged_index} index layers{times} = {cell:,}"
        return (Step("cell, bytes per token", drawn + draft_formula, SOURCE.format(release.name)),)

    return result, stored_index, explain


def _draft(
    release: Release,
    plan: LayerPlan,
    drafts: int,
    layers: int,
    held: int,
    *,
    main: int,
    cell: int,
    ratio: float,
    copies: int,
) -> tuple[int, str]:
    """The cell with the draft term: none, proportional (a truncated double) or additive."""
    if drafts == 0 or not release.has("draft_charged"):
        return cell, ""
    additive = release.has("elision") if plan.has_indexer else release.has("draft_times_ratio")
    if not additive:
        total = int(cell * (1 + drafts / layers))
        return total, f"; int({cell:,} × (1 + {drafts}/{layers})) = {total:,}"
    kv_ratio = ratio if release.has("draft_times_ratio") else 1
    if plan.has_indexer:
        term = copies * int(int(main * drafts / held) * kv_ratio) + copies * int(INDEX_BYTES * drafts * ratio)
    else:
        term = int(int(cell * drafts / layers) * kv_ratio)
    return cell + term, f"; + draft {term:,} = {cell + term:,}"


def _split_layers(layers: int, cp: int) -> int:
    """Layers a rank holds under the CP layer split, with its scratch layer."""
    return ceil_div(layers, cp) + 1


def _even_parts(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Contiguous parts of [first, end); the first ones take the remainder."""
    each, more = divmod(end - first, parts)
    bounds, at = [], first
    for part in range(parts):
        size = each + (part < more)
        bounds.append((at, at + size))
        at += size
    return bounds
