"""Advice is true: a deployment that follows it fits, holds more requests, or both."""

import pytest

import hsplan

HOST = {"host_to_device_ratio": 8, "host_memory": "1TiB"}
CASES = {
    "draft KV that grows with the ratio": (
        "glm-5.1-bf16",
        "offload",
        {"gpu": "h200", "tp": 16, "draft_layers": 1},
        HOST,
    ),
    "no room beside the pool": (
        "glm-5.2-fp8",
        "offload",
        {"gpu": "h200", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "kv_budget": "64GiB", "max_running_requests": "auto"},
        {},
    ),
    "graphs that grow with the cap": (
        "glm-5.3-fp8",
        "elided",
        {
            "gpu": "b200",
            "tp": 4,
            "pp": 2,
            "kv_cache_dtype": "bfloat16",
            "draft_layers": 1,
            "mem_fraction": 0.95,
            "context": 4096,
            "max_running_requests": 64,
        },
        {},
    ),
}


def priced(model, scenario, **keys):
    return hsplan.plan(model, **keys).to_dict()["scenarios"][scenario]


@pytest.mark.parametrize(("model", "scenario", "keys", "offload"), CASES.values(), ids=CASES)
def test_a_deployment_that_follows_the_advice_fits(model, scenario, keys, offload):
    found = priced(model, scenario, **keys, **offload)
    advice = found["concurrency"]["lift"] if found["fits"] else found["cure"]
    key, value = advice.split(",")[0].split(" ")[:2] if "ratio" in advice else advice.split(" ")
    followed = priced(model, scenario, **{**keys, **offload, key: int(value.replace(",", ""))})
    assert followed["fits"] is True
    if found["fits"]:
        assert followed["concurrency"]["requests"] > found["concurrency"]["requests"]


def test_one_request_more_than_the_advice_does_not_fit():
    keys = {"gpu": "h200", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "kv_budget": "64GiB", "context": 8192}
    assert priced("glm-5.2-fp8", "offload", **keys, max_running_requests="auto")["cure"] == "max_running_requests 606"
    assert priced("glm-5.2-fp8", "offload", **keys, max_running_requests=606)["fits"] is True
    assert priced("glm-5.2-fp8", "offload", **keys, max_running_requests=607)["fits"] is False


def test_a_host_pool_that_is_not_all_that_is_missing_says_so():
    keys = {"gpu": "mi355x", "tp": 8, "kv_cache_dtype": "fp8_e4m3", "dp_attention": 8, "mem_fraction": 0.85}
    keys["max_running_requests"] = "auto"
    found = priced("glm-5.3-fp8", "offload", **keys, **HOST)
    assert found["why_not"].startswith("the host pools need")
    assert "of host memory on a node and a lower mem_fraction" in found["cure"]
