"""Which layers compute top-k: the disagreement cases of the engines, release by release, for N = 78 layers."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, GLM_5, GLM_5_2, LONGCAT_FLASH, spec_of
from hypothesis import given
from hypothesis import strategies as st

import hsplan
from hsplan import InputError
from hsplan.families.schedule import RULES, owners_by_schedule

NEWEST = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
FIRST = ("0.5.18", "0.5.19")
EVERY_FOURTH_FROM_2 = [0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74]
EVERY_FOURTH_FROM_1 = [0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 65, 69, 73, 77]
EVERY_FOURTH = [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76]
# Full on every fourth layer and nowhere else: 20 layers, unlike any other source here.
PATTERN_20 = "FSSS" * 19 + "FS"
TYPES = GLM_5_2["indexer_types"]

FREQ_4 = {"index_topk_freq": 4}
GLM = {"index_topk_freq": 4, "index_skip_topk_offset": 3}


def owner_ids(release, **fields):
    """Ids of the layers that compute top-k, as the release reads the fields."""
    plan = hsplan.plan(spec_of({**GLM_5, **fields}, kv_budget="64GiB", release=release)).to_dict()["model"]
    assert plan["layers"] == 78
    assert plan["index_owner_layers"] + plan["skip_topk_layers"] == 78
    return plan["index_owner_ids"]


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST, "main-2026-06-06"])
def test_glm_5_2_as_published_computes_21_layers(release):
    fields = {
        key: GLM_5_2[key]
        for key in ("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern", "indexer_types")
    }
    assert owner_ids(release, **fields) == EVERY_FOURTH_FROM_2


def test_builds_before_the_offset_compute_other_layers_of_glm_5_2():
    assert owner_ids("main-2026-06-05", **GLM) == EVERY_FOURTH_FROM_1


def test_builds_before_the_index_cache_compute_every_layer():
    assert owner_ids("main-2026-04-04", **GLM) == list(range(78))


@pytest.mark.parametrize(("releases", "full"), [(NEWEST, 21), (FIRST, 78), (("0.5.17", "main-2026-06-05"), 78)])
def test_indexer_types_alone_are_read_from_0_5_20_on(releases, full):
    assert [len(owner_ids(release, indexer_types=TYPES)) for release in releases] == [full] * len(releases)


@pytest.mark.parametrize("release", ["main-2026-06-05", "0.5.17", *FIRST, *NEWEST])
def test_a_frequency_without_offset_counts_from_layer_1(release):
    assert owner_ids(release, **FREQ_4) == EVERY_FOURTH_FROM_1
    assert len(EVERY_FOURTH_FROM_1) == 21


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_offset_2_is_the_same_as_no_offset(release):
    assert owner_ids(release, index_topk_freq=4, index_skip_topk_offset=2) == EVERY_FOURTH_FROM_1


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_offset_1_computes_20_layers(release):
    assert owner_ids(release, index_topk_freq=4, index_skip_topk_offset=1) == EVERY_FOURTH
    assert len(EVERY_FOURTH) == 20


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_an_offset_that_is_not_positive_is_refused(release, offset):
    with pytest.raises(InputError, match="index_skip_topk_offset is"):
        owner_ids(release, index_topk_freq=4, index_skip_topk_offset=offset)


@pytest.mark.parametrize("freq", [0, -4])
@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_a_frequency_that_is_not_positive_is_refused(release, freq):
    with pytest.raises(InputError, match="index_topk_freq is"):
        owner_ids(release, index_topk_freq=freq)


@pytest.mark.parametrize("factor", [0, -2])
@pytest.mark.parametrize("release", [*FIRST, *NEWEST])
def test_a_cli_factor_that_is_not_positive_is_refused(release, factor):
    with pytest.raises(InputError, match="cli_factor is"):
        owner_ids(release, cli_factor=factor)


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_a_pattern_shorter_than_the_model_leaves_the_rest_full(release):
    owners = owner_ids(release, index_topk_pattern="FFS")
    assert owners == [0, 1, *range(3, 78)]
    assert len(owners) == 77


@pytest.mark.parametrize(
    ("releases", "full"), [(NEWEST, EVERY_FOURTH_FROM_2), (FIRST, EVERY_FOURTH), (("0.5.17",), EVERY_FOURTH)]
)
def test_a_pattern_that_contradicts_indexer_types_wins_until_0_5_19(releases, full):
    for release in releases:
        assert owner_ids(release, indexer_types=TYPES, index_topk_pattern=PATTERN_20) == full


@pytest.mark.parametrize(("releases", "full"), [(NEWEST, 21), (FIRST, 40), (("0.5.17",), 40)])
def test_a_frequency_laid_over_the_published_file_has_no_effect_from_0_5_20_on(releases, full):
    fields = {"indexer_types": TYPES, "index_topk_freq": 2, "index_skip_topk_offset": 3}
    assert [len(owner_ids(release, **fields)) for release in releases] == [full] * len(releases)


@pytest.mark.parametrize(("releases", "full"), [(NEWEST, 39), (FIRST, 39), (("0.5.17",), 21)])
def test_cli_factor_comes_before_the_frequency_from_0_5_18_on(releases, full):
    assert [len(owner_ids(release, cli_factor=2, **GLM)) for release in releases] == [full] * len(releases)


@pytest.mark.parametrize(("release", "full"), [("0.5.18", 39), ("0.5.19", 39), ("0.5.20", 21), ("0.5.23", 21)])
def test_indexer_types_come_before_cli_factor_from_0_5_20_on(release, full):
    assert len(owner_ids(release, cli_factor=2, indexer_types=TYPES)) == full


@pytest.mark.parametrize("release", [*FIRST, *NEWEST])
def test_cli_factor_comes_before_the_pattern(release):
    assert len(owner_ids(release, cli_factor=2, index_topk_pattern=PATTERN_20)) == 39


@pytest.mark.parametrize("release", [*FIRST, *NEWEST])
def test_cli_factor_1_falls_through_to_the_next_rule(release):
    assert owner_ids(release, cli_factor=1, **GLM) == EVERY_FOURTH_FROM_2


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_a_pattern_silently_beats_the_frequency(release):
    assert owner_ids(release, index_topk_pattern=PATTERN_20, **GLM) == EVERY_FOURTH


@pytest.mark.parametrize("release", ["0.5.17", *FIRST, *NEWEST])
def test_a_null_frequency_shares_nothing_and_a_null_offset_counts_from_layer_1(release):
    assert len(owner_ids(release, index_topk_freq=None)) == 78
    assert len(owner_ids(release, index_topk_freq=4, index_skip_topk_offset=None)) == 21


@pytest.mark.parametrize("word", ["full", "Shared", "", "S", "dense"])
def test_any_word_but_shared_means_full(word):
    assert owner_ids("0.5.23", indexer_types=["full", word, "shared"]) == [0, 1, *range(3, 78)]


def test_indexer_types_shorter_than_the_model_leave_the_rest_full_and_longer_ones_are_cut():
    assert owner_ids("0.5.23", indexer_types=["full", "shared"]) == [0, *range(2, 78)]
    assert owner_ids("0.5.23", indexer_types=[*TYPES, "full", "shared"]) == EVERY_FOURTH_FROM_2


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"indexer_types": ["shared"]}, "indexer_types"), ({"index_topk_pattern": "SF"}, "index_topk_pattern")],
)
def test_layer_0_has_no_layer_before_it_to_share_with(fields, rule):
    with pytest.raises(InputError) as caught:
        owner_ids("0.5.23", **fields)
    head, remedy = caught.value.lines()
    assert head == f"model.{rule}: layer 0 would share the top-k of a layer before it, and there is none"
    assert remedy == f"  make layer 0 full in `{rule}`"


def test_a_model_without_an_indexer_has_no_owners_and_no_skips():
    model = hsplan.plan(spec_of(DEEPSEEK_V3, kv_budget="64GiB")).to_dict()["model"]
    assert (model["layers"], model["index_owner_layers"], model["skip_topk_layers"], model["index_owner_ids"]) == (
        61,
        0,
        0,
        [],
    )


def test_longcat_counts_attention_sub_layers_two_in_a_block():
    fields = {**LONGCAT_FLASH, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "cli_factor": 2}
    model = hsplan.plan(spec_of(fields, kv_budget="64GiB")).to_dict()["model"]
    assert (model["layers"], model["index_owner_layers"], model["skip_topk_layers"]) == (56, 28, 28)
    assert model["index_owner_ids"] == list(range(0, 56, 2))


SMALL_INT = st.none() | st.integers(-3, 100)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "indexer_types": st.none() | st.lists(st.sampled_from(["full", "shared", "x"]), max_size=90),
        "cli_factor": SMALL_INT,
        "index_topk_pattern": st.none() | st.text("FSx", max_size=90),
        "index_topk_freq": SMALL_INT,
        "index_skip_topk_offset": SMALL_INT,
    },
)


@given(
    FIELDS,
    st.integers(1, 90),
    st.permutations(sorted(RULES)).flatmap(lambda order: st.integers(0, 5).map(lambda n: tuple(order[:n]))),
)
def test_any_schedule_gives_one_flag_a_layer_or_an_error_of_input(fields, layers, precedence):
    try:
        owners = owners_by_schedule(fields, layers, precedence)
    except InputError as error:
        refused = error.lines()[0]
        assert refused.startswith("model.")
        return
    assert len(owners) == layers
    assert owners[0] is True
