"""How many requests a rank admits, and the table that maps their tokens."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, GLM_5_2, spec_of

import hsplan
from hsplan.engines.sglang.releases import release_of
from hsplan.engines.sglang.requests import requests_of
from hsplan.spec import load_spec

RELEASES = ("0.5.17", "0.5.20", "0.5.22", "0.5.23")


def requests(release="0.5.23", *, tokens=1_000_000, context_len=131_072, page_tokens=64, **keys):
    loaded = load_spec(spec_of(GLM_5_2, release=release, **keys), {})
    return requests_of(
        loaded.spec.deployment, release_of(loaded), tokens=tokens, context_len=context_len, page_tokens=page_tokens
    )  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("tokens", "context_len", "cap"),
    [
        # A log: int(980,344 / 163,840 × 512).
        (980_344, 163_840, 3_063),
        # Never below 2,048 nor above 4,096 when the engine chooses.
        (1_000_000, 1_048_576, 2_048),
        (10_000_000, 32_768, 4_096),
        # At most half the tokens of the pool.
        (3_000, 1_048_576, 1_500),
        (64, 1_048_576, 32),
        (0, 1_048_576, 0),
    ],
)
def test_the_engine_chooses_by_tokens_and_context(release, tokens, context_len, cap):
    assert requests(release, tokens=tokens, context_len=context_len).cap == cap


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("keys", "cap"),
    [
        ({"max_running_requests": 256}, 256),
        ({"max_running_requests": 256, "dp_attention": 8}, 32),
        ({"max_running_requests": 255, "dp_attention": 8}, 31),
        ({"max_running_requests": 10_000_000}, 500_000),
        # Any speculation admits 48, divided by the ranks.
        ({"draft_layers": 1}, 48),
        ({"num_speculative_tokens": 3}, 48),
        ({"draft_layers": 1, "dp_attention": 8}, 6),
        ({"draft_layers": 1, "max_running_requests": 100}, 100),
        # Without a number DP attention divides nothing: int(1,000,000 / 131,072 × 512).
        ({"dp_attention": 8}, 3_906),
    ],
)
def test_a_given_number_is_shared_by_the_ranks_of_dp_attention(release, keys, cap):
    assert requests(release, **keys).cap == cap


@pytest.mark.parametrize(("release", "cap"), [("0.5.17", 0), ("0.5.22", 0), ("0.5.23", 1)])
def test_every_rank_admits_one_request_at_least_from_0_5_23_on(release, cap):
    assert requests(release, max_running_requests=4, dp_attention=8).cap == cap


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({"max_running_requests": 16}, 17),
        ({"max_running_requests": 16, "disaggregation": "prefill"}, 17),
        # A decode node keeps twice its requests for transfers, up to 32 of them.
        ({"max_running_requests": 16, "disaggregation": "decode"}, 49),
        ({"max_running_requests": 32, "disaggregation": "decode"}, 97),
        ({"max_running_requests": 33, "disaggregation": "decode"}, 34),
        ({"max_running_requests": 256, "dp_attention": 8, "disaggregation": "decode"}, 97),
        # Extra slots are counted before speculation sets its 48.
        ({"disaggregation": "decode", "draft_layers": 1}, 49),
    ],
)
def test_the_table_has_a_spare_row_and_those_of_requests_in_transfer(keys, rows):
    assert requests(**keys).rows == rows


def test_a_decode_rank_with_less_than_one_request_keeps_two_slots_from_0_5_23_on():
    keys = {"max_running_requests": 4, "dp_attention": 8, "disaggregation": "decode"}
    assert requests("0.5.23", **keys).rows == 1 + 2 + 1
    assert requests("0.5.22", **keys).rows == 0 + 0 + 1


@pytest.mark.parametrize(
    ("keys", "page", "extra"),
    [
        ({}, 64, 4),
        ({}, 1, 4),
        # EAGLE 3-1-4: 2 × 4 + 63.
        ({"draft_layers": 1}, 64, 71),
        ({"draft_layers": 1, "num_speculative_tokens": 3}, 64, 71),
        # EAGLE 5-1-6: 2 × 6 + 63.
        ({"draft_layers": 1, "num_speculative_tokens": 5}, 64, 75),
        # Page 1: 4 + 4.
        ({"draft_layers": 1}, 1, 8),
        ({"draft_layers": 1, "num_speculative_tokens": 5}, 1, 10),
    ],
)
def test_a_row_has_the_context_and_room_for_what_one_step_allocates(keys, page, extra):
    assert requests(page_tokens=page, **keys).cols == 131_072 + extra


def table_bytes(model, **keys):
    """Bytes of the request to token table in the ledger as launched."""
    plan = hsplan.plan(spec_of(model, **{"kv_budget": "64GiB", **keys})).to_dict()
    ledger = plan["scenarios"][plan["as_launched"]]["ledger"]
    return next(line["bytes"] for line in ledger if line["name"] == "request to token table")


def test_the_table_of_glm_5_2_at_its_native_context_takes_8_gib():
    """2,049 rows × 1,048,580 columns × 4 B."""
    assert table_bytes(GLM_5_2) == 8_594_161_680


def test_the_table_of_a_202752_context_takes_1_55_gib():
    assert table_bytes(GLM_5_2, max_model_len=202_752, max_running_requests=2048) == 2_049 * 202_756 * 4


@pytest.mark.parametrize(
    ("release", "columns"), [("0.5.18", 163_840 + 71), ("0.5.20", 163_840 + 135), ("0.5.23", 163_840 + 135)]
)
def test_dcp_widens_the_pages_of_the_table_from_0_5_20_on(release, columns):
    """2 × 4 + 64 × 2 − 1 = 135; before, the page of one rank."""
    keys = {"gpu": "b200", "dcp": 2, "draft_layers": 1, "max_running_requests": 48, "release": release}
    assert table_bytes(DEEPSEEK_V3, **keys) == 49 * columns * 4
