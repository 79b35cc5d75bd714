"""
SGLang releases and dated builds, as one table of dated switches.

A build has a switch when its date is not before the switch's. The date of a release is that of its published
wheel; the switches of every release from 0.5.17 to 0.5.23 were read in that wheel. Where only the first release
with a change is known, the change counts from that release on and builds between the two releases carry a note.
"""

from __future__ import annotations

from functools import lru_cache

from hsplan.engines.dated import Build, Calendar, switches_on
from hsplan.spec import Loaded

RELEASES = {
    "0.5.17": "2026-08-08",
    "0.5.18": "2026-08-21",
    "0.5.19": "2026-09-04",
    "0.5.20": "2026-09-18",
    "0.5.21": "2026-10-01",
    "0.5.22": "2026-10-15",
    "0.5.23": "2026-10-30",
}
LATEST = "0.5.23"
FIRST_RELEASE = RELEASES["0.5.17"]  # the day of the first wheel that was read
FIRST_BUILD = "2025-10-08"

SWITCHES = {
    "rocm_fuses_under_ep": "2025-11-07",  # #12201, in review the day before
    "raw_fp8_trtllm": "2026-02-16",  # #18389: trtllm keeps fp8 rows raw, 576 B
    "draft_reserve_4gib": "2026-02-26",  # automatic fraction leaves 4 GiB, not 2, for EAGLE
    "prefill_graph_reserve": "2026-03-02",  # #16331: prefill graphs, 1536 MiB
    "hisparse": "2026-03-22",  # #20343
    "raw_fp8_tilelang": "2026-04-03",  # #21511, ROCm
    "topk_sharing": "2026-04-05",  # #21405: index_topk_pattern and index_topk_freq
    "topk_offset": "2026-06-06",  # #27114: index_skip_topk_offset
    "draft_charged": "2026-06-12",  # #23862: draft KV in the cell, no reserve in the fraction
    "raw_fp8_aiter": "2026-06-19",  # #26639, ROCm
    "draft_loaded_first": "2026-06-21",  # #28855: draft weights are loaded before the budget is read
    "pd_decode_activations": "2026-07-04",  # #29615
    "layer_split": "2026-07-09",  # #29421: CP layer split of DSA prefill nodes
    "true_row_charged": "2026-07-27",  # #31992: 656 B charged where stored; index × ratio under HiSparse
    "sm120_packed": "2026-07-28",  # #26928: GLM fp8 on SM12x packs rows
    "hisparse_sm120": "2026-08-11",  # #33075
    "hisparse_prefetch": "2026-08-11",  # #34329: miss plan shared with skip layers
    "elision": "2026-08-17",  # #30531: index-K elision, no indexer on skip layers, additive draft term
    "multimodal_reserve": "2026-08-21",  # first release 0.5.18
    "mla_prefill_graph": "2026-08-21",  # first release 0.5.18
    "kv_dtype_of_fp8": "2026-08-21",  # first release 0.5.18: kv_cache_quant_algo of fp8 checkpoints, dense MLA
    "kv_dtype_of_compressed": "2026-09-18",  # first release 0.5.20: compressed-tensors kv_cache_scheme, dense MLA
    "table_in_dcp_pages": "2026-09-18",  # first release 0.5.20: request table by pages × dcp
    "indexer_types": "2026-09-18",  # first release 0.5.20: first in precedence
    "linker_blocks_elision": "2026-09-18",  # first release 0.5.20
    "row_by_pd_role": "2026-09-18",  # first release 0.5.20
    "pp_without_prefill_graph": "2026-09-18",  # first release 0.5.20
    "without_cutlass_mla": "2026-09-18",  # gone in 0.5.20
    "v4_trtllm": "2026-09-18",  # first release 0.5.20: uniform fp8 rows of DeepSeek-V4
    "small_gpu_defaults": "2026-09-18",  # first release 0.5.20: chunk 4096, max_bs 48/160 below 35 GiB
    "rocm_triton": "2026-09-18",  # first release 0.5.20: default DSA backend on ROCm
    "v4_window_cap": "2026-10-01",  # first release 0.5.21: V4's windows by the request cap, padded pages charged
    "m3_hisparse": "2026-10-01",  # first release 0.5.21
    "m3_index_charged": "2026-10-01",  # first release 0.5.21: M3's index key is charged as stored
    "m3_fp8_index_gfx950": "2026-10-01",  # first release 0.5.21
    "v4_index_padded": "2026-10-15",  # first release 0.5.22: V4's index keys have as many pages as their entries
    "elision_under_pd": "2026-10-15",  # first release 0.5.22: elision with PD and HiCache on CUDA
    "draft_times_ratio": "2026-10-15",  # first release 0.5.22: draft KV × ratio under HiSparse
    "max_bs_capped": "2026-10-15",  # first release 0.5.22: by --max-running-requests
    "cuda_tilelang_fp8": "2026-10-15",  # first release 0.5.22: raw fp8 rows with tilelang on CUDA
    "dsa_dcp": "2026-10-15",  # first release 0.5.22
    "hot_buffer_in_pages": "2026-10-15",  # first release 0.5.22
    "glm_draft_fuses": "2026-10-15",  # first release 0.5.22: the gate knows GLM's MTP layers by their own name
    "without_tokenspeed_mla": "2026-10-30",  # gone in 0.5.23
    "at_least_one_request": "2026-10-30",  # first release 0.5.23: max(1, requests // dp)
    "v41": "2026-10-30",  # 0.5.23: DeepSeek-V4.1 with padded pages of ratio 1 and 2; earlier rules were not checked
    "m3_fp8_index_hopper": "2026-10-30",  # first release 0.5.23
}
# Builds between two releases of which only the later has these changes.
UNDATED = (
    ("2026-09-04", "2026-09-18", "indexer_types first, external linker, PD role (first release 0.5.20)"),
    ("2026-09-18", "2026-10-01", "DeepSeek-V4's windows, MiniMax-M3's HiSparse and index key (first release 0.5.21)"),
    ("2026-10-01", "2026-10-15", "elision under PD and HiCache, draft KV × ratio (first release 0.5.22)"),
)
CALENDAR = Calendar("SGLang", RELEASES, LATEST, FIRST_BUILD)


class Release(Build, frozen=True):
    """A build of SGLang."""

    def lacks_backend(self, name: str) -> bool:
        """Whether an attention backend of earlier builds is gone."""
        return f"without_{name}" in self.switches

    @property
    def schedule(self) -> tuple[str, ...]:
        """The rules by which this build finds skip layers, first present wins."""
        if not self.has("topk_sharing"):
            return ()
        if not self.has("topk_offset"):
            return ("index_topk_pattern", "index_topk_freq without offset")
        rules: tuple[str, ...] = ("index_topk_pattern", "index_topk_freq")
        if self.has("elision"):
            rules = ("cli_factor", *rules)
        return ("indexer_types", *rules) if self.has("indexer_types") else rules

    @property
    def notes(self) -> list[str]:
        """What is uncertain about a dated build."""
        return self.uncertain(UNDATED)


def release_of(loaded: Loaded) -> Release:
    """
    The release that a spec names: `latest`, `0.5.17` to `0.5.23`, or `main-YYYY-MM-DD` from 2025-10-08 on.

    Raises UnsupportedError, with the nearest known one, for anything else.
    """
    name = CALENDAR.name_of(loaded.spec.deployment.release)
    return _release(name, CALENDAR.day_of(name, loaded.where("deployment.release")))


@lru_cache(maxsize=512)
def _release(name: str, day: str) -> Release:
    return Release(name, day, switches_on(day, SWITCHES))
