"""
Top-k traces: which tokens each step of each layer reads, drawn from a score model with three time scales.

score(token, step) = static + slow AR(1) + mid AR(1) + white noise, each with its weight; the newest two tokens and the
first four always belong to the top-k. The constants reproduce the published miss rates of GLM-5.1 on LongBench-v2
(arXiv 2608.07009: 13.4 % at 4096 slots, 6.7 % at 8192, 30.0 % at 2048) within a point at 32,768 tokens.
"""

from __future__ import annotations

import math

import torch

from hsplan.workload.profile import Profile, load_profile

RECENT = 2  # the newest token, and the one whose row was backed up just before


GLM_51_LONGBENCH = load_profile("glm-5.1-longbench")


class Trace:
    """Scores of `groups` independent layers × `requests` requests × `context` tokens, one step further at each call."""

    def __init__(
        self, profile: Profile, groups: int, requests: int, context: int, top_k: int, device: str, seed: int
    ) -> None:
        self.profile, self.top_k = profile, top_k
        self._dice = torch.Generator(device).manual_seed(seed)
        self._shape = (groups, requests, context)
        self._static = self._noise() * profile.static
        self._slow, self._mid = self._noise(), self._noise()
        self._token = torch.arange(context, device=device)

    def step(self, lens: torch.Tensor) -> torch.Tensor:
        """
        int32 [groups, requests, top_k], the next step's ids; `lens` int32 [requests], its lengths.

        Distinct ids below the length, in no order that means anything. Every length is above top_k.
        """
        p = self.profile
        self._advance(self._slow, p.slow_steps)
        self._advance(self._mid, p.mid_steps)
        score = self._noise().mul_(p.white).add_(self._static)
        score.add_(self._slow, alpha=p.slow).add_(self._mid, alpha=p.mid)
        lens = lens[:, None]
        always = (self._token < p.sinks) | ((self._token >= lens - RECENT) & (self._token < lens))
        score.masked_fill_(always, math.inf).masked_fill_(self._token >= lens, -math.inf)
        return score.topk(self.top_k, dim=-1, sorted=False).indices.to(torch.int32)

    def _noise(self) -> torch.Tensor:
        return torch.randn(self._shape, generator=self._dice, device=self._dice.device)

    def _advance(self, part: torch.Tensor, steps: float) -> None:
        """AR(1) of unit variance with the given time constant."""
        keep = math.exp(-1 / steps)
        part.mul_(keep).add_(self._noise(), alpha=math.sqrt(1 - keep * keep))
