"""vLLM's tensors by shape against the ledger: two ways to the same bytes."""

import pytest

import hsplan

PLANS = [
    {},
    {"kv_cache_dtype": "fp8_e4m3", "offload": {}, "host_pool": "300GiB"},
    {"draft_layers": 1, "num_speculative_tokens": 3},
    {"dcp": 8, "kv_cache_dtype": "fp8_e4m3"},
    {"pp": 2, "tp": 4, "draft_layers": 1},
    {"tp": 1, "dp": 8, "ep": 8, "kv_budget": "20GiB", "offload": {"device_buffer_size": 6_144}},
    {"release": "0.30.0", "offload": {}, "max_running_requests": 16},
]
TENSORS = {
    "KV rows", "index-K", "draft KV pool", "HiSparse tables", "index-K, hot and resident rows", "host KV pool",
}  # fmt: skip


def plan_of(**overrides):
    release = overrides.pop("release", "0.33.0")
    return hsplan.plan("glm-5.2-fp8", engine=f"vllm@{release}", gpu="h200", max_model_len=65_536, **overrides)


@pytest.mark.parametrize("overrides", PLANS, ids=range(len(PLANS)))
def test_tensors_and_ledger_agree_to_the_byte(overrides):
    for name, entry in plan_of(**overrides).scenarios.items():
        if entry.pools is None:
            continue
        wanted = {line.name: line.bytes for line in (*entry.budget.lines, *entry.pools.lines) if line.name in TENSORS}
        found: dict[str, int] = {}
        for buffer in entry.pools.buffers():
            found[buffer.line] = found.get(buffer.line, 0) + buffer.bytes
        assert found == wanted, name


def test_glm_52_keeps_a_tensor_of_blocks_for_each_layer():
    plan = plan_of(kv_budget=1_000 * 64 * 92_628)
    rows, index = plan.scenarios["elided"].pools.buffers()
    assert (rows.line, rows.shape, rows.count) == ("KV rows", (1_000, 64, 1_152), 78)
    assert (index.line, index.shape, index.count) == ("index-K", (1_000, 64, 132), 21)


def test_hisparse_keeps_one_slab_on_the_gpu_and_one_on_the_host():
    plan = plan_of(kv_budget=1_000 * 294_912, offload={"host_pool": 2_000 * 5_750_784})
    *tables, slab, host = plan.launched.pools.buffers()
    assert (slab.shape, slab.dtype, slab.place) == ((1_000, 294_912), "uint8", "gpu")
    assert (host.shape, host.place) == ((2_000, 5_750_784), "host")
    # Hot slots of 128 requests, and a row more for the order in which they start.
    assert [t.shape for t in tables] == [(128, 4_096), (129, 4_096), (128, 2_048), (128,), (2,)]
    assert [t.count for t in tables] == [21, 21, 84, 84, 21]
