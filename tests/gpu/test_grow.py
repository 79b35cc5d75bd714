"""Pools grown until a card has no more, on a card that is a number: the exact page is found in few tries."""

import pytest

import hsplan
from hsplan.gpu import grow
from hsplan.gpu.grow import confirm_tokens

MODEL = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}
DEPLOYMENT = {
    "gpu": "h200",
    "tp": 1,
    "kv_budget": "1GiB",
    "kv_cache_dtype": "fp8_e4m3",
    "max_running_requests": 1,
    "max_model_len": 8192,
}


@pytest.fixture
def plan():
    return hsplan.plan({"model": MODEL, "deployment": DEPLOYMENT, "workload": {"context": 8192}})


@pytest.fixture
def card(monkeypatch):
    """A card that takes so many tokens; the tries are counted."""

    def holding(tokens):
        tried = []

        def takes(plan, scenario, wanted, budget, place):
            del plan, scenario, budget, place
            tried.append(wanted)
            return wanted <= tokens

        monkeypatch.setattr(grow, "_takes", takes)
        return tried

    return holding


@pytest.mark.parametrize(
    ("holds", "most"),
    [
        (64_000, 64_000),  # as predicted
        (64_063, 64_000),
        (64_064, 64_064),  # a page more
        (63_999, 63_936),  # a page less
        (64_640, 64_640),
        (63_360, 63_360),
        (1_000_000, 1_000_000 // 64 * 64),
        (4_000, 3_968),
        (64, 64),
        (63, 0),
    ],
)
def test_the_exact_page_is_found_near_and_far(plan, card, holds, most):
    tried = card(holds)
    assert grow._most(plan, "baseline", 64_000, 2**40, None) == most
    assert len(tried) <= 30
    assert all(tokens % 64 == 0 for tokens in tried)


def test_a_prediction_that_is_right_takes_two_tries(plan, card):
    tried = card(64_000)
    grow._most(plan, "baseline", 64_000, 2**40, None)
    assert tried == [64_064, 64_000]


class OneGiBFree:
    def free_bytes(self):
        return 2**30


def test_the_budget_is_what_is_free_without_the_tables(plan, card):
    card(1_362_496)
    check = confirm_tokens(plan, "baseline", OneGiBFree())
    # The request to token table takes 2 × 8,196 × 4 = 65,568 B; a token 656 + 132 B.
    assert check.kv_budget_bytes == 1_073_741_824 - 65_568
    assert check.predicted_tokens == 1_073_676_256 // 788 // 64 * 64 == 1_362_496
    assert (check.scenario, check.confirmed_tokens, check.passed) == ("baseline", 1_362_496, True)


def test_a_limit_that_the_plan_sets_on_tokens_is_not_that_of_the_card(card):
    card(1_362_496)
    capped = hsplan.plan(
        {"model": MODEL, "deployment": {**DEPLOYMENT, "max_total_tokens": 64_000}, "workload": {"context": 8192}}
    )
    assert confirm_tokens(capped, "baseline", OneGiBFree()).predicted_tokens == 1_362_496


def test_a_card_that_takes_fewer_tokens_than_predicted_fails(plan, card):
    card(1_361_000)
    check = confirm_tokens(plan, "baseline", OneGiBFree())
    assert (check.confirmed_tokens, check.passed) == (1_360_960, False)
