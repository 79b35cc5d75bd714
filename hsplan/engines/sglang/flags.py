"""The launch flags of a plan's offload settings (arg_groups/fields and hisparse_hook.py of 0.5.23)."""

from __future__ import annotations

import json

from hsplan.engines.base import Flag, Launch, Pools


def flags_of(launch: Launch, pools: Pools) -> tuple[Flag, ...]:
    """Flags to add to a launch command, each with its reason."""
    deployment, offload = launch.loaded.spec.deployment, launch.loaded.spec.offload
    found = [
        Flag(
            f"--max-running-requests {pools.request_cap * launch.cap_ranks}",
            "as many as the pools hold; request tables take GPU memory for each",
        )
    ]
    if deployment.kv_cache_dtype != "auto":
        found.append(Flag(f"--kv-cache-dtype {deployment.kv_cache_dtype}", "the row of this plan"))
    if offload is None:
        return tuple(found)
    config = {"device_buffer_size": pools.hot_buffer_tokens - pools.page_tokens}
    if offload.host_to_device_ratio == int(offload.host_to_device_ratio):
        config["host_to_device_ratio"] = int(offload.host_to_device_ratio)
    return (
        Flag("--enable-hisparse", "all KV rows in host memory, a hot buffer of each request on the GPU"),
        Flag(f"--hisparse-config '{json.dumps(config)}'", "slots of a hot buffer, and host tokens for each on the GPU"),
        Flag("--disable-radix-cache", "HiSparse does not run with it"),
        *found,
    )
