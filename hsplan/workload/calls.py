"""What one call of the swap-in reads: the top-k of one step, or of all steps that a draft verifies at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


def in_calls(steps: Sequence[Ids], per_call: int) -> list[Ids]:
    """
    The distinct ids of each `per_call` successive steps, sorted; steps that do not fill a call are left out.

    So every draft is taken to be accepted: a call follows on the last step of the one before it.
    """
    if per_call == 1:
        return list(steps)
    starts = range(0, len(steps) - per_call + 1, per_call)
    return [np.unique(np.concatenate(steps[start : start + per_call])) for start in starts]
