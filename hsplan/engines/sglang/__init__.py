"""
SGLang: how its releases size the cache of MLA and DSA models.

releases (dated switches) → launch (ranks, checks) → rows → cell → loading, fraction, memory → budget → pools, requests,
hisparse. `engine` puts them in the order in which the planner asks.
"""

from hsplan.engines.sglang.engine import SGLang

__all__ = ["SGLang"]
