"""
What a rank of any engine holds before the cache is sized: weights in its own dtypes and shards.

Sources: deepseek_v2.py, deepseek_nextn.py, deepseek_weight_loader.py, dsa_indexer.py, vocab_parallel_embedding.py
and fused_moe_triton/layer.py of SGLang 0.5.17 to 0.5.23; checked against "Load weight end" lines (tests/truth).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from hsplan.errors import InputError, Problem
from hsplan.families import Inventory, LayerPlan, Model, Tensor, Unit, unit_counts
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded, Spec
from hsplan.units import ceil_div
from hsplan.weights import (
    FolderWeights,
    Formats,
    has_safetensors,
    matrix_bytes,
    named,
    of_quantization,
    read_folder,
)

VOCAB_PAD = 64
# Kimi-K2.5: MoonViT and projector in bf16, replicated (closes on 73.58 GiB of an MI355X log, shape not verified).
KIMI_VISION_BYTES = 944_000_000


class RankWeights(msgspec.Struct, frozen=True, kw_only=True):
    """
    Weight bytes of the fullest rank.

    `base` without indexers, `indexer` of one owner layer, `draft` of all MTP layers; `exact` when the figure was
    given. `formula` lists the groups.
    """

    base: int
    indexer: int
    draft: int
    exact: bool
    formula: str


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """
    By what each class of tensors is divided: tensor, attention and MoE-tensor parallel sizes, experts by `ep`.

    `draft_shared` is `shared` of MTP layers where it differs. `draft_owns` names what MTP layers hold of their own
    while the pool is sized, of the shards "embed" and "head".
    """

    tp: int
    attention: int
    kv: int | None = None  # ranks that divide KV heads, where they are fewer than those of attention
    ep: int
    moe_tp: int
    embed: int
    head: int
    shared: int
    dense: int | None = None  # ranks that divide dense MLPs, where they are not those of TP
    draft_shared: int | None = None
    draft_owns: tuple[str, ...] = ("embed", "head")

    def of(self, shard: str, *, draft: bool = False) -> int:
        """Ranks that share a tensor of this class; `draft`: of an MTP layer."""
        return {
            "attention": self.attention,
            "kv": self.kv or self.attention,
            "dense": self.dense or self.tp,
            "expert": self.ep * self.moe_tp,
            "shared": (self.draft_shared if draft else None) or self.shared,
            "embed": self.embed,
            "head": self.head,
        }.get(shard, 1)


def weights_of_rank(
    loaded: Loaded, model: Model, plan: LayerPlan, gpu: Gpu, shards: Shards, *, held_indexers: int
) -> RankWeights | str:
    """
    Weights of the rank that holds most, from a given figure, a folder's headers or the inventory.

    `held_indexers` are those in a figure that was given. Returns the reason when none of the three is to be had;
    raises InputError for shards that do not divide.
    """
    spec = loaded.spec
    weights = spec.weights
    if weights != "auto" and weights.bytes_per_rank is not None:
        return _given(weights.bytes_per_rank, model, plan, gpu, shards, spec.deployment, held_indexers)
    folder = _folder(loaded)
    if folder is not None and model.kv is not None:
        if weights_path(spec) is not None:
            return f"the tensor names of {model.family} checkpoints are not known: leave weights.path out"
        folder = None
    if folder is not None:
        return max(
            (
                _from_folder(read_folder(folder, model, stage), model, shards, stage, gpu, spec.deployment)
                for stage in plan.stages
            ),
            key=lambda found: found.base,
        )
    formats = formats_of(spec, model)
    if isinstance(formats, str):
        return formats
    if model.inventory is None:
        return "the spec lacks " + ", ".join(model.missing)
    _check_divisible(loaded, model, shards)
    return _fullest(model, plan, formats, gpu, shards, spec.deployment.draft_layers)


def _given(
    total: int, model: Model, plan: LayerPlan, gpu: Gpu, shards: Shards, deployment: Deployment, held_indexers: int
) -> RankWeights:
    """A logged or measured figure of the target's weights; indexers and draft come from the inventory."""
    formats = of_quantization(model.quantization)
    indexer = draft = 0
    if not isinstance(formats, str) and model.inventory is not None:
        found = _fullest(model, plan, formats, gpu, shards, deployment.draft_layers)
        indexer, draft = found.indexer, found.draft
    base = max(total - indexer * held_indexers, 0)
    formula = f"given, less its indexers: {base:,} B"
    return RankWeights(base=base, indexer=indexer, draft=draft, exact=True, formula=formula)


def formats_of(spec: Spec, model: Model) -> Formats | str:
    """Number formats of the weights, as the spec names the checkpoint or as its own; or why they are not known."""
    formats = of_quantization(model.quantization)
    if spec.weights != "auto" and spec.weights.checkpoint:
        return named(spec.weights.checkpoint, formats)
    return formats


def weights_path(spec: Spec) -> Path | None:
    """The folder that the spec names for its weights."""
    return Path(spec.weights.path) if spec.weights != "auto" and spec.weights.path is not None else None


def _folder(loaded: Loaded) -> Path | None:
    if loaded.spec.weights != "auto":
        return weights_path(loaded.spec)
    return loaded.folder if loaded.folder is not None and has_safetensors(loaded.folder) else None


def _check_divisible(loaded: Loaded, model: Model, shards: Shards) -> None:
    """The engine asserts that heads, experts and widths divide; so does the plan."""
    assert model.inventory is not None  # noqa: S101
    problems = []
    for tensor in model.inventory.tensors:
        if tensor.shard in ("attention", "kv", "dense", "shared"):
            size = tensor.rows if tensor.split == "rows" else tensor.cols
            ranks = shards.of(tensor.shard, draft=tensor.unit == "mtp")
        elif tensor.shard == "expert":
            size, ranks = (tensor.rows if tensor.split == "rows" else tensor.cols), shards.moe_tp
        else:
            continue
        if size % ranks:
            problems.append(f"{tensor.module} has {size:,} {tensor.split}, not divisible by {ranks} ranks")
    heads = model.num_attention_heads
    if heads is not None and heads % shards.attention:
        problems.insert(0, f"{heads} attention heads cannot be divided over {shards.attention} ranks")
    if problems:
        where = loaded.where("deployment.tp")
        raise InputError(Problem(where=where, what=problems[0], remedy="choose tp, dp_attention and ep that divide"))


def _engine_format(tensor: Tensor, model: Model, formats: Formats, gpu: Gpu, layer: int) -> str:
    """Number format of a tensor in GPU memory; ROCm and CUDA differ for the indexer only."""
    module = tensor.module
    if module.startswith("self_attn.indexer."):
        if module.endswith("k_norm"):
            return "bf16" if gpu.rocm else "fp32"
        if module.endswith("wk") and model.indexer_fused and not gpu.rocm:
            return "bf16"  # fused with weights_proj, an fp8 wk is dequantised
    if tensor.dtype != "linear":
        return tensor.dtype
    if tensor.unit == "mtp" and formats.default == "nvfp4":
        return "bf16"  # the draft of a ModelOpt fp4 checkpoint runs unquantised
    return formats.of(f"model.layers.{layer}.{module}")


def _tensor_rank_bytes(tensor: Tensor, number_format: str, shards: Shards) -> int:
    """Bytes of one unit of a tensor on one rank."""
    rows, cols, count = tensor.rows, tensor.cols, tensor.count
    ranks = shards.of(tensor.shard, draft=tensor.unit == "mtp")
    if tensor.shard == "expert":
        count, ranks = ceil_div(count, shards.ep), shards.moe_tp
    if tensor.shard in ("embed", "head"):
        rows = ceil_div(rows, VOCAB_PAD) * VOCAB_PAD
    if tensor.split == "rows":
        rows = ceil_div(rows, ranks)
    else:
        cols = ceil_div(cols, ranks)
    return matrix_bytes(number_format, rows, cols) * count


def _group_index_bytes(tensor: Tensor, shards: Shards) -> int:
    """The int32 group indices that ROCm's Triton int4 experts keep: one a column (73.58 GiB of an MI355X log)."""
    cols = tensor.cols if tensor.split == "rows" else ceil_div(tensor.cols, shards.moe_tp)
    per_matrix = 4 * cols * (1 if tensor.split == "rows" else 2)
    return per_matrix * ceil_div(tensor.count, shards.ep)


def _indexer_bytes(model: Model, formats: Formats, gpu: Gpu, shards: Shards) -> int:
    """One owner layer's indexer on one rank: replicated, but for queries that go with KV heads."""
    if model.inventory is None:
        return 0
    owner = [tensor for tensor in model.inventory.tensors if tensor.unit == "owner"]
    return sum(_tensor_rank_bytes(t, _engine_format(t, model, formats, gpu, 0), shards) for t in owner)


def _fullest(
    model: Model, plan: LayerPlan, formats: Formats, gpu: Gpu, shards: Shards, draft_layers: int
) -> RankWeights:
    """Weights of the stage that holds most, from the inventory; cached by all that they depend on."""
    sizes = _Sizes(
        inventory=model.inventory,
        layers=model.num_attention_layers,
        indexer_fused=model.indexer_fused,
        multimodal=model.multimodal,
        absorbed_elements=model.absorbed_elements,
        rope_bytes=_rope_bytes(model),
        rope_caches=(model.rope_caches, model.draft_rope_caches),
    )
    key = (sizes, plan.stages, formats, gpu.rocm, shards, draft_layers)
    if key not in _CACHE:
        if len(_CACHE) >= 1024:
            _CACHE.clear()
        found = (_from_inventory(model, plan, stage, formats, gpu, shards, draft_layers) for stage in plan.stages)
        _CACHE[key] = max(found, key=lambda weights: weights.base)
    return _CACHE[key]


class _Sizes(msgspec.Struct, frozen=True):
    """What of a model its weight bytes depend on."""

    inventory: Inventory | None
    layers: int
    indexer_fused: bool
    multimodal: bool
    absorbed_elements: int
    rope_bytes: int
    rope_caches: tuple[int, int]


_CACHE: dict[tuple[object, ...], RankWeights] = {}


def _from_inventory(
    model: Model,
    plan: LayerPlan,
    stage: tuple[int, int],
    formats: Formats,
    gpu: Gpu,
    shards: Shards,
    draft_layers: int,
) -> RankWeights:
    inventory = model.inventory
    assert inventory is not None  # noqa: S101
    units = unit_counts(model, plan, stage, owners=0)
    layer_of: Mapping[Unit, int] = {
        "dense": 0, "moe": inventory.dense_layers, "mtp": model.num_attention_layers,
    }  # fmt: skip
    groups: dict[str, int] = {}
    draft = 0
    for tensor in inventory.tensors:
        count = units.get(tensor.unit, 0)
        if not count and tensor.unit != "mtp":
            continue
        number_format = _engine_format(tensor, model, formats, gpu, layer_of.get(tensor.unit, stage[0]))
        size = _tensor_rank_bytes(tensor, number_format, shards)
        if gpu.rocm and number_format == "int4":
            size += _group_index_bytes(tensor, shards)
        if tensor.unit == "mtp":
            draft += size * draft_layers
        else:
            groups[tensor.shard] = groups.get(tensor.shard, 0) + size * count
    groups |= _extras(model, gpu, shards, formats, stage[1] - stage[0])
    if model.multimodal:
        groups["vision tower"] = KIMI_VISION_BYTES
    if draft_layers:
        draft += _draft_extras(inventory.tensors, model, gpu, shards, formats, draft_layers)
    return RankWeights(
        base=sum(groups.values()),
        indexer=_indexer_bytes(model, formats, gpu, shards),
        draft=draft,
        exact=False,
        formula=_formula(groups),
    )


def _extras(model: Model, gpu: Gpu, shards: Shards, formats: Formats, layers: int) -> dict[str, int]:
    """What the engine makes of the weights: absorbed kv_b copies and the rope cache."""
    return {
        "absorbed kv_b copies": _absorbed_bytes(model, gpu, shards, formats) * layers,
        "rope cache": _rope_bytes(model) * model.rope_caches,
    }


def _rope_bytes(model: Model) -> int:
    """One cache of cosines and sines, in fp32."""
    return model.rope_rows * model.qk_rope_head_dim * 4


def _absorbed_bytes(model: Model, gpu: Gpu, shards: Shards, formats: Formats) -> int:
    """w_kc and w_vc of one layer, beside kv_b_proj: bf16 on CUDA, fp8 on ROCm when the checkpoint is fp8."""
    itemsize = 1 if gpu.rocm and formats.default == "fp8" else 2
    return ceil_div(model.absorbed_elements, shards.attention) * itemsize


def _draft_extras(
    tensors: Iterable[Tensor], model: Model, gpu: Gpu, shards: Shards, formats: Formats, draft_layers: int
) -> int:
    """Embedding and head of the draft's own, as far as it has them, its rope caches and its absorbed copies."""
    owned = (t for t in tensors if t.unit in ("first", "last") and t.shard in shards.draft_owns)
    copies = sum(_tensor_rank_bytes(t, "bf16", shards) for t in owned)
    ropes = _rope_bytes(model) * model.draft_rope_caches
    return copies + ropes + _absorbed_bytes(model, gpu, shards, formats) * draft_layers


def _from_folder(
    found: FolderWeights, model: Model, shards: Shards, stage: tuple[int, int], gpu: Gpu, deployment: Deployment
) -> RankWeights:
    groups = {shard: ceil_div(size, shards.of(shard)) for shard, size in found.main.items()}
    known = of_quantization(model.quantization)
    formats = Formats() if isinstance(known, str) else known
    groups |= _extras(model, gpu, shards, formats, stage[1] - stage[0])
    draft = sum(ceil_div(size, shards.of(shard, draft=True)) for shard, size in found.draft.items())
    if not deployment.draft_layers:
        draft = 0
    elif found.draft:
        absorbed = _absorbed_bytes(model, gpu, shards, formats) * deployment.draft_layers
        copies = sum(ceil_div(found.vocabulary.get(shard, 0), shards.of(shard)) for shard in shards.draft_owns)
        draft += copies + absorbed
    indexer = max(found.indexers.values(), default=0)
    return RankWeights(base=sum(groups.values()), indexer=indexer, draft=draft, exact=False, formula=_formula(groups))


def _formula(groups: Mapping[str, int]) -> str:
    return " + ".join(f"{name} {size:,} B" for name, size in groups.items() if size)
