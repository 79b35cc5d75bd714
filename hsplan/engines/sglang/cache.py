"""
What differs between kinds of models in SGLang's cache, and nothing else.

Release, ranks, budget, weights, requests and scenarios are the same for all.
"""

from __future__ import annotations

from typing import Protocol

from hsplan.engines.base import Budget, Launch, Layout, Pools, Row, Scenario
from hsplan.engines.sglang.launch import Ranks
from hsplan.engines.sglang.releases import Release
from hsplan.errors import Problem
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded


class Cache(Protocol):
    """How SGLang holds the cache of one kind of model; stateless."""

    def check(self, loaded: Loaded, model: Model, gpu: Gpu, release: Release, ranks: Ranks) -> list[str]:
        """Raise InputError or UnsupportedError for what the release or hsplan cannot run; return notes."""

    def row(
        self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, ranks: Ranks, *, offload: bool
    ) -> Row | str:
        """The row with or without the flags of HiSparse, or the reason why the engine refuses to start with them."""

    def prefill_graph_mib(self, model: Model, release: Release, deployment: Deployment, chunk_tokens: int) -> int:
        """MiB that the automatic fraction leaves for prefill graphs; 0 when this kind has none."""

    def layout(self, launch: Launch, scenario: Scenario, row: Row) -> Layout | Problem:
        """Rates and the binding stage, or what is wrong with the flags of offload."""

    def pools(self, launch: Launch, scenario: Scenario, layout: Layout, budget: Budget) -> Pools:
        """Tokens of the budget, and everything that is allocated for them."""
