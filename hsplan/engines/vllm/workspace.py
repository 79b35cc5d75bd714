"""
The scratch buffer of a rank, which attention, the indexer and the experts take in turn: the largest request counts.

Here are those of attention and indexer. Sources: v1/worker/workspace.py, v1/attention/backends/mla/flashmla_sparse.py
and model_executor/layers/sparse_attn_indexer.py of 0.28.0 to 0.33.0.
"""

from __future__ import annotations

import msgspec

from hsplan.engines.base import Launch, Row
from hsplan.engines.vllm.releases import Release
from hsplan.units import ceil_div

ALIGNMENT = 256  # tensors of one request start at whole ones
GATHER_ROW_BYTES = 132  # index keys of a prefill, gathered
LATENT_BYTES, VALUE_BYTES = 576 * 2, 512 * 2  # a query and an upcast row, an output, in bf16
GATHERED_FOR_EACH_UPCAST = LATENT_BYTES // GATHER_ROW_BYTES
SHORT_LENGTH = 256 * 1024
KERNEL_HEADS = 64  # FlashMLA's kernels take whole ones


class Scratch(msgspec.Struct, frozen=True):
    """Bytes that one user of the buffer asks for, and their formula."""

    bytes: int
    formula: str


def index_keys(release: Release, length: int, rows: int, copies: int = 1) -> Scratch:
    """The keys that a prefill's indexer gathers from `rows` tokens or entries; `length` is max_model_len."""
    gathered = copies * GATHERED_FOR_EACH_UPCAST * workspace_factor(release, length)
    return Scratch(gathered * rows * GATHER_ROW_BYTES, f"{gathered} × {rows:,} × {GATHER_ROW_BYTES} B")


def attention_scratch(launch: Launch, row: Row) -> Scratch:
    """The larger request of a DSA layer: index keys, gathered from other ranks and put in order too, or FlashMLA's."""
    keys = index_keys(launch.release, launch.context_len, launch.context_len, copies=3 if _gathers(launch) else 1)
    if row.attention_backend != "flashmla_sparse":
        return keys
    return max(_flashmla(launch, packed=row.format == "fp8_packed"), keys, key=lambda scratch: scratch.bytes)


def workspace_factor(release: Release, length: int) -> int:
    """`sparse_mla_prefill_workspace_factor`, 5 before it was one."""
    return 5 if not release.has("workspace_factor") or length <= SHORT_LENGTH else 2


def _flashmla(launch: Launch, *, packed: bool) -> Scratch:
    """
    Queries put together; for packed rows also rows of a prefill in bf16, and from 0.31.0 on queries and outputs of
    whole `KERNEL_HEADS`, and outputs. With PCP and DCP a rank's share of the rows stands beside those of all.
    """
    release, tokens = launch.release, launch.extra.scheduler.max_num_batched_tokens
    heads = (launch.model.num_attention_heads or 0) // launch.tp
    padded = ceil_div(heads, KERNEL_HEADS) * KERNEL_HEADS
    parts, terms = [], []
    if release.has("flashmla_queries"):
        joined = padded if not packed and release.has("flashmla_padded_queries") else heads
        parts.append((tokens, joined * LATENT_BYTES))
        terms.append(f"{joined} heads × {LATENT_BYTES} B")
    if packed and release.has("flashmla_outputs"):
        heads *= _gathered_heads(launch)
        padded = ceil_div(heads, KERNEL_HEADS) * KERNEL_HEADS
        parts += [(tokens, padded * LATENT_BYTES), (tokens, padded * VALUE_BYTES), (tokens, heads * VALUE_BYTES)]
        terms += [f"{padded} × ({LATENT_BYTES} + {VALUE_BYTES}) B", f"{heads} × {VALUE_BYTES} B"]
    written = [f"{tokens:,} tokens × ({' + '.join(terms)})"] if terms else []
    if packed:
        rows = workspace_factor(release, launch.context_len) * launch.context_len
        rows += rows // launch.loaded.spec.deployment.dcp if _gathers(launch) else 0
        parts.append((rows, LATENT_BYTES))
        written.append(f"{rows:,} rows × {LATENT_BYTES} B")
    return Scratch(sum(whole(rows * size) for rows, size in parts), " + ".join(written))


def _gathers(launch: Launch) -> bool:
    """Whether prefills gather rows and index keys of other ranks (`pcp_dcp_kv_gather`)."""
    deployment = launch.loaded.spec.deployment
    return deployment.pcp > 1 and deployment.dcp > 1 and bool(launch.release.has("pcp_dcp_gather"))


def _gathered_heads(launch: Launch) -> int:
    """Ranks whose heads one rank takes in a prefill: all of TP where DCP spans it too."""
    deployment = launch.loaded.spec.deployment
    return launch.tp if _gathers(launch) and deployment.dcp > deployment.pcp else 1


def whole(size: int) -> int:
    """`size` in whole `ALIGNMENT`."""
    return ceil_div(size, ALIGNMENT) * ALIGNMENT
