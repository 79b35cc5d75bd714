"""A budget that is given instead of computed leaves the same headroom and the same verdict."""

import pytest

import hsplan

CASES = {
    # its draft is loaded after the budget is read
    "draft": ("glm-5.1-fp8", {"release": "main-2026-06-12", "draft_layers": 1, "kv_cache_dtype": "fp8_e4m3",
                              "mem_fraction": 0.94}, -1_310_080_534),
    # 100 MiB are neither loaded nor in its budget
    "multimodal": ("kimi-k2.5-int4", {"gpu": "gb300", "tp": 8, "kv_cache_dtype": "fp8_e4m3",
                                      "max_running_requests": 2}, 48_979_615_903),
    "plain": ("glm-5.2-fp8", {"kv_cache_dtype": "fp8_e4m3"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "headroom"), CASES.values(), ids=CASES)
def test_the_computed_budget_given_gives_the_same_plan(name, keys, headroom):
    computed = hsplan.plan(name, **keys).launched
    given = hsplan.plan(name, kv_budget=computed.budget.kv_bytes.best, **keys).launched
    if headroom is not None:
        assert computed.capacity.headroom_bytes == headroom
    assert given.capacity.headroom_bytes == computed.capacity.headroom_bytes
    assert (given.capacity.fits, given.pools.tokens.best) == (computed.capacity.fits, computed.pools.tokens.best)
