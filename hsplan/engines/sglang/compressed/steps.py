"""The formulas of DeepSeek-V4's rates and pools, written out with their numbers."""

from __future__ import annotations

from hsplan.engines.base import Budget, CompressedPools, Launch, Step
from hsplan.engines.sglang.compressed.rates import full_rate, window_rate
from hsplan.engines.sglang.compressed.sizing import PAGE, Sizing
from hsplan.engines.sglang.requests import Requests


def rate_steps(launch: Launch, sizing: Sizing) -> tuple[Step, ...]:
    """Bytes of a token and of a window slot."""
    source, shape = f"SGLang {launch.release.name}: DSV4PoolConfigurator", sizing.shape
    layers = f"{shape.layers} layers: {shape.c4} of ratio 4, {shape.c128} of ratio 128"
    if shape.c1 or shape.c2:
        layers += f", {shape.c2} sources of ratio 2, {shape.c1} of ratio 1"
    grows = "" if sizing.cap_slots is not None else f", {sizing.window_ratio:g} window slots a token in it"
    return (
        Step("bytes a full token", f"{layers}{grows}: {full_rate(sizing):,} B", source),
        Step("bytes a window slot", f"{shape.layers} layers and rings of ratio 4: {window_rate(sizing):,} B", source),
    )


def token_steps(
    launch: Launch,
    sizing: Sizing,
    found: CompressedPools,
    budget: Budget,
    requests: Requests,
    tokens: int,
    priced: int,
    held: int | None,
) -> tuple[Step, ...]:
    """Windows, what is fixed, tokens and the request cap."""
    source = f"SGLang {launch.release.name}: calculate_pool_sizes"
    state = found.fixed_c128_state_bytes + found.fixed_c2_state_bytes
    windows = (
        f"{found.swa_tokens:,} = {sizing.window_ratio:g} × {tokens:,} in pages"
        if sizing.cap_slots is None
        else f"{sizing.cap_slots:,} for {priced:,} requests, the prefill chunks and kept prefixes"
    )
    fixed = f"{state:,} B of state for {priced:,} requests + {found.swa_fixed_bytes:,.0f} B of windows"
    limit = []
    if held is not None:
        formula = f"the least of {tokens:,} tokens and {found.swa_tokens:,} window slots = {held:,}"
        limit.append(Step("requests by the GPU pool", formula, "each is admitted with its window and a page"))
    return (
        Step("window slots", windows, "compute_swa_request_cap"),
        Step("fixed bytes", fixed, source),
        Step(
            "full tokens",
            f"({budget.kv_bytes.best:,} B − {state + found.swa_fixed_bytes:,.0f} B) / "
            f"{found.bytes_per_full_token:,} B in pages of {PAGE} = {tokens:,}",
            source,
        ),
        *limit,
        Step("request cap of a rank", requests.formula, f"SGLang {launch.release.name}: resolve_max_num_reqs"),
    )
