"""Weights of a local folder, from its safetensors headers: 8 bytes of length, then JSON. No tensor is read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hsplan.errors import InputError, Problem, shown
from hsplan.families import Model
from hsplan.units import ceil_div

MAX_HEADER_BYTES = 100 * 2**20
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"^mlp\.experts\.\d+\.")
_PARAMETER = re.compile(
    r"\.(weight|bias|qweight|qzeros|scales|g_idx|(weight|input)_(scale|scale_2|scale_inv|packed|shape|zero_point))$"
)
# LongCat numbers its two attention and two dense sub-layers: self_attn.0.q_b_proj, mlps.1.down_proj.
_SUB_LAYER = re.compile(r"^(self_attn|mlps)\.\d\.")
_SHARDS = {
    "self_attn.q_b_proj": "attention",
    "self_attn.kv_b_proj": "attention",
    "self_attn.o_proj": "attention",
    "mlp.gate_proj": "dense",
    "mlp.up_proj": "dense",
    "mlp.down_proj": "dense",
    "mlps.gate_proj": "dense",
    "mlps.up_proj": "dense",
    "mlps.down_proj": "dense",
}


class FolderWeights(msgspec.Struct, frozen=True):
    """
    Bytes of a checkpoint by how an engine divides them.

    `main`: shard class -> bytes of the stack; `indexers`: layer -> bytes; `draft`: the same for MTP layers,
    without their copies of embedding and head. `vocabulary`: bytes of these, of the classes "embed" and "head", on
    whatever stage they are.
    """

    main: Mapping[str, int]
    indexers: Mapping[int, int]
    draft: Mapping[str, int]
    vocabulary: Mapping[str, int]


def has_safetensors(folder: Path) -> bool:
    """Whether a folder holds at least one safetensors file."""
    try:
        return next(folder.glob("*.safetensors"), None) is not None
    except OSError:
        return False


def read_folder(folder: Path, model: Model, layers: tuple[int, int]) -> FolderWeights:
    """
    Sum the tensors of the layers [first, end) in `folder`; embedding and head count with the outer layers.

    Raises InputError when there is no safetensors file, a file of the index is missing or a header is broken.
    """
    try:
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    except OSError as error:
        raise InputError(Problem(where=str(folder), what=f"cannot be read: {error.strerror}")) from None
    if not files:
        remedy = "give a folder that holds the model's *.safetensors files"
        raise InputError(Problem(where=str(folder), what="no safetensors files", remedy=remedy))
    _check_complete(folder, {file.name for file in files})
    main: defaultdict[str, int] = defaultdict(int)
    draft: defaultdict[str, int] = defaultdict(int)
    indexers: defaultdict[int, int] = defaultdict(int)
    vocabulary: defaultdict[str, int] = defaultdict(int)
    seen: set[str] = set()
    stage = range(layers[0] // model.sub_layers, ceil_div(layers[1], model.sub_layers))
    end = model.num_attention_layers // model.sub_layers
    for file in files:
        for name, size in _tensor_sizes(file):
            try:
                layer, module = _place(name)
            except ValueError as error:
                raise _broken(file, error) from None
            seen.add(module if layer is None else f"layer {layer}")
            if layer is None and _shard(module) in ("embed", "head"):
                vocabulary[_shard(module)] += size
            if layer is not None and layer >= end:
                if module not in ("embed_tokens", "shared_head.head"):
                    draft[_shard(module)] += size
            elif layer is None or layer in stage:
                if ".indexer." in f".{module}" and layer is not None:
                    indexers[layer] += size
                elif layer is not None or _on_stage(module, layers, model.num_attention_layers):
                    main[_shard(module)] += size
    _check_layers(folder, seen, stage, first=layers[0] == 0, last=layers[1] == model.num_attention_layers)
    return FolderWeights(dict(main), dict(indexers), dict(draft), dict(vocabulary))


def _check_complete(folder: Path, present: set[str]) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        listed = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(Problem(where=str(index), what="cannot be read as a safetensors index")) from None
    missing = sorted(str(name) for name in listed - present)
    if missing:
        what = f"{len(missing)} of the {len(listed)} files in the index are missing, first {missing[0]}"
        raise InputError(Problem(where=str(folder), what=what, remedy="finish the download, or give bytes_per_rank"))


def _tensor_sizes(file: Path) -> list[tuple[str, int]]:
    try:
        if not file.is_file():
            raise ValueError("not a regular file")
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = stream.read(length) if length <= MAX_HEADER_BYTES else b""
        if not header or len(header) != length:
            raise ValueError("truncated, or no safetensors file")
        entries: dict[str, Any] = json.loads(header)
        room = file.stat().st_size - 8 - length
        return [(name, _span(entry["data_offsets"], room)) for name, entry in entries.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(file, error) from None


def _broken(file: Path, error: Exception) -> InputError:
    reason = shown(str(error)) if type(error) is ValueError else type(error).__name__
    what = f"the safetensors header cannot be read: {reason}"
    return InputError(Problem(where=str(file), what=what, remedy="download the file again"))


def _span(offsets: Any, room: int) -> int:
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError("offsets that are no offsets")
    if end > room:
        raise ValueError("tensors that go past the end of the file")
    return end - begin


def _check_layers(folder: Path, seen: set[str], layers: range, *, first: bool, last: bool) -> None:
    """Every layer of the stage must be there, and embedding and head on the outer stages."""
    wanted = [f"layer {layer}" for layer in layers] + ["embed_tokens"] * first + ["lm_head"] * last
    missing = [name for name in wanted if name not in seen]
    if missing:
        what = f"the safetensors files lack {len(missing)} of {len(wanted)} parts, first {missing[0]}"
        remedy = "finish the download, or give bytes_per_rank"
        raise InputError(Problem(where=str(folder), what=what, remedy=remedy))


def _place(name: str) -> tuple[int | None, str]:
    """Layer id and module name below it, without the parameter's own suffix."""
    match = _LAYER.search(name)
    module = match[2] if match else name.removeprefix("language_model.").removeprefix("model.")
    return (int(match[1]) if match else None), _SUB_LAYER.sub(r"\1.", _PARAMETER.sub("", module))


def _shard(module: str) -> str:
    if _EXPERT.match(module):
        return "expert"
    if module.startswith("mlp.shared_experts."):
        return "shared"
    if module in ("embed_tokens", "lm_head"):
        return {"embed_tokens": "embed", "lm_head": "head"}[module]
    return _SHARDS.get(module, "replicated")


def _on_stage(module: str, layers: tuple[int, int], num_layers: int) -> bool:
    """Tensors outside the layers: the embedding is on the first stage, head and norm on the last, others on all."""
    if module == "embed_tokens":
        return layers[0] == 0
    if module in ("lm_head", "norm"):
        return layers[1] == num_layers
    return True
