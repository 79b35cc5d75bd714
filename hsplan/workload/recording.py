"""
Recorded traces: which ids each step read, as an .npy file.

int32 [steps, K] of one request and layer, or [steps, layers, K] of one request; −1 is no id. That is what a server's
dump of its top-k indices is once saved with numpy.save; ids need not be sorted. The newest token of a step counts as
any other unless it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsplan.errors import InputError, Problem

Ids = npt.NDArray[np.int32]
MOST_TOKENS = 2**21


def save_trace(path: Path, trace: Sequence[Ids]) -> None:
    """Write a trace of one layer; raises OSError."""
    with path.open("wb") as file:
        np.save(file, np.stack(trace), allow_pickle=False)


def load_traces(path: Path) -> list[list[Ids]]:
    """
    The traces of a file, one a layer, each step sorted, distinct and without −1.

    Raises InputError for files that are no such array, are empty, or name tokens that no request has.
    """
    try:
        with path.open("rb") as file:
            data = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        what = getattr(error, "strerror", None) or "is no array of numpy"
        raise InputError(Problem(where=str(path), what=what, remedy="save it with numpy.save")) from None
    if data.ndim not in (2, 3) or data.dtype.kind not in "iu" or not data.size:
        what = f"holds {data.dtype} {list(data.shape)}"
        raise InputError(Problem(where=str(path), what=what, remedy="save ids, int32 [steps, K] or [steps, layers, K]"))
    if int(data.max()) >= MOST_TOKENS:
        what = f"token {int(data.max()):,} is beyond {MOST_TOKENS:,}"
        raise InputError(Problem(where=str(path), what=what, remedy="save positions inside the request, not pool rows"))
    layers = data[:, None] if data.ndim == 2 else data
    return [[_clean(step) for step in layers[:, layer]] for layer in range(layers.shape[1])]


def _clean(ids: npt.NDArray[np.integer]) -> Ids:
    return np.unique(ids[ids >= 0]).astype(np.int32)
