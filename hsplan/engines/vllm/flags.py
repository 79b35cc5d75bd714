"""The launch flags of a plan's offload settings (config/attention.py and config/kv_transfer.py of 0.33.0)."""

from __future__ import annotations

import json

from hsplan.engines.base import Flag, Launch, Pools
from hsplan.units import GIB, ceil_div


def flags_of(launch: Launch, pools: Pools) -> tuple[Flag, ...]:
    """Flags to add to a launch command, each with its reason."""
    deployment, offload = launch.loaded.spec.deployment, launch.loaded.spec.offload
    found = [Flag(f"--max-num-seqs {pools.request_cap}", "as many as the pools hold")]
    if deployment.kv_cache_dtype != "auto":
        dtype = deployment.kv_cache_dtype.removesuffix("_e4m3")
        found.append(Flag(f"--kv-cache-dtype {dtype}", "the row of this plan"))
    if offload is None:
        return tuple(found)
    attention = {"hisparse_config": {"device_buffer_size": launch.extra.hot_rows}}
    connector = {
        "kv_connector": "HiSparseConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host_pool_gib": ceil_div(pools.host_bytes, GIB)},
    }
    ranks = launch.ranks_per_node
    each = f", in each of {ranks} ranks of a node" if ranks > 1 and pools.host_sharers == 1 else " of a replica"
    return (
        Flag(f"--attention-config '{json.dumps(attention)}'", "rows of a hot buffer"),
        Flag(f"--kv-transfer-config '{json.dumps(connector)}'", f"host memory for all KV rows{each}"),
        *found,
    )
