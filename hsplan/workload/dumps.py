"""
What servers and scripts dump, read as recorded traces: lines of JSON, and replies of SGLang with their top-k.

A `.jsonl` file has a line a step and layer of one request, in any order: {"step": 0, "layer": 3, "ids": [17, 4, …]}.
A `.json` file is the reply of SGLang's /generate to a request with `"return_indexer_topk": true`, by a server that runs
with --enable-return-indexer-topk (#24392): `meta_info.indexer_topk`, base64 of int32 [tokens − 1, layers, K], one row
a position. Rows of the prompt are no decode steps and left out; so is the newest token of each step, its own position.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from hsplan.errors import InputError, Problem
from hsplan.files import read_file, reason_of
from hsplan.workload.recording import MOST_TOKENS, Ids, Recording, clean, load_array, load_arrays

MOST_BYTES = 2**33
LINE = '{"step": 0, "layer": 3, "ids": [17, 4]}'
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ids that one step read in one layer."""

    step: Index
    layer: Index
    ids: list[Annotated[int, msgspec.Meta(ge=-1, lt=MOST_TOKENS)]]


class MetaInfo(msgspec.Struct, frozen=True):
    """What is read of a reply; the rest of it may be anything."""

    prompt_tokens: Index
    completion_tokens: Index
    indexer_topk: str


class Reply(msgspec.Struct, frozen=True):
    """A reply of SGLang's /generate."""

    meta_info: MetaInfo


def load_recording(path: Path, top_k: int) -> Recording:
    """
    The traces of a file, by its ending: .jsonl, .json, .npz, or an array of numpy; `top_k` is that of the model.

    Raises InputError with file, line and key of what is wrong.
    """
    match path.suffix:
        case ".jsonl":
            found = _lines(path)
        case ".json":
            found = _reply(path, top_k)
        case ".npz":
            found = load_arrays(path)
        case _:
            found = load_array(path)
    if not any(ids.size for trace in found.traces for ids in trace):
        raise InputError(Problem(where=str(path), what="no step reads any token", remedy="save ids from 0 on"))
    return found


def _lines(path: Path) -> Recording:
    found: dict[int, dict[int, Ids]] = {}
    for number, text in enumerate(_read(path).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            line = msgspec.json.decode(text, type=Line)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InputError(Problem(where=where, what=str(error), remedy=f"a line is {LINE}")) from None
        if line.step in found.setdefault(line.layer, {}):
            what = f"step {line.step} of layer {line.layer} stands here a second time"
            raise InputError(Problem(where=where, what=what, remedy="keep the lines of one request and one rank"))
        found[line.layer][line.step] = clean(np.array(line.ids, dtype=np.int64), where)
    if not found:
        raise InputError(Problem(where=str(path), what="holds no line", remedy=f"a line is {LINE}"))
    every = range(min(map(min, found.values())), max(map(max, found.values())) + 1)
    for layer, steps in found.items():
        lacking = next((step for step in every if step not in steps), None)
        if lacking is not None:
            what = f"layer {layer} has no step {lacking}"
            raise InputError(Problem(where=str(path), what=what, remedy="dump every layer at every step"))
    layers = sorted(found)
    return Recording([[found[layer][step] for step in every] for layer in layers], tuple(layers))


def _reply(path: Path, top_k: int) -> Recording:
    try:
        meta = msgspec.json.decode(_read(path), type=Reply).meta_info
        data = np.frombuffer(base64.b64decode(meta.indexer_topk, validate=True), dtype="<i4")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        remedy = 'save the reply of /generate to one request with "return_indexer_topk": true'
        raise InputError(Problem(where=str(path), what=str(error), remedy=remedy)) from None
    rows = meta.prompt_tokens + meta.completion_tokens - 1
    if rows <= meta.prompt_tokens or not data.size or data.size % (rows * top_k):
        what = f"meta_info.indexer_topk holds {data.size:,} ids, for {rows:,} tokens and top-k {top_k:,}"
        remedy = "give the spec of the model that was served, and at least 2 completion tokens"
        raise InputError(Problem(where=str(path), what=what, remedy=remedy))
    table = data.reshape(rows, -1, top_k)
    positions = range(meta.prompt_tokens, rows)
    return Recording(
        [
            [clean(ids[ids != at], str(path)) for at in positions for ids in [table[at, layer]]]
            for layer in range(table.shape[1])
        ]
    )


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        what, remedy = reason_of(error), "give an .npy, .npz, .jsonl or .json file"
        raise InputError(Problem(where=str(path), what=what, remedy=remedy)) from None
