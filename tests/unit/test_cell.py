"""Bytes per token that SGLang divides its budget by, as published for each release, and what it then stores."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, DEEPSEEK_V3_2, GLM_5, GLM_5_2, LONGCAT_FLASH, spec_of

import hsplan
from hsplan import InputError, UnsupportedError

R17 = ("0.5.17",)
R18_TO_21 = ("0.5.18", "0.5.19", "0.5.20", "0.5.21")
R22_ON = ("0.5.22", "0.5.23")
R18_ON = (*R18_TO_21, *R22_ON)
EVERY = (*R17, *R18_ON)

RAW = {"gpu": "gb300", "tp": 4}
PACKED = {"gpu": "h200", "kv_cache_dtype": "fp8_e4m3"}
BF16 = {"gpu": "h200", "kv_cache_dtype": "bfloat16"}
MTP = {"draft_layers": 1}
PD_PREFILL = {"disaggregation": "prefill"}
PD_DECODE = {"disaggregation": "decode"}
HICACHE = {"hierarchical_cache": True}
LINKER = {"unified_cache_linker": True}


def rates(model, release, scenario=None, **keys):
    """The rates of a scenario; of the one as launched when none is named."""
    plan = hsplan.plan(spec_of(model, **{"release": release, "kv_budget": "64GiB", **keys})).to_dict()
    return plan["scenarios"][scenario or plan["as_launched"]]["bytes_per_token"]


def charged(model, release, scenario=None, **keys):
    return rates(model, release, scenario, **keys)["charged"]


def by_release(old, middle, new):
    """One case a release from the three columns of the published table."""
    columns = ((R17, old), (R18_TO_21, middle), (R22_ON, new))
    return [(release, value) for releases, value in columns for release in releases]


def cases(*rows):
    return [
        pytest.param(release, keys, cell, id=f"{name} {release}")
        for name, keys, *columns in rows
        for release, cell in by_release(*columns)
    ]


@pytest.mark.parametrize(
    ("release", "keys", "cell"),
    cases(
        ("raw, MTP", {**RAW, **MTP}, 55_932, 48_408, 48_408),
        ("raw, MTP, prefill", {**RAW, **MTP, **PD_PREFILL}, 55_932, 55_932, 48_408),
        ("raw, MTP, decode", {**RAW, **MTP, **PD_DECODE}, 55_932, 55_932, 48_408),
        ("raw, MTP, HiCache", {**RAW, **MTP, **HICACHE}, 55_932, 55_932, 48_408),
        ("packed, MTP", {**PACKED, **MTP}, 62_252, 54_728, 54_728),
        ("bf16, MTP", {**BF16, **MTP}, 101_436, 93_912, 93_912),
        ("packed, r 2, MTP", {**PACKED, **MTP, "offload": {}}, 72_680, 72_680, 73_336),
        ("packed, r 2", {**PACKED, "offload": {}}, 71_760, 71_760, 71_760),
        ("raw", RAW, 55_224, 47_700, 47_700),
        ("packed", PACKED, 61_464, 53_940, 53_940),
        ("bf16", BF16, 100_152, 92_628, 92_628),
    ),
)
def test_the_cell_of_glm_5_2_is_the_published_one(release, keys, cell):
    assert charged(GLM_5_2, release, **keys) == cell


@pytest.mark.parametrize(
    ("release", "cell"),
    [
        ("0.5.18", 47_700),
        ("0.5.19", 47_700),
        ("0.5.20", 55_224),
        ("0.5.21", 55_224),
        ("0.5.22", 55_224),
        ("0.5.23", 55_224),
    ],
)
def test_the_external_linker_switches_elision_off_from_0_5_20_on(release, cell):
    assert charged(GLM_5_2, release, **RAW, **LINKER) == cell


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize(
    ("keys", "cell"), [(RAW, 55_224), (PACKED, 61_464), (BF16, 100_152)], ids=["raw", "packed", "bf16"]
)
def test_glm_5_shares_nothing_and_pays_for_every_layer(release, keys, cell):
    assert charged(GLM_5, release, **keys) == cell


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize(
    ("keys", "cell"), [(RAW, 43_188), (PACKED, 48_068), (BF16, 78_324)], ids=["raw", "packed", "bf16"]
)
def test_the_cell_of_deepseek_v3_2_is_the_published_one(release, keys, cell):
    assert charged(DEEPSEEK_V3_2, release, **keys) == cell


@pytest.mark.parametrize("release", R18_ON)
@pytest.mark.parametrize(
    ("model", "keys", "cell", "draft"),
    [
        (DEEPSEEK_V3_2, BF16, 79_608, 1_284),
        (DEEPSEEK_V3_2, PACKED, 48_856, 788),
        (DEEPSEEK_V3_2, RAW, 43_896, 708),
        (GLM_5_2, RAW, 48_408, 708),
        (GLM_5_2, PACKED, 54_728, 788),
        (GLM_5_2, BF16, 93_912, 1_284),
    ],
)
def test_one_mtp_layer_adds_its_own_row_and_index_key(release, model, keys, cell, draft):
    found = rates(model, release, **keys, **MTP)
    assert (found["charged"], found["draft"], found["stored_draft"]) == (cell, draft, draft)


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize(
    ("keys", "cell", "with_draft"), [(BF16, 70_272, 71_424), (PACKED, 35_136, 35_712)], ids=["bf16", "fp8"]
)
def test_plain_mla_pays_no_index_term(release, keys, cell, with_draft):
    found = rates(DEEPSEEK_V3, release, **keys)
    assert (found["charged"], found["stored_index"]) == (cell, 0)
    assert charged(DEEPSEEK_V3, release, **keys, **MTP) == with_draft


def test_the_proportional_draft_term_is_a_truncated_double():
    """27,612 × (1 + 1/39) is 28,320 in integers, and 28,319 where the engine computes it."""
    model = {**GLM_5, "num_hidden_layers": 39}
    assert charged(model, "0.5.17", **RAW) == 27_612
    assert charged(model, "0.5.17", **RAW, **MTP) == 28_319
    assert charged(model, "0.5.18", **RAW, **MTP) == 28_320


def test_the_proportional_draft_term_is_a_truncated_double_under_offload_too():
    keys = {**PACKED, "offload": {"host_to_device_ratio": 4}}
    assert charged(GLM_5_2, "0.5.17", **keys) == 92_352
    assert charged(GLM_5_2, "0.5.17", **keys, draft_layers=2) == 94_719


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize(("ratio", "cell"), [(1, 61_464), (2, 71_760), (4, 92_352), (5, 102_648), (10, 154_128)])
def test_index_keys_of_the_host_tokens_are_charged_to_each_device_token(release, ratio, cell):
    keys = {**PACKED, "offload": {"host_to_device_ratio": ratio}}
    found = rates(GLM_5_2, release, **keys)
    assert (found["charged"], found["stored_kv"], found["stored_index"]) == (cell, 51_168, 10_296 * ratio)


def test_offload_in_bf16_is_charged_the_wide_row():
    assert charged(GLM_5_2, "0.5.23", **BF16, offload={}) == 110_448


@pytest.mark.parametrize(("ratio", "cell"), [(2, 56_712), (4, 62_256), (5, 65_028), (10, 78_888)])
def test_what_elision_under_offload_would_bring_is_priced_beside_it(ratio, cell):
    keys = {**PACKED, "offload": {"host_to_device_ratio": ratio}}
    plan = hsplan.plan(spec_of(GLM_5_2, kv_budget="64GiB", **keys)).to_dict()
    assert plan["as_launched"] == "offload"
    assert plan["scenarios"]["elided+offload"]["bytes_per_token"]["charged"] == cell
    assert plan["scenarios"]["elided+offload"]["engine_applies"] is False


@pytest.mark.parametrize(
    ("release", "draft"), [("0.5.18", 656 + 132 * 2), ("0.5.21", 656 + 132 * 2), ("0.5.22", 656 * 2 + 132 * 2)]
)
def test_draft_rows_are_multiplied_by_the_ratio_from_0_5_22_on(release, draft):
    assert rates(GLM_5_2, release, **PACKED, **MTP, offload={})["draft"] == draft


@pytest.mark.parametrize("release", EVERY)
def test_no_release_runs_elision_under_offload(release):
    scenarios = hsplan.plan(spec_of(GLM_5_2, release=release, kv_budget="64GiB", **PACKED)).to_dict()["scenarios"]
    assert scenarios["elided+offload"]["engine_applies"] is False
    assert scenarios["offload"]["engine_applies"] is True
    assert scenarios["elided"]["engine_applies"] is (release != "0.5.17")
    assert scenarios["baseline"]["engine_applies"] is (release == "0.5.17")


@pytest.mark.parametrize("release", EVERY)
def test_without_skip_layers_every_scenario_is_one_the_engine_runs(release):
    plan = hsplan.plan(spec_of(GLM_5, release=release, kv_budget="64GiB", **PACKED)).to_dict()
    assert plan["as_launched"] == "baseline"
    assert all(entry["engine_applies"] for entry in plan["scenarios"].values())
    assert plan["scenarios"]["elided"]["bytes_per_token"] == plan["scenarios"]["baseline"]["bytes_per_token"]


@pytest.mark.parametrize(
    ("build", "model", "keys", "cell"),
    [
        # No draft term before #23862.
        ("main-2026-06-11", GLM_5, {**RAW, **MTP}, 55_224),
        ("main-2026-06-12", GLM_5, {**RAW, **MTP}, 55_932),
        ("main-2026-06-12", GLM_5, {**PACKED, **MTP}, 55_932),
        # The true row and index × ratio since #31992.
        ("main-2026-07-26", GLM_5_2, {**PACKED, "offload": {}}, 55_224),
        ("main-2026-07-27", GLM_5_2, {**PACKED, "offload": {}}, 71_760),
        # Elision and the additive term since #30531.
        ("main-2026-08-16", GLM_5_2, {**RAW, **MTP}, 55_932),
        ("main-2026-08-17", GLM_5_2, {**RAW, **MTP}, 48_408),
        ("main-2026-08-17", GLM_5_2, {**RAW, **MTP, **PD_PREFILL}, 55_932),
        ("main-2026-10-14", GLM_5_2, {**RAW, **MTP, **PD_PREFILL}, 55_932),
        ("main-2026-10-15", GLM_5_2, {**RAW, **MTP, **PD_PREFILL}, 48_408),
    ],
)
def test_a_dated_build_charges_by_the_rule_of_its_day(build, model, keys, cell):
    assert charged(model, build, **keys) == cell


# Pipeline stages


@pytest.mark.parametrize(
    ("layer_range", "cell"),
    [
        # 12 owners among layers 0 to 38, 9 among 39 to 77; 576 × 39 + 132 × owners.
        ([0, 39], 24_048),
        ([39, 78], 23_652),
        # 7 owners: 0, 1, 2, 6, 10, 14, 18.
        ([0, 19], 11_868),
        # One owner, layer 42, in [41, 45); none in [43, 46).
        ([41, 45], 2_436),
        ([43, 46], 1_728),
        ([77, 78], 576),
    ],
)
def test_a_stage_is_charged_for_its_own_layers_by_global_ids(layer_range, cell):
    assert charged(GLM_5_2, "0.5.23", **RAW, layer_range=layer_range) == cell


@pytest.mark.parametrize(("pp", "cell"), [(2, 24_048), (4, 12_180)])
def test_the_stage_with_the_largest_cell_binds_the_pipeline(pp, cell):
    """78 layers over 4 stages are 19, 19, 20 and 20; the last two own 5 indexers each."""
    assert charged(GLM_5_2, "0.5.23", gpu="gb300", tp=4, nodes=pp, pp=pp) == cell


def test_the_pipeline_has_the_tokens_of_its_worst_stage():
    plan = hsplan.plan(spec_of(GLM_5_2, gpu="gb300", tp=4, nodes=2, pp=2, kv_budget="64GiB")).to_dict()
    # 68,719,476,736 // 24,048 = 2,857,596, in pages of 64.
    assert plan["scenarios"]["elided"]["max_total_num_tokens"] == 2_857_536


def test_a_stage_count_beyond_the_layers_is_refused():
    with pytest.raises(InputError, match="79 stages for 78 layers"):
        hsplan.plan(spec_of(GLM_5_2, tp=1, pp=79, gpus=79, kv_budget="64GiB"))


# Context parallelism


@pytest.mark.parametrize(
    ("release", "cell", "with_draft"),
    [
        # ceil(78 / 4) + 1 = 21 layers a rank.
        ("0.5.17", 21 * 656 + 21 * 132, 16_760),
        ("0.5.18", 21 * 656 + 78 * 132, 24_860),
        ("0.5.21", 21 * 656 + 78 * 132, 24_860),
        # The first rank owns most: layers 0, 1, 2, 6, 10, 14 and 18, and the scratch layer.
        ("0.5.22", 21 * 656 + 8 * 132, 15_620),
        ("0.5.23", 21 * 656 + 8 * 132, 15_620),
    ],
)
def test_the_layer_split_of_a_prefill_node_charges_what_its_release_does(release, cell, with_draft):
    keys = {**PACKED, **PD_PREFILL, "cp": 4}
    assert charged(GLM_5_2, release, **keys) == cell
    assert charged(GLM_5_2, release, **keys, **MTP) == with_draft


@pytest.mark.parametrize("keys", [{}, PD_DECODE], ids=["colocated", "decode"])
def test_context_parallelism_elsewhere_shards_nothing(keys):
    assert charged(GLM_5, "0.5.23", **PACKED, cp=4, **keys) == 61_464


# Decode context parallelism


def test_dcp_replicates_the_index_keys_from_0_5_22_on():
    keys = {"gpu": "b200", "dcp": 2}
    # 78 × 576 + 21 × 132 × 2, and one MTP layer of 708 on each of the two.
    assert charged(GLM_5_2, "0.5.22", **keys) == 50_472
    assert charged(GLM_5_2, "0.5.22", **keys, **MTP) == 51_888
    assert charged(GLM_5_2, "0.5.23", **keys, **MTP) == 51_888


def test_dcp_of_plain_mla_changes_no_cell():
    assert charged(DEEPSEEK_V3, "0.5.23", gpu="b200", dcp=2) == 70_272
    assert charged(DEEPSEEK_V3, "0.5.23", gpu="b200", dcp=2, **MTP) == 71_424


@pytest.mark.parametrize(
    "keys", [{"release": "0.5.21"}, HICACHE, PD_DECODE, {"offload": {}}], ids=["0.5.21", "HiCache", "PD", "HiSparse"]
)
def test_dcp_of_dsa_models_is_refused_where_the_engine_does(keys):
    with pytest.raises(UnsupportedError):
        hsplan.plan(spec_of(GLM_5_2, gpu="b200", dcp=2, kv_budget="64GiB", **keys))


# LongCat


@pytest.mark.parametrize(
    ("release", "cell"),
    [("0.5.17", 56 * 1152 + 56 * 132), ("0.5.18", 56 * 1152 + 28 * 132), ("0.5.23", 56 * 1152 + 28 * 132)],
)
def test_longcat_with_an_indexer_pays_for_two_sub_layers_a_block(release, cell):
    model = {**LONGCAT_FLASH, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "cli_factor": 2}
    assert charged(model, release, **BF16) == cell


def test_longcat_chat_has_56_plain_layers():
    assert charged(LONGCAT_FLASH, "0.5.23", **BF16) == 64_512


# The pull request that brought elision


def test_the_tokens_of_the_published_comparison_come_out_of_its_budgets():
    """4 × GB300, GLM-5.2-NVFP4, one MTP layer: 2,574,848 tokens at 55,932 bytes."""
    low = 2_574_848 * 55_932
    for budget in (low, low + 64 * 55_932 - 1):
        plan = hsplan.plan(spec_of(GLM_5_2, **RAW, **MTP, release="0.5.17", kv_budget=budget)).to_dict()
        assert plan["scenarios"]["baseline"]["max_total_num_tokens"] == 2_574_848
    below = hsplan.plan(spec_of(GLM_5_2, **RAW, **MTP, release="0.5.17", kv_budget=low - 1)).to_dict()
    assert below["scenarios"]["baseline"]["max_total_num_tokens"] == 2_574_784


@pytest.mark.parametrize(
    ("cap", "tokens"), [(None, 1_440_640), (1_000_000, 1_000_000), (1_000_001, 1_000_000), (100, 64), (63, 0)]
)
def test_max_total_tokens_caps_the_pool_in_whole_pages(cap, tokens):
    """64 GiB // 47,700 = 1,440,660; in pages of 64: 1,440,640."""
    plan = hsplan.plan(spec_of(GLM_5_2, **RAW, kv_budget="64GiB", max_total_tokens=cap)).to_dict()
    assert plan["scenarios"]["elided"]["max_total_num_tokens"] == tokens
