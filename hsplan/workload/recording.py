"""
Recorded traces of one request: which ids each step read in each layer.

An .npy file is int32 [steps, K] of one layer or [steps, layers, K]; −1 is no id. That is what a dump of a server's
top-k indices is once saved with numpy.save; ids need not be sorted. The newest token of a step counts as any other
unless it is left out. An .npz file has such an array as `ids`, and says with `layers` and `counts` what each trace
stands for. `hsplan.workload.dumps` reads two more.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hsplan.errors import InputError, Problem
from hsplan.files import check_regular
from hsplan.workload.layers import Layers

Ids = npt.NDArray[np.int32]
MOST_TOKENS = 2**21
MOST_LAYERS = 2**16
# what a broken header of numpy raises
UNREADABLE = (OSError, ValueError, EOFError, SyntaxError, TokenError, TypeError, RecursionError)


class Recording(msgspec.Struct, frozen=True):
    """
    One trace a layer, each step sorted, distinct and without −1.

    `layers` are what the traces stand for: the ids of their layers, or whole `Layers` where the file counts readers
    too; None if not known.
    """

    traces: list[list[Ids]]
    layers: tuple[int, ...] | tuple[Layers, ...] | None = None


def as_array(traces: Sequence[Sequence[Ids]]) -> bytes:
    """An .npy file of traces of equally many steps: [steps, K] of one layer, [steps, layers, K] of more."""
    file = io.BytesIO()
    np.save(file, _filled(traces), allow_pickle=False)
    return file.getvalue()


def as_arrays(traces: Sequence[Sequence[Ids]], layers: Sequence[Layers]) -> bytes:
    """
    An .npz file of traces of equally many steps, and what they stand for.

    `ids` are int32 [steps, K] of one trace, [steps, traces, K] of more; `layers` int32 [traces, most], −1 is none;
    `counts` int64 [traces].
    """
    of = _filled([[np.array(one.ids, dtype=np.int32)] for one in layers])
    counts = np.array([one.count for one in layers], dtype=np.int64)
    file = io.BytesIO()
    np.savez(file, ids=_filled(traces), layers=of.reshape(len(layers), -1), counts=counts)
    return file.getvalue()


def _filled(traces: Sequence[Sequence[Ids]]) -> Ids:
    """[steps, K] of one trace, [steps, traces, K] of more; −1 where a step has fewer ids than K."""
    most = max(ids.size for trace in traces for ids in trace)
    data = np.full((len(traces[0]), len(traces), most), -1, dtype=np.int32)
    for number, trace in enumerate(traces):
        for step, ids in enumerate(trace):
            data[step, number, : ids.size] = ids
    return data[:, 0] if len(traces) == 1 else data


def load_array(path: Path) -> Recording:
    """
    The traces of an .npy file.

    Raises InputError for files that are no such array, are empty, or name tokens that no request has.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            data = np.lib.format.read_array(file, allow_pickle=False)
    except UNREADABLE as error:
        what = getattr(error, "strerror", None) or "is no array of numpy"
        raise InputError(Problem(where=str(path), what=what, remedy="save it with numpy.save")) from None
    return Recording(_traces(data, path))


def load_arrays(path: Path) -> Recording:
    """
    The traces of an .npz file, with the layers that they stand for.

    Raises InputError as `load_array`, and where `layers` or `counts` do not go with `ids`.
    """
    remedy = "write it with --record, or numpy.savez(file, ids=…, layers=[…])"
    try:
        check_regular(path)
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as found:
            ids, layers, counts = found["ids"], found["layers"], found.get("counts")
    except (*UNREADABLE, KeyError, zipfile.BadZipFile) as error:
        what = getattr(error, "strerror", None) or "holds no arrays `ids` and `layers` of numpy"
        raise InputError(Problem(where=str(path), what=what, remedy=remedy)) from None
    traces = _traces(ids, path)
    if layers.ndim == 1:
        layers = layers[:, None]
    if not _are_layers(layers, counts, len(traces)):
        what = f"`layers` or `counts` do not name the layers of {len(traces):,} traces, each layer once"
        raise InputError(Problem(where=str(path), what=what, remedy=remedy))
    groups = [tuple(int(layer) for layer in row if layer >= 0) for row in layers]
    if counts is None:
        return Recording(traces, tuple(group[0] for group in groups))
    return Recording(traces, tuple(Layers(group, int(n)) for group, n in zip(groups, counts, strict=True)))


def _traces(data: npt.NDArray[Any], path: Path) -> list[list[Ids]]:
    if data.ndim not in (2, 3) or data.dtype.kind not in "iu" or not data.size:
        what = f"holds {data.dtype} {list(data.shape)}"
        raise InputError(Problem(where=str(path), what=what, remedy="save ids, int32 [steps, K] or [steps, layers, K]"))
    layers = data[:, None] if data.ndim == 2 else data
    return [[clean(step, str(path)) for step in layers[:, layer]] for layer in range(layers.shape[1])]


def _are_layers(layers: npt.NDArray[Any], counts: npt.NDArray[Any] | None, traces: int) -> bool:
    """Whether every trace has layers of its own, as many readers as them at least, or one layer without `counts`."""
    if layers.ndim != 2 or layers.dtype.kind not in "iu" or len(layers) != traces:
        return False
    named = layers[layers >= 0]
    own = np.count_nonzero(layers >= 0, axis=1)
    if np.unique(named).size != named.size or own.min() < 1 or int(named.max()) >= MOST_LAYERS:
        return False
    if counts is None:
        return bool(own.max() == 1)
    is_count = counts.shape == (traces,) and counts.dtype.kind in "iu"
    return is_count and bool((counts >= own).all() and int(counts.max()) <= MOST_LAYERS)


def clean(ids: npt.NDArray[np.integer], where: str) -> Ids:
    """The ids of a step as a trace has them; raises InputError for a token that no request has."""
    found = np.unique(ids[ids >= 0])
    if found.size and int(found[-1]) >= MOST_TOKENS:
        what = f"token {int(found[-1]):,} is beyond {MOST_TOKENS:,}"
        raise InputError(Problem(where=where, what=what, remedy="save positions inside the request, not pool rows"))
    return found.astype(np.int32)
