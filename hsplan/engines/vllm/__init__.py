"""
vLLM: how its releases size the cache of MLA and DSA models.

releases (dated switches) → launch (ranks, checks) → rows → pages → memory → budget → pools and printed numbers; with
HiSparse hisparse and offloaded. `engine` puts them in the order in which the planner asks; weights are loaded by
vLLM's shards (`engines.loading`). `calculator` is the page of vLLM's blog, a preset.
"""

from hsplan.engines.vllm.calculator import Calculator
from hsplan.engines.vllm.engine import VLLM

__all__ = ["VLLM", "Calculator"]
