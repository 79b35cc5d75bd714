"""
GPUs by the memory that their driver reports.

MiB are those of nvidia-smi or rocm-smi, not of the data sheet: an "80 GB" H100 reports 81,559 MiB = 85.5 GB,
a "141 GB" H200 143,771 MiB = 150.8 GB. A new card is one line of `GPUS`.
"""

from __future__ import annotations

import msgspec

from hsplan.errors import InputError, Problem, nearest, shown
from hsplan.units import MIB


class Gpu(msgspec.Struct, frozen=True):
    """
    One card.

    `reported_mib`: MiB of nvidia-smi or rocm-smi. `capability`: CUDA compute capability × 10, 0 on ROCm.
    `hbm_gb_s`, `link_gb_s`: nominal GB/s of its memory and of its host link, per direction.
    `per_node`: GPUs of the usual board. `evidence`: measured, engine_log, derived or assumed.
    """

    name: str
    reported_mib: int
    capability: int
    per_node: int
    hbm_gb_s: int
    link_gb_s: int
    evidence: str
    source: str
    rocm: str = ""

    @property
    def shared_bytes(self) -> int:
        """Shared memory, LDS on ROCm, that one block of threads can ask for."""
        return SHARED_KIB[self.rocm or self.capability] * 1024

    @property
    def warp_lanes(self) -> int:
        """Threads that run in step."""
        return 64 if self.rocm else 32

    @property
    def reported_bytes(self) -> int:
        """Bytes that the driver reports for the card."""
        return self.reported_mib * MIB


# By compute capability × 10 (CUDA programming guide), or AMD's architecture (its hardware specifications).
SHARED_KIB: dict[int | str, int] = {
    80: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, "gfx942": 64, "gfx950": 160,
}  # fmt: skip

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        # name, MiB, capability, per node, HBM GB/s, host link GB/s, evidence, source
        Gpu("a100", 81_920, 80, 8, 2_039, 32, "assumed", "capacity of ai-dynamo/aiconfigurator a100_sxm"),
        Gpu("a100-pcie", 81_920, 80, 8, 1_935, 32, "assumed", "aiconfigurator a100_pcie"),
        Gpu("l40s", 46_068, 89, 8, 864, 32, "engine_log", "aiconfigurator l40s (nvidia-smi, ECC on)"),
        Gpu("h100", 81_559, 90, 8, 3_350, 64, "engine_log", "nvidia-smi in ten public logs"),
        Gpu("h100-pcie", 81_559, 90, 8, 2_000, 64, "assumed", "as h100"),
        Gpu("h200", 143_771, 90, 8, 4_800, 64, "measured", "nvidia-smi in public logs and on a card"),
        Gpu("h20", 97_871, 90, 8, 4_000, 64, "engine_log", "nvidia-smi in a public log"),
        Gpu("h20-3e", 143_771, 90, 8, 4_800, 64, "assumed", "public logs say 141 GiB and 144 GB"),
        Gpu("gh200", 97_871, 90, 1, 4_000, 450, "engine_log", "nvidia-smi in two public logs"),
        Gpu("b200", 183_359, 100, 8, 7_700, 64, "engine_log", "nvidia-smi in two public logs"),
        Gpu("gb200", 189_471, 100, 4, 8_000, 225, "engine_log", "aiconfigurator gb200 (nvidia-smi)"),
        Gpu("b300", 275_040, 103, 8, 7_750, 128, "engine_log", "aiconfigurator b300_sxm, two public logs"),
        Gpu("gb300", 284_208, 103, 4, 8_000, 225, "engine_log", "aiconfigurator gb300 (nvidia-smi)"),
        Gpu("rtx-pro-6000", 97_887, 120, 8, 1_792, 64, "engine_log", "aiconfigurator rtx_pro_6000_server"),
        Gpu("mi300x", 196_592, 0, 8, 5_300, 64, "engine_log", "rocm-smi in three public logs", "gfx942"),
        Gpu("mi355x", 294_896, 0, 8, 8_000, 64, "engine_log", "rocm-smi in two public logs", "gfx950"),
    )
}


def gpu_named(name: str, where: str = "deployment.gpu") -> Gpu:
    """The card called `name`, in any case; raises InputError with the nearest known name."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise InputError(Problem(where=where, what=f"unknown GPU {shown(name)!r}", remedy=nearest(name.lower(), GPUS)))
    return gpu
