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
FAMILIES = [
    {"spec": "deepseek-v4-flash"},
    {"spec": "deepseek-v4-flash", "draft_layers": 3, "release": "0.28.0"},
    {"spec": "deepseek-v4-flash", "release": "0.25.1", "draft_layers": 1},
    {"spec": "deepseek-v4-flash", "gpu": "b200", "indexer_kv_dtype": "mxfp4", "release": "0.26.0"},
    {"spec": "deepseek-v4-flash", "gpu": "b200", "attention_backend": "flashinfer_mla_sparse"},
    {"spec": "deepseek-v4-pro", "gpu": "b200", "pp": 2, "kv_budget": "20GiB", "nodes": 2},
    {"spec": "deepseek-v4.1-flash"},
    {"spec": "deepseek-v4.1-flash", "gpu": "b200", "draft_layers": 3, "indexer_kv_dtype": "mxfp4"},
    {"spec": "deepseek-v4.1-flash", "gpu": "b200", "attention_backend": "flashinfer_mla_sparse", "release": "0.30.0"},
    {"spec": "deepseek-v4.1-flash", "pp": 2, "tp": 4, "draft_layers": 3, "num_speculative_tokens": 7},
    {"spec": "minimax-m3-bf16", "gpu": "b300", "draft_layers": 1, "indexer_kv_dtype": "fp8"},
    {"spec": "minimax-m3-bf16", "gpu": "b300", "pp": 2, "tp": 4, "kv_cache_dtype": "fp8_e4m3"},
]
TENSORS = {
    "KV rows", "index-K", "draft KV pool", "HiSparse tables", "index-K, hot and resident rows", "host KV pool",
    "compressed KV, windows and state",
}  # fmt: skip


def plan_of(spec="glm-5.2-fp8", **overrides):
    release = overrides.pop("release", "0.33.0")
    return hsplan.plan(spec, engine=f"vllm@{release}", max_model_len=65_536, **{"gpu": "h200", **overrides})


@pytest.mark.parametrize("overrides", PLANS + FAMILIES, ids=range(len(PLANS + FAMILIES)))
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


def test_deepseek_v4_keeps_the_pages_of_its_largest_group_in_one_slab():
    plan = plan_of(spec="deepseek-v4-flash", kv_budget=1_000 * 1_002_240)
    buffers = plan.launched.pools.buffers()
    # Entries of 4 tokens, index keys, entries of 128 tokens; each page with its padding.
    assert [(b.shape, b.count) for b in buffers] == [
        ((1_000, 64, 584), 21), ((1_000, 64), 21), ((1_000, 64, 132), 21), ((1_000, 192), 21),
        ((1_000, 2, 584), 20), ((1_000, 560), 20),
    ]  # fmt: skip
    # Slots by page size are more than any group holds: 22 × 37,440 + 21 × 8,640 + 20 × 1,728 less 1,002,240.
    padded = plan_of(spec="deepseek-v4-flash", kv_budget=1_000 * 1_039_680, release="0.26.0").launched.pools.buffers()
    assert (padded[-1].shape, padded[-1].count) == ((1_000, 37_440), 1)


def test_hisparse_keeps_one_slab_on_the_gpu_and_one_on_the_host():
    plan = plan_of(kv_budget=1_000 * 294_912, offload={"host_pool": 2_000 * 5_750_784})
    *tables, slab, host = plan.launched.pools.buffers()
    assert (slab.shape, slab.dtype, slab.place) == ((1_000, 294_912), "uint8", "gpu")
    assert (host.shape, host.place) == ((2_000, 5_750_784), "host")
    # Hot slots of 128 requests, and a row more for the order in which they start.
    assert [t.shape for t in tables] == [(128, 4_096), (129, 4_096), (128, 2_048), (128,), (2,)]
    assert [t.count for t in tables] == [21, 21, 84, 84, 21]
