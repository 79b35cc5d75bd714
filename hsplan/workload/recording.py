"""
Recorded traces of one request: which ids each step read in each layer.

The format is an .npy file, int32 [steps, K] of one layer or [steps, layers, K]; −1 is no id. That is what a dump of a
server's top-k indices is once saved with numpy.save; ids need not be sorted. The newest token of a step counts as any
other unless it is left out. `hsplan.workload.dumps` reads two more.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import msgspec
import numpy as np
import numpy.typing as npt

from hsplan.errors import InputError, Problem
from hsplan.files import check_regular

Ids = npt.NDArray[np.int32]
MOST_TOKENS = 2**21


class Recording(msgspec.Struct, frozen=True):
    """One trace a layer, each step sorted, distinct and without −1; `layers` are their ids, None if not known."""

    traces: list[list[Ids]]
    layers: tuple[int, ...] | None = None


def as_array(traces: Sequence[Sequence[Ids]]) -> bytes:
    """An .npy file of traces of equally many steps: [steps, K] of one layer, [steps, layers, K] of more."""
    most = max(ids.size for trace in traces for ids in trace)
    data = np.full((len(traces[0]), len(traces), most), -1, dtype=np.int32)
    for layer, trace in enumerate(traces):
        for step, ids in enumerate(trace):
            data[step, layer, : ids.size] = ids
    file = io.BytesIO()
    np.save(file, data[:, 0] if len(traces) == 1 else data, allow_pickle=False)
    return file.getvalue()


def load_array(path: Path) -> Recording:
    """
    The traces of an .npy file.

    Raises InputError for files that are no such array, are empty, or name tokens that no request has.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            data = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, TypeError, RecursionError) as error:
        what = getattr(error, "strerror", None) or "is no array of numpy"
        raise InputError(Problem(where=str(path), what=what, remedy="save it with numpy.save")) from None
    if data.ndim not in (2, 3) or data.dtype.kind not in "iu" or not data.size:
        what = f"holds {data.dtype} {list(data.shape)}"
        raise InputError(Problem(where=str(path), what=what, remedy="save ids, int32 [steps, K] or [steps, layers, K]"))
    layers = data[:, None] if data.ndim == 2 else data
    return Recording([[clean(step, str(path)) for step in layers[:, layer]] for layer in range(layers.shape[1])])


def clean(ids: npt.NDArray[np.integer], where: str) -> Ids:
    """The ids of a step as a trace has them; raises InputError for a token that no request has."""
    found = np.unique(ids[ids >= 0])
    if found.size and int(found[-1]) >= MOST_TOKENS:
        what = f"token {int(found[-1]):,} is beyond {MOST_TOKENS:,}"
        raise InputError(Problem(where=where, what=what, remedy="save positions inside the request, not pool rows"))
    return found.astype(np.int32)
