"""
vLLM's HiSparse: hot rows, the host pool and its tables, and what the engine refuses.

Sources: hisparse/runtime.py, hisparse/layout.py and config/vllm.py of 0.30.0 to 0.33.0.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Buffer, Launch, Row
from hsplan.engines.vllm.launch import Scheduler
from hsplan.engines.vllm.printed import Demand, gpu_concurrency, gpu_requests
from hsplan.engines.vllm.releases import Release
from hsplan.errors import Problem
from hsplan.families import Model
from hsplan.hardware import Gpu
from hsplan.spec import Deployment, Loaded, Offload
from hsplan.units import GIB, ceil_div, floor_to

TABLES = "HiSparse tables"
MOST_HOT_ROWS = 2**15  # slot numbers are int16
HOST_PAGE_BYTES = 4096  # a shared pool is one mmap, its blocks are whole pages
HOST_SHARE = 0.95  # of the free host memory that a pool may take (check_hisparse_host_memory)
SPARE_HOST_BLOCKS = 2  # the null block and a copy-on-write tail
# Shared memory of one block that a kernel can ask for, by compute capability; CUDA programming guide.
SHARED_MEMORY = {90: 227 * 1024, 100: 227 * 1024, 103: 227 * 1024, 120: 99 * 1024}


def refused(model: Model, release: Release, deployment: Deployment, row: Row) -> str | None:
    """Why the engine does not start with HiSparse, whatever its settings."""
    if not release.has("hisparse"):
        return f"vLLM {release.name} has no HiSparse (from 0.30.0 on)"
    if model.index_topk is None:
        return "HiSparse needs a model with a top-k indexer (DSA)"
    if deployment.pp > 1 or deployment.layer_range is not None:
        return "HiSparse does not run with pipeline parallelism"
    if deployment.dcp > 1:
        return "HiSparse does not run with decode context parallelism"
    if row.bytes % 16:
        return f"HiSparse takes rows of whole 16 bytes, not {row.bytes}"
    return None


def hot_rows(loaded: Loaded, model: Model, gpu: Gpu, release: Release, scheduler: Scheduler) -> int | Problem:
    """Rows a request keeps on the GPU: as given, or one top-k more than a decode step can select."""
    top_k, selected = model.index_topk or 0, scheduler.decode_query_len * (model.index_topk or 0)
    given = (loaded.spec.offload or Offload()).device_buffer_size
    rows = selected + top_k if given == "auto" else given
    where = loaded.where("offload.device_buffer_size")
    if rows < selected:
        what = f"a hot buffer of {rows} rows is smaller than the {selected} that one step selects"
        return Problem(where=where, what=what, remedy=f"give at least {selected}")
    if rows > MOST_HOT_ROWS:
        what = f"a hot buffer of {rows} rows does not fit the engine's 16-bit slot numbers"
        return Problem(where=where, what=what, remedy=f"give at most {MOST_HOT_ROWS}, or draft fewer tokens")
    needed, there = resolver_bytes(rows, selected), SHARED_MEMORY.get(gpu.capability)
    if release.has("hisparse_checks") and there is not None and needed > there:
        what = f"resolving {rows} hot rows takes {needed:,} B of shared memory, the {gpu.name} has {there:,} B"
        return Problem(where=where, what=what, remedy="lower device_buffer_size or num_speculative_tokens")
    return rows


def resolver_bytes(rows: int, selected: int) -> int:
    """Shared memory of one block of the residency resolver (`_check_residency_shared_memory`)."""
    return 4 * (2 * (selected + 1) + 3 * ceil_div(rows, 32) + 7) + 2 * rows


def tables(release: Release, scheduler: Scheduler, top_k: int, rows: int, groups: int) -> tuple[Buffer, ...]:
    """Tensors of all index groups beside the pool: residency, LRU order, resolved and swap rows, counters."""
    swaps = scheduler.decode_rows
    counters = 4 if release.has("hisparse_checks") else 2
    return (
        Buffer(line=TABLES, shape=(scheduler.max_num_seqs, rows), dtype="int32", count=groups),
        Buffer(line=TABLES, shape=(scheduler.max_num_seqs + 1, rows), dtype="int16", count=groups),
        Buffer(line=TABLES, shape=(swaps, top_k), dtype="int32", count=4 * groups),
        Buffer(line=TABLES, shape=(swaps,), dtype="int32", count=counters * groups),
        Buffer(line=TABLES, shape=(2,), dtype="int64", count=groups),
    )


class HostPool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The host pool of one replica: its blocks, bytes from one to the next, and whether its TP ranks share it."""

    blocks: int
    stride: int
    shared: bool
    given: bool

    @property
    def bytes(self) -> int:
        """Bytes of one copy."""
        return self.blocks * self.stride


def host_pool(launch: Launch, page_bytes: int, need: Demand, context: Demand, num_blocks: int) -> HostPool:
    """
    The pool as given, or of the least whole GiB that limits neither requests of max_model_len (`need`) nor those of
    workload.context (`context`), as far as the node's memory goes: vLLM itself has no default.
    """
    offload, deployment = launch.loaded.spec.offload or Offload(), launch.loaded.spec.deployment
    shared = launch.tp > 1 and deployment.pcp == 1 and launch.tp <= launch.ranks_per_node
    stride = ceil_div(page_bytes, HOST_PAGE_BYTES) * HOST_PAGE_BYTES if shared else page_bytes
    if offload.host_pool != "auto":
        return HostPool(blocks=offload.host_pool // stride, stride=stride, shared=shared, given=True)
    requests = min(gpu_requests(num_blocks, context), launch.extra.scheduler.max_num_seqs)
    blocks = max(
        need.host + SPARE_HOST_BLOCKS,
        int(gpu_concurrency(num_blocks, need) * need.host) + 1,
        requests * context.host,
    )
    size = ceil_div(blocks * stride, GIB) * GIB
    if isinstance(offload.host_memory, int):
        pools = max(launch.ranks_per_node // (launch.tp if shared else 1), 1)
        size = min(size, floor_to(int(offload.host_memory * HOST_SHARE) // pools, GIB))
    return HostPool(blocks=size // stride, stride=stride, shared=shared, given=False)
