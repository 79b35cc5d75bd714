"""
vLLM releases and dated builds, as one table of dated switches.

A build has a switch when its date is not before the switch's. The date of a release is the build date in its
published wheel; the switches of every release from 0.24.0 to 0.33.0 were read in that wheel, but for those that say
"read in 0.28.0", which were not looked for before it. Where only the first release with a change is known, the change
counts from that release on and builds between carry a note. How
concurrency counts groups (#48317) is no switch: a single group counts the same both ways.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hsplan.engines.dated import Build, Calendar, switches_on
from hsplan.spec import Loaded

RELEASES = {
    "0.24.0": "2026-06-29",
    "0.25.0": "2026-07-11",
    "0.25.1": "2026-07-12",
    "0.26.0": "2026-07-25",
    "0.27.0": "2026-08-10",
    "0.27.1": "2026-08-11",
    "0.28.0": "2026-08-25",
    "0.29.0": "2026-09-09",
    "0.30.0": "2026-09-22",
    "0.31.0": "2026-10-03",
    "0.32.0": "2026-10-17",
    "0.33.0": "2026-11-01",
}
LATEST = "0.33.0"
FIRST_BUILD = "2025-11-01"
CALENDAR = Calendar("vLLM", RELEASES, LATEST, FIRST_BUILD)

SWITCHES = {
    "graphs_estimated": "2026-04-27",  # #30515, on from 0.20.0: the budget leaves out an estimate of the CUDA graphs
    "utilization_092": "2026-04-27",  # first release 0.20.0: default of gpu_memory_utilization, 0.90 before
    "tokens_by_concurrency": "2026-04-28",  # #41069: tokens = int(concurrency × max_model_len)
    "topk_sharing": "2026-04-30",  # #37735: layers reuse top-k, every one keeps its indexer
    "elision": "2026-06-19",  # #45895: shared layers build neither indexer nor index-K
    "elision_of_weights": "2026-06-28",  # #46600
    "page_of_backend": "2026-06-29",  # read in 0.24.0: dense MLA takes the smallest page that its backend has
    "v4_plain_rows": "2026-07-11",  # first release 0.25.0: plain rows of DeepSeek-V4 in pages of whole 512 B
    "flash_attn_sparse": "2026-07-11",  # first release 0.25.0: bf16 rows on SM90
    "dcp_flashinfer_sparse": "2026-07-25",  # first release 0.26.0: FlashInfer's sparse MLA takes DCP
    "pcp_replicates": "2026-07-25",  # first release 0.26.0: PCP alone no longer divides a request's tokens
    "in_flight_of_all_steps": "2026-07-25",  # #47728, first release 0.26.0: windows count the tokens of every step
    "v4_packed": "2026-08-10",  # #48993 and #48317, first release 0.27.0: groups of DeepSeek-V4, and blocks of each
    "large_gpu_batches": "2026-08-25",  # first release 0.28.0: 16,384 batched tokens from 160 GiB on
    "flashmla_queries": "2026-08-25",  # read in 0.28.0: FlashMLA's sparse backend has a workspace for queries too
    "block_scores": "2026-08-25",  # read in 0.28.0: MiniMax-M3 on SM10x keeps a buffer of all scores
    "experts_by_ep": "2026-08-25",  # read in 0.28.0: fp8 experts of SM90 by Triton, with EP by FlashInfer
    "v4_sequence_parallel": "2026-08-25",  # read in 0.28.0: whole shared experts of DeepSeek-V4 with tp, dp and ep
    "sparse_module": "2026-09-09",  # first release 0.29.0: V3.2 and GLM-5 are served by models/deepseek_v32
    "flashmla_padded_queries": "2026-09-09",  # first release 0.29.0: bf16 queries of whole 64 heads
    "dcp_flashmla_sparse": "2026-09-09",  # first release 0.29.0: FlashMLA's takes DCP with packed rows
    "null_block_reserved": "2026-09-09",  # first release 0.29.0: the start-up check leaves out block 0
    "hisparse": "2026-09-22",  # #53781, first release 0.30.0
    "pcp_dcp_gather": "2026-09-22",  # first release 0.30.0: prefills with PCP and DCP gather rows and index keys
    "dcp_statistics": "2026-09-22",  # #50781, first release 0.30.0: FlashInfer's workspace on SM10x grows under DCP
    "index_groups": "2026-09-22",  # first release 0.30.0: every layer that computes top-k has a table of rows
    "v41": "2026-09-22",  # first release 0.30.0: DeepSeek-V4.1
    "v41_mega": "2026-10-03",  # first release 0.31.0: its mega kernel on SM10x, entries in fp4
    "index_groups_of_rows": "2026-10-03",  # first release 0.31.0: the tables have no ids of requests
    "flashmla_outputs": "2026-10-03",  # first release 0.31.0: workspaces for padded queries and for outputs too
    "hisparse_checks": "2026-10-03",  # first release 0.31.0: least host pool, shared memory, ids of swap rows
    "workspace_factor": "2026-10-17",  # first release 0.32.0: workspaces of 2 × max_model_len above 256 Ki tokens
    "glm_fp8_on_sm100": "2026-10-17",  # #53138, first release 0.32.0: GLM's KV rows are fp8 on SM10x
    "v41_whole_rows": "2026-11-01",  # first release 0.33.0: blocks of DeepSeek-V4.1 on SM10x in whole rows
    "flash_attn_4_sparse": "2026-11-01",  # first release 0.33.0: bf16 rows of at most 16 heads on SM10x
}
WORKSPACES_READ = "2026-08-25"  # 0.28.0
UNREAD = "what attention and experts share of a workspace was read from 0.28.0 on, and is not taken off before it"
# Builds between two releases of which only the later has these changes.
UNDATED = (
    ("2025-11-01", "2026-06-29", "dense MLA takes the smallest page of its backend (read in 0.24.0)"),
    ("2026-07-12", "2026-07-25", "PCP alone replicates the cache (first release 0.26.0)"),
    ("2026-07-08", "2026-07-25", "windows count the tokens of every step in flight (#47728, first release 0.26.0)"),
    ("2026-07-22", "2026-08-10", "DeepSeek-V4 in dense blocks, counted by group (#48993, #48317, 0.27.0)"),
    ("2026-08-11", "2026-08-25", "larger batches from 160 GiB on (first release 0.28.0)"),
    ("2026-05-01", "2026-08-25", "whole shared experts of DeepSeek-V4 with tp, dp and ep (read in 0.28.0)"),
    ("2026-08-25", "2026-09-09", "whole dense MLPs with tp, dp and ep, FlashMLA's padded bf16 queries (0.29.0)"),
    ("2026-06-29", "2026-08-25", "queries in FlashMLA's workspace, scores of MiniMax-M3 on SM10x (read in 0.28.0)"),
    ("2026-09-22", "2026-10-03", "outputs in FlashMLA's workspace, smaller tables of index groups (0.31.0)"),
    ("2026-09-09", "2026-09-22", "HiSparse, tables of index groups, workspaces of DCP (first release 0.30.0)"),
    ("2026-09-22", "2026-10-03", "fp4 entries of DeepSeek-V4.1 on SM10x (first release 0.31.0)"),
    ("2026-10-17", "2026-11-01", "blocks of DeepSeek-V4.1 on SM10x in whole rows (first release 0.33.0)"),
    ("2026-09-22", "2026-10-03", "start-up checks of HiSparse (first release 0.31.0)"),
    ("2026-10-03", "2026-10-17", "smaller workspaces above 256 Ki tokens, fp8 rows of GLM on SM10x (0.32.0)"),
)


class Release(Build, frozen=True):
    """A build of vLLM."""

    @property
    def schedule(self) -> tuple[str, ...]:
        """The rules by which this build finds layers that reuse top-k; it never reads `indexer_types`."""
        return ("index_topk_pattern", "index_topk_freq") if self.has("topk_sharing") else ()

    @property
    def notes(self) -> list[str]:
        """What is uncertain about a dated build, and about releases before those whose workspaces were read."""
        read = [] if self.date >= WORKSPACES_READ else [UNREAD]
        return [*self.uncertain(UNDATED), *read]


def release_of(loaded: Loaded) -> Release:
    """
    The release that a spec names: `latest`, `0.24` to `0.33.0`, or `main-YYYY-MM-DD` from 2025-11-01 on.

    Raises UnsupportedError, with the nearest known one, for anything else.
    """
    name = CALENDAR.name_of(loaded.spec.deployment.release)
    name = name + ".0" if re.fullmatch(r"0\.\d{1,4}", name) else name
    return _release(name, CALENDAR.day_of(name, loaded.where("deployment.release")))


@lru_cache(maxsize=512)
def _release(name: str, day: str) -> Release:
    return Release(name, day, switches_on(day, SWITCHES))
