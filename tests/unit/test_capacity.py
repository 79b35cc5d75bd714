"""Limits, what binds and what lifts it, whether a plan fits, and the ledger that must account for every byte."""

from __future__ import annotations

import pytest
from configs import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_2,
    GLM_5,
    GLM_5_2,
    KIMI_K2,
    KIMI_K2_5,
    LONGCAT_FLASH,
    NVFP4,
    spec_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import hsplan
from hsplan import InputError
from hsplan.hardware import GPUS
from hsplan.host import available_bytes

PACKED = {"kv_cache_dtype": "fp8_e4m3", "kv_budget": "64GiB"}


def planned(**keys):
    """GLM-5.2, packed rows on H200, 64 GiB: 1,273,984 tokens elided, 957,568 device tokens with offload."""
    context = keys.pop("context", 32_768)
    return hsplan.plan(spec_of(GLM_5_2, **{**PACKED, **keys}, workload={"context": context})).to_dict()


def entry(scenario="offload", **keys):
    return planned(**keys)["scenarios"][scenario]


def requests(scenario="offload", **keys):
    return entry(scenario, **keys)["concurrency"]


# Limits


def test_without_offload_the_pool_divided_by_the_context_is_the_limit():
    """68,719,476,736 // 53,940 in pages of 64 are 1,273,984 tokens, 38.9 requests of 32,768."""
    found = entry("elided")
    assert found["max_total_num_tokens"] == 1_273_984
    assert found["concurrency"]["limits"] == {
        "gpu": 38,
        "host": None,
        "hot_buffer": None,
        "max_running": 2048,
        "link": None,
    }
    assert (found["concurrency"]["requests"], found["concurrency"]["binding"]) == (38, "gpu")


def test_a_context_takes_whole_pages():
    """1,273,984 tokens are 622 requests of 2,048 tokens and 603 of 2,112, which 2,049 take."""
    assert requests("elided", context=2_048)["limits"]["gpu"] == 622
    assert requests("elided", context=2_049)["limits"]["gpu"] == 603
    assert requests("elided", context=2_112)["limits"]["gpu"] == 603


def test_with_offload_the_logical_tokens_are_divided_by_the_context():
    """1,915,136 // 32,768, and 957,568 device tokens // (4,096 + 64)."""
    assert requests()["limits"] == {"gpu": 58, "host": None, "hot_buffer": 230, "max_running": 2048, "link": None}
    assert (requests()["requests"], requests()["binding"]) == (58, "gpu")


def test_short_requests_are_bound_by_the_hot_buffer():
    found = requests(context=8_192)
    assert (found["limits"]["gpu"], found["limits"]["hot_buffer"]) == (233, 230)
    assert (found["requests"], found["binding"]) == (230, "hot_buffer")


def test_a_smaller_hot_buffer_lifts_the_limit_as_far_as_it_says():
    """957,568 // 233 − 64 = 4,045, in whole pages 4,032; with it 957,568 // 4,096 = 233 requests."""
    assert requests(context=8_192)["lift"] == "device_buffer_size 4,032"
    lifted = requests(context=8_192, offload={"device_buffer_size": 4_032})
    assert (lifted["requests"], lifted["limits"]["hot_buffer"]) == (233, 233)


def test_the_request_cap_binds_and_raising_it_lifts_the_limit_as_far_as_it_says():
    found = requests("elided", max_running_requests=8)
    assert (found["requests"], found["binding"], found["lift"]) == (8, "max_running", "max_running_requests 38")
    assert requests("elided", max_running_requests=38)["requests"] == 38


def test_the_lift_names_the_limits_that_bind_alike():
    """38 requests fit the GPU, and no more may run; more room alone would change nothing."""
    found = requests("elided", max_running_requests=38)
    assert found["binding"] == "gpu"
    assert found["lift"] == "offload, more ranks, or a higher mem_fraction; max_running binds at 38 as well"


def test_where_no_more_may_run_the_lift_of_the_pool_is_priced_as_if_more_might():
    found = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", offload={}, max_running_requests=31).launched.capacity
    assert (found.limits.gpu, found.limits.max_running) == (31, 31)
    assert found.lift == "host_to_device_ratio 3; max_running binds at 31 as well"


def test_the_lift_of_the_request_cap_is_the_option_of_the_whole_deployment():
    found = requests("elided", max_running_requests=8, dp_attention=2)
    assert (found["requests"], found["lift"]) == (4, "max_running_requests 76")
    assert requests("elided", max_running_requests=76, dp_attention=2)["requests"] == 38


def test_a_model_that_cannot_offload_is_not_advised_to():
    plan = hsplan.plan(spec_of(DEEPSEEK_V3, kv_budget="64GiB")).to_dict()
    assert "offload" not in plan["scenarios"]["baseline"]["concurrency"]["lift"]


# Host memory


@pytest.mark.parametrize(
    ("host_memory", "context", "limit"),
    [
        ("auto", 8_192, None),
        # 1,915,200 tokens of 51,168 bytes on each of 8 ranks are 784 GB; both fit 2 TiB.
        ("2TiB", 8_192, 233),
        ("2TiB", 32_768, 58),
        # (512 GiB − 10 GiB) // 8 // 51,168 = 1,316,785 tokens.
        ("512GiB", 8_192, 160),
        ("10GiB", 8_192, 0),
        ("1GiB", 8_192, 0),
    ],
)
def test_the_host_limit_is_what_the_node_holds_beside_10_gib(host_memory, context, limit):
    found = requests(context=context, offload={"host_memory": host_memory})
    assert found["limits"]["host"] == limit


def test_too_little_host_memory_does_not_fit_and_says_how_much_would():
    found = entry(context=8_192, max_running_requests=256, offload={"host_memory": "512GiB"})
    assert (found["concurrency"]["requests"], found["concurrency"]["binding"]) == (160, "host")
    assert found["concurrency"]["lift"] == "more host memory on a node"
    assert found["cure"] == "host_to_device_ratio 1, or 740.14 GiB of host memory on a node"
    assert found["fits"] is False
    assert found["why_not"] == "the host pools need 740.14 GiB on a node, with the 10.00 GiB that the engine keeps free"


def test_just_enough_host_memory_fits():
    """8 × 97,996,953,600 + 10 GiB = 794,713,047,040."""
    keys = {"context": 8_192, "max_running_requests": 64}
    assert entry(**keys, offload={"host_memory": 794_713_047_040})["fits"] is True
    assert entry(**keys, offload={"host_memory": 794_713_047_039})["fits"] is False


def test_unknown_host_memory_leaves_the_limit_open_and_shows_the_bytes():
    found = entry(max_running_requests=64)
    assert found["concurrency"]["limits"]["host"] is None
    assert found["host_pool_bytes"] == 97_996_953_600
    assert found["fits"] is True


def test_the_memory_of_this_machine_may_be_meant(monkeypatch):
    monkeypatch.setattr("hsplan.capacity.available_bytes", lambda _where: 549_755_813_888)
    assert requests(context=8_192, offload={"host_memory": "here"})["limits"]["host"] == 160


@pytest.fixture
def machine(tmp_path):
    """A /proc/meminfo and a cgroup folder that a test fills."""
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\n")
    return tmp_path / "meminfo", cgroup


def test_memory_here_is_what_is_available(machine):
    assert available_bytes("x", *machine) == 1_024_000


@pytest.mark.parametrize(
    ("limit", "current", "left"),
    [
        ("max", "5", 1_024_000),
        ("700000", "200000", 500_000),
        ("9000000", "5", 1_024_000),
        ("100", "900", 0),
        ("x", "5", 1_024_000),
    ],
)
def test_memory_here_is_never_more_than_the_cgroup_leaves(machine, limit, current, left):
    meminfo, cgroup = machine
    (cgroup / "memory.max").write_text(limit + "\n")
    (cgroup / "memory.current").write_text(current + "\n")
    assert available_bytes("x", meminfo, cgroup) == left


def test_memory_here_knows_the_first_version_of_cgroups(machine):
    meminfo, cgroup = machine
    (cgroup / "memory").mkdir()
    (cgroup / "memory" / "memory.limit_in_bytes").write_text("700000\n")
    (cgroup / "memory" / "memory.usage_in_bytes").write_text("200000\n")
    assert available_bytes("x", meminfo, cgroup) == 500_000


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemAvailable:\n", "MemAvailable: many kB\n"])
def test_a_machine_that_does_not_tell_its_memory_is_an_error_of_input(machine, text):
    meminfo, cgroup = machine
    meminfo.write_text(text)
    with pytest.raises(InputError) as caught:
        available_bytes("offload.host_memory", meminfo, cgroup)
    assert caught.value.lines() == [
        "offload.host_memory: this system does not tell its free memory",
        '  give a size such as "2TiB"',
    ]


def test_a_machine_without_such_a_file_is_an_error_of_input(tmp_path):
    with pytest.raises(InputError):
        available_bytes("x", tmp_path / "nothing", tmp_path)


# Whether it fits


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"kv_budget": "auto", "weights": {"bytes_per_rank": "500GiB"}},
            "nothing is left for the cache: weights and the reserve need ",
        ),
        ({"kv_budget": 2_000_000}, "the budget is smaller than one page of tokens"),
        ({"kv_budget": "130GiB"}, "it starts and then runs out: "),
        ({"kv_budget": "1GiB"}, "not one request of 32,768 tokens fits"),
    ],
)
def test_a_plan_that_does_not_fit_says_why(keys, reason):
    plan = hsplan.plan(spec_of(GLM_5_2, **{**PACKED, **keys}))
    assert plan.fits is False
    found = plan.to_dict()["scenarios"]["elided"]
    assert found["fits"] is False
    assert reason in found["why_not"]


def test_a_plan_that_fits_gives_no_reason():
    plan = hsplan.plan(spec_of(GLM_5_2, **PACKED, max_running_requests=64))
    assert plan.fits is True
    assert plan.to_dict()["scenarios"]["elided"]["why_not"] is None


def test_a_budget_below_zero_has_no_tokens_and_no_requests():
    plan = hsplan.plan(spec_of(GLM_5_2, weights={"bytes_per_rank": "500GiB"})).to_dict()
    for found in plan["scenarios"].values():
        assert found["kv_budget_bytes"] < 0
        assert (found["max_total_num_tokens"], found["concurrency"]["requests"], found["host_pool_bytes"] >= 0) == (
            0,
            0,
            True,
        )


# Budgets of the four scenarios


def budgets(release, model=GLM_5_2, **keys):
    plan = hsplan.plan(spec_of(model, **{**PACKED, **keys}, release=release)).to_dict()
    given = 68_719_476_736
    return {name: entry["kv_budget_bytes"] - given for name, entry in plan["scenarios"].items()}


# 57 indexers that are kept in bf16, of 18,744,320 bytes each.
INDEXERS = 57 * 18_744_320


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.5.17", {"baseline": 0, "elided": INDEXERS, "offload": 0, "elided+offload": INDEXERS}),
        ("0.5.18", {"baseline": -INDEXERS, "elided": 0, "offload": 0, "elided+offload": 0}),
        ("0.5.23", {"baseline": -INDEXERS, "elided": 0, "offload": 0, "elided+offload": 0}),
    ],
)
def test_a_given_budget_is_shifted_by_the_indexers_that_differ(release, expected):
    assert INDEXERS == 1_068_426_240
    assert budgets(release) == expected


def test_the_shift_is_uncertain_by_three_percent_of_itself():
    found = planned()["scenarios"]
    assert found["elided"]["kv_budget_bytes_range"] == [68_719_476_736, 68_719_476_736]
    low, high = found["baseline"]["kv_budget_bytes_range"]
    assert (low, high) == (68_719_476_736 - INDEXERS - 32_052_787, 68_719_476_736 - INDEXERS + 32_052_787)


def test_without_the_fields_of_a_weight_all_budgets_are_equal_and_it_is_said():
    model = {key: value for key, value in GLM_5_2.items() if key != "hidden_size"}
    plan = hsplan.plan(spec_of(model, **PACKED)).to_dict()
    assert {entry["kv_budget_bytes"] for entry in plan["scenarios"].values()} == {68_719_476_736}
    assert any("hidden_size" in line and "same budget" in line for line in plan["not_modelled"])


def test_weights_that_were_priced_as_bf16_for_want_of_a_format_are_named():
    model = {key: value for key, value in GLM_5_2.items() if key != "quantization_config"}
    note = "the model has no quantization_config: its weights are priced as bf16; --checkpoint prices another format"
    plan = hsplan.plan(spec_of(model, gpu="h100", max_running_requests=8, offload={}))
    assert plan.launched.budget.kv_bytes.best < 0
    assert note in plan.notes
    assert note not in hsplan.plan(spec_of(model, gpu="h100", weights={"checkpoint": "bf16"})).notes
    assert note not in hsplan.plan(spec_of(model, gpu="b300")).notes


# The whole deployment


def test_dp_attention_multiplies_the_figures_of_one_rank():
    plan = planned(dp_attention=8)["scenarios"]["elided"]
    assert plan["max_total_num_tokens"] == 1_273_984
    assert plan["deployment"]["tokens"] == 10_191_872
    assert plan["deployment"]["requests"] == 304


def test_tensor_parallelism_multiplies_nothing_because_every_rank_holds_all_rows():
    for tp in (4, 8):
        found = planned(tp=tp)["scenarios"]["elided"]
        assert (found["deployment"]["tokens"], found["deployment"]["requests"]) == (1_273_984, 38)


def test_every_rank_of_a_node_has_a_host_pool_of_its_own():
    assert entry(tp=4)["deployment"]["host_bytes_per_node"] == 4 * 97_996_953_600
    assert entry(tp=16, nodes=2)["deployment"]["host_bytes_per_node"] == 8 * 97_996_953_600


# The ledger

MODELS = [
    GLM_5_2, GLM_5, DEEPSEEK_V3, DEEPSEEK_V3_2, KIMI_K2, KIMI_K2_5, LONGCAT_FLASH,
    {**GLM_5_2, "quantization_config": NVFP4},
]  # fmt: skip
DEPLOYMENTS = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(sorted(GPUS)),
        "tp": st.sampled_from([1, 2, 4, 8, 16]),
        "release": st.sampled_from(
            ["0.5.17", "0.5.18", "0.5.20", "0.5.22", "0.5.23", "main-2026-02-20", "main-2026-06-20"]
        ),
    },
    optional={
        "draft_layers": st.integers(0, 2),
        "num_speculative_tokens": st.integers(0, 4),
        "dp_attention": st.sampled_from([1, 2, 8]),
        "ep": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2]),
        "dcp": st.sampled_from([1, 2]),
        "cp": st.sampled_from([1, 2]),
        "disaggregation": st.sampled_from([None, "prefill", "decode"]),
        "hierarchical_cache": st.booleans(),
        "kv_cache_dtype": st.sampled_from(["auto", "bfloat16", "fp8_e4m3"]),
        "moe_a2a_backend": st.sampled_from(["none", "deepep"]),
        "max_running_requests": st.sampled_from(["auto", 1, 64, 4096]),
        "mem_fraction": st.sampled_from(["auto", 0.5, 0.95]),
        "max_total_tokens": st.sampled_from([None, 1, 1_000_000]),
        "kv_budget": st.sampled_from(["auto", 1, "1GiB", "40GiB", "120GiB", "500GiB"]),
        "offload": st.sampled_from([None, {}, {"host_to_device_ratio": 4}, {"device_buffer_size": 8192}]),
        "weights": st.sampled_from(["auto", {"checkpoint": "fp8"}, {"bytes_per_rank": "60GiB"}]),
    },
)


@settings(max_examples=600)
@given(st.sampled_from(MODELS), DEPLOYMENTS)
def test_every_ledger_accounts_for_the_whole_card_and_every_figure_follows_from_it(model, keys):
    keys = {**keys, "gpus": "auto"}
    try:
        plan = hsplan.plan(spec_of(model, **keys)).to_dict()
    except hsplan.HsplanError:
        return
    total = plan["gpu"]["reported_bytes"]
    for found in plan["scenarios"].values():
        if not found["available"]:
            continue
        on_gpu = [line["bytes"] for line in found["ledger"] if line["place"] == "gpu"]
        assert sum(on_gpu) + found["headroom_bytes"] == total
        assert all(line["bytes"] >= 0 for line in found["ledger"])
        host = sum(line["bytes"] for line in found["ledger"] if line["place"] == "host")
        assert host == found["host_pool_bytes"]

        tokens, page, cell = (
            found["max_total_num_tokens"],
            found["row"]["page_tokens"],
            found["bytes_per_token"]["charged"],
        )
        low, high = found["max_total_num_tokens_range"]
        assert low <= tokens <= high
        assert tokens % page == 0
        assert tokens * cell <= max(found["kv_budget_bytes"], 0)
        if keys.get("max_total_tokens") is None:
            assert (tokens + page) * cell > found["kv_budget_bytes"]
        assert found["kv_budget_bytes_range"][0] <= found["kv_budget_bytes"] <= found["kv_budget_bytes_range"][1]

        concurrency = found["concurrency"]
        known = {name: value for name, value in concurrency["limits"].items() if value is not None}
        assert concurrency["requests"] == min(known.values()) == known[concurrency["binding"]]
        assert found["fits"] == (found["why_not"] is None)
        if found["fits"]:
            assert found["headroom_bytes"] >= 0
            assert concurrency["requests"] >= 1
    launched = plan["scenarios"][plan["as_launched"]]
    assert launched["available"]
    assert launched["engine_applies"]


def test_what_no_host_memory_cures_is_said_before_the_host_memory():
    plan = hsplan.plan(
        "minimax-m3-bf16", dp_attention=8, offload={"host_memory": "100GiB"}, context=4096, max_running_requests=8
    )
    found = plan.to_dict()["scenarios"]["offload"]
    assert found["why_not"] == "SGLang asserts one KV head a rank under HiSparse, and a rank has 4"
    assert found["cure"] == "attention TP of 4"


def test_a_step_that_is_too_long_without_loading_is_not_put_down_to_the_link():
    plan = hsplan.plan("glm-5.2-fp8", context=131072, tpot_ms=5, step_ms={"fixed": 12}, offload={})
    for entry in plan.to_dict()["scenarios"].values():
        assert entry["concurrency"]["binding"] == "tpot_ms"
        assert entry["concurrency"]["limits"]["link"] is None


def test_a_pool_that_max_total_tokens_caps_is_lifted_by_that():
    found = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", max_total_tokens=200_000).launched.capacity
    assert (found.requests, found.binding, found.lift) == (6, "gpu", "a higher max_total_tokens")


def test_a_higher_ratio_is_named_only_where_it_holds_more():
    def at(ratio, **keys):
        return hsplan.plan("glm-5.3-fp8", kv_cache_dtype="fp8_e4m3", context=131_072, offload={
            "host_to_device_ratio": ratio, **keys}).launched.capacity  # fmt: skip

    assert (at(8).lift, at(8).requests) == ("host_to_device_ratio 9", 16)
    assert at(9).requests > 16
    # With 10 GiB beside them the pools of ratio 11 need 941.6 GiB, those of 12 966.6.
    assert at(11, host_memory="950GiB").lift == "more host memory, and host_to_device_ratio 12"
