"""
What differs between kinds of models in vLLM's cache, and nothing else.

Release, ranks, budget, weights, printed numbers and scenarios are the same for all.
"""

from __future__ import annotations

from typing import Protocol

from hsplan.engines.base import Launch, Row, Scenario
from hsplan.engines.vllm.groups import BlockPool
from hsplan.engines.vllm.memory import Reserved
from hsplan.engines.vllm.releases import Release
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded


class Cache(Protocol):
    """How vLLM holds the cache of one kind of model; stateless."""

    def check(self, loaded: Loaded, model: Model, release: Release) -> list[str]:
        """Raise InputError or UnsupportedError for what the release or hsplan cannot run; return notes."""

    def row(self, model: Model, gpu: Gpu, release: Release, deployment: Deployment, tp: int) -> Row | str:
        """The row of a rank, or the reason why the engine does not start."""

    def no_offload(self, model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:
        """Why the engine does not start with HiSparse, whatever its settings; None when it does."""

    def pool(self, launch: Launch, scenario: Scenario, stage: tuple[int, int]) -> BlockPool:
        """What a block holds on a stage without HiSparse."""

    def reserve(self, launch: Launch, stage: tuple[int, int]) -> list[Reserved]:
        """Workspaces and buffers of a stage that are allocated before the pool is sized."""
