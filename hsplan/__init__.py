"""
hsplan: how many tokens and requests a sparse-attention model holds on given GPUs, by the engine release's own rules.

    import hsplan
    plan = hsplan.plan("glm-5.2-nvfp4", gpu="gb300", tp=4)
    plan.to_dict()["scenarios"]["elided"]["max_total_num_tokens"]

Names are loaded when they are first used, so that an interrupt during start-up finds a handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hsplan.version import __version__

if TYPE_CHECKING:
    from hsplan.errors import CannotRunError, HsplanError, InputError, UnsupportedError
    from hsplan.planner import plan
    from hsplan.result import Plan

__all__ = ["CannotRunError", "HsplanError", "InputError", "Plan", "UnsupportedError", "__version__", "plan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hsplan' has no attribute {name!r}")
    from hsplan import errors, planner  # noqa: PLC0415
    from hsplan.result import Plan  # noqa: PLC0415

    found = {"Plan": Plan, "plan": planner.plan}
    globals().update(found | {error: getattr(errors, error) for error in __all__ if error.endswith("Error")})
    return globals()[name]
