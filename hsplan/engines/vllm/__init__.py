"""
vLLM: how its releases size the cache of MLA and DSA models, of DeepSeek-V4 and of MiniMax-M3.

releases (dated switches) → launch (ranks, checks) → a kind of cache → memory → budget → pools and printed numbers;
with HiSparse pages, hisparse and offloaded. `engine` puts them in the order in which the planner asks; weights are
loaded by vLLM's shards (`engines.loading`). What differs between kinds of models is a class in `latent`, `compressed`
(with `packed`) or `block_sparse` and a line in `caches`; `groups` is what they all answer with. `calculator` is the
page of vLLM's blog, a preset.
"""

from hsplan.engines.vllm.calculator import Calculator
from hsplan.engines.vllm.engine import VLLM

__all__ = ["VLLM", "Calculator"]
