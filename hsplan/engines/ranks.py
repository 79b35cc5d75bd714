"""Questions that every engine asks of a deployment in the same way: how many ranks, and how long a request may be."""

from __future__ import annotations

from hsplan.errors import InputError, Problem
from hsplan.families import Model
from hsplan.spec import Loaded


def tp_and_gpus(loaded: Loaded, outer: int) -> tuple[int, int]:
    """
    Tensor-parallel size and GPUs of a node, each from the other; `outer` groups of TP ranks stand side by side.

    Raises InputError when neither is given.
    """
    tp, gpus, nodes = loaded.spec.deployment.tp, loaded.spec.deployment.gpus, loaded.spec.deployment.nodes
    if tp != "auto":
        return tp, gpus if gpus != "auto" else max(tp * outer // nodes, 1)
    if gpus != "auto":
        return max(gpus * nodes // outer, 1), gpus
    what, remedy = "the number of GPUs is not known", "give tp, or gpus (of a node)"
    raise InputError(Problem(where=loaded.where("deployment.tp"), what=what, remedy=remedy))


def longest_request(loaded: Loaded, model: Model, *, stand_in: str) -> tuple[int, list[str]]:
    """
    Tokens of the longest request of the engine; `stand_in` is the note when workload.context must do for it.

    Raises InputError for a length beyond the model, or a workload beyond the length.
    """
    given, native = loaded.spec.deployment.max_model_len, model.max_position_embeddings
    context = loaded.spec.workload.context
    if given != "auto" and native is not None and given > native:
        what = f"{given:,} tokens, but the model has {native:,} positions"
        where = loaded.where("deployment.max_model_len")
        raise InputError(Problem(where=where, what=what, remedy=f"give at most {native}"))
    length = native if given == "auto" else given
    if length is None:
        return context, [f"max_position_embeddings is missing: {stand_in}"]
    if context > length:
        what = f"requests of {context:,} tokens, but the engine stops at {length:,}"
        remedy = f"set workload.context (--context) to at most {length}"
        raise InputError(Problem(where=loaded.where("workload.context"), what=what, remedy=remedy))
    return length, []
