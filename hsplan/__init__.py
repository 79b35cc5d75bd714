"""
hsplan: how many tokens and requests a sparse-attention model holds on given GPUs, exactly as the engine would log it.

    import hsplan
    plan = hsplan.plan("glm-5.2-nvfp4", gpu="gb300", tp=4)
    plan.to_dict()["scenarios"]["elided"]["max_total_num_tokens"]
"""

from hsplan.errors import CannotRunError, HsplanError, InputError, UnsupportedError
from hsplan.plan import Plan
from hsplan.planner import plan
from hsplan.version import __version__

__all__ = ["CannotRunError", "HsplanError", "InputError", "Plan", "UnsupportedError", "__version__", "plan"]
