"""
A stand-in for a card: 20 GiB that are always free, memory of the CPU, and what a real card would have measured.

The plan is small, so that nothing must be cut: two layers, hot buffers of 64 tokens.
"""

from __future__ import annotations

from typing import Any

from hsplan.gpu.place import Place
from hsplan.measurement import LinkRate, Machine, Percentiles, Timing, TokenCheck

GIB = 2**30
HOST_POOL = 2 * (2 * 640 + 64) * 656
MACHINE = Machine(
    gpu="stand-in",
    memory_bytes=24 * GIB,
    free_bytes=20 * GIB,
    driver=None,
    torch="2.13.0",
    triton="3.9.0",
    link_generation=None,
    link_width=None,
    host_bytes=HOST_POOL,
)
RATE = LinkRate(driver="copy_engine", direction="h2d", gb_s=50.0)
TIME = Percentiles(1.0, 2.0, 3.0)
TIMING = Timing(mode="graph", steps=1, step_us=TIME, call_us=TIME, gb_s=30.0, ceiling_gb_s=40.0)


def tiny(*, tp: int = 1, indexer_types: tuple[str, str] = ("full", "shared")) -> dict[str, Any]:
    """A spec of two layers, the second of which shares the top-k of the first."""
    return {
        "name": "tiny",
        "model": {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "num_hidden_layers": 2,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_topk": 16,
            "index_head_dim": 128,
            "indexer_types": list(indexer_types),
        },
        "weights": {"bytes_per_rank": "50MB"},
        "deployment": {
            "gpu": "h200",
            "tp": tp,
            "kv_cache_dtype": "fp8_e4m3",
            "max_running_requests": 2,
            "max_model_len": 256,
            "max_total_tokens": 640,
        },
        "offload": {"device_buffer_size": 64},
        "workload": {"context": 192},
    }


class StandIn(Place):
    """The CPU, with 20 GiB free."""

    def free_bytes(self) -> int:
        return 20 * GIB


def confirmed(plan: object, scenario: str, place: Place) -> TokenCheck:
    """What growing the pools of a card would have found."""
    del plan, place
    return TokenCheck(scenario=scenario, kv_budget_bytes=GIB, predicted_tokens=1000, confirmed_tokens=1000)
