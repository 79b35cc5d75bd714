"""The cards: MiB as nvidia-smi or rocm-smi print them, never the gigabytes of a data sheet."""

from __future__ import annotations

import pytest

from hsplan import InputError
from hsplan.hardware import GPUS, gpu_named

REPORTED = {
    # name: MiB, bytes, compute capability x 10, GPUs per board, HBM GB/s
    "a100": (81_920, 85_899_345_920, 80, 8, 2_039),
    "a100-pcie": (81_920, 85_899_345_920, 80, 8, 1_935),
    "l40s": (46_068, 48_305_799_168, 89, 8, 864),
    "h100": (81_559, 85_520_809_984, 90, 8, 3_350),
    "h100-pcie": (81_559, 85_520_809_984, 90, 8, 2_000),
    "h200": (143_771, 150_754_820_096, 90, 8, 4_800),
    "h20": (97_871, 102_625_181_696, 90, 8, 4_000),
    "h20-3e": (143_771, 150_754_820_096, 90, 8, 4_800),
    "gh200": (97_871, 102_625_181_696, 90, 1, 4_000),
    "b200": (183_359, 192_265_846_784, 100, 8, 7_700),
    "gb200": (189_471, 198_674_743_296, 100, 4, 8_000),
    "b300": (275_040, 288_400_343_040, 103, 8, 7_750),
    "gb300": (284_208, 298_013_687_808, 103, 4, 8_000),
    "rtx-pro-6000": (97_887, 102_641_958_912, 120, 8, 1_792),
    "mi300x": (196_592, 206_141_652_992, 0, 8, 5_300),
    "mi355x": (294_896, 309_220_868_096, 0, 8, 8_000),
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_card_has_the_memory_that_its_driver_reports(name):
    gpu = gpu_named(name)
    found = (gpu.reported_mib, gpu.reported_bytes, gpu.capability, gpu.per_node, gpu.hbm_gb_s)
    assert found == REPORTED[name]


def test_every_card_is_checked_here():
    assert set(GPUS) == set(REPORTED)


def test_only_the_rocm_cards_name_an_architecture_of_amd():
    assert {name: gpu.rocm for name, gpu in GPUS.items() if gpu.rocm} == {"mi300x": "gfx942", "mi355x": "gfx950"}


@pytest.mark.parametrize(
    ("name", "kib", "lanes"),
    [
        ("a100", 163, 32), ("l40s", 99, 32), ("h200", 227, 32), ("b200", 227, 32), ("gb300", 227, 32),
        ("rtx-pro-6000", 99, 32), ("mi300x", 64, 64), ("mi355x", 160, 64),
    ],
)  # fmt: skip
def test_a_block_has_the_shared_memory_and_lanes_of_its_architecture(name, kib, lanes):
    gpu = gpu_named(name)
    assert (gpu.shared_bytes, gpu.warp_lanes) == (kib * 1024, lanes)


def test_every_card_knows_its_shared_memory():
    assert all(gpu.shared_bytes >= 64 * 1024 for gpu in GPUS.values())


def test_every_card_says_where_its_numbers_come_from():
    assert all(gpu.source and gpu.evidence in ("measured", "engine_log", "derived", "assumed") for gpu in GPUS.values())


def test_a_name_is_read_in_any_case():
    assert gpu_named("H200") is gpu_named("h200")
    assert gpu_named("RTX-Pro-6000").reported_mib == 97_887


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("h2000", "did you mean h200?"),
        ("B20", "did you mean b200?"),
        ("mi355", "did you mean mi355x?"),
        ("rtxpro6000", "did you mean rtx-pro-6000?"),
    ],
)
def test_an_unknown_card_is_refused_with_the_nearest_name(name, remedy):
    with pytest.raises(InputError) as caught:
        gpu_named(name)
    assert caught.value.exit_code == 2
    assert caught.value.lines() == [f"deployment.gpu: unknown GPU {name!r}", f"  {remedy}"]


@pytest.mark.parametrize("name", ["", "tpu-v5", "x" * 100_000, "\x1b[2J", "\ud800"])
def test_a_card_unlike_any_other_is_refused_with_the_list(name):
    with pytest.raises(InputError) as caught:
        gpu_named(name)
    head, remedy = caught.value.lines()
    assert remedy.startswith("  known: a100, ")
    assert len(head) < 160
    assert head.isprintable()
