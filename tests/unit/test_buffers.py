"""Tensors by shape against the ledger: two ways to the same bytes, and a few tensors written out by hand."""

import pytest

import hsplan
from hsplan.engines import Buffer

# Lines that stand for estimates, not for tensors.
WITHOUT_TENSORS = {"attention workspace", "decode graphs", "activations"}


def by_line(pools):
    found = {}
    for buffer in pools.buffers():
        found[buffer.line] = found.get(buffer.line, 0) + buffer.bytes
    return found


PLANS = [
    ("glm-5.2-fp8", {}),
    ("glm-5.2-fp8", {"kv_cache_dtype": "fp8_e4m3", "host_to_device_ratio": 8}),
    ("glm-5.2-fp8", {"engine": "sglang@0.5.17", "host_to_device_ratio": 2.5}),
    ("glm-5.2-fp8", {"draft_layers": 1}),
    ("glm-5.2-fp8", {"draft_layers": 1, "num_speculative_tokens": 3, "device_buffer_size": 8192}),
    ("glm-5.2-fp8", {"engine": "sglang@0.5.20", "draft_layers": 1, "num_speculative_tokens": 3}),
    ("deepseek-v3.2-fp8", {"kv_cache_dtype": "fp8_e4m3"}),
    ("deepseek-v3.2-fp8", {"device_buffer_size": 6144, "dp_attention": 4}),
    ("glm-5.3-fp8", {"disaggregation": "decode", "max_running_requests": 16}),
    ("glm-5.2-nvfp4", {"gpu": "gb300", "tp": 4, "engine": "sglang@0.5.17", "kv_budget": "134.127GiB"}),
    ("deepseek-v4-flash", {}),
    ("deepseek-v4-flash", {"swa_full_tokens_ratio": None}),
    ("deepseek-v4-flash", {"gpu": "b300", "attention_backend": "trtllm"}),
    ("deepseek-v4-flash", {"engine": "sglang@0.5.17", "host_to_device_ratio": 4}),
    ("deepseek-v4-flash", {"engine": "sglang@0.5.20", "draft_layers": 1, "num_speculative_tokens": 3}),
    ("deepseek-v4-flash", {"release": "main-2026-05-15", "kv_budget": "40GiB"}),
    ("deepseek-v4-flash", {"layer_range": [20, 43], "kv_budget": "40GiB"}),
    ("deepseek-v4-pro", {"swa_full_tokens_ratio": 0.2, "device_buffer_size": 2048, "host_to_device_ratio": 3}),
    ("deepseek-v4-pro", {"draft_layers": 1, "disaggregation": "decode", "max_running_requests": 16}),
    ("deepseek-v4-pro", {"pp": 2, "tp": 8, "nodes": 2}),
    ("deepseek-v4.1-flash", {}),
    ("deepseek-v4.1-flash", {"gpu": "b200", "dp_attention": 8, "draft_layers": 3}),
    ("minimax-m3-bf16", {}),
    ("minimax-m3-bf16", {"kv_cache_dtype": "fp8_e4m3", "host_to_device_ratio": 4}),
    ("minimax-m3-bf16", {"gpu": "h200", "kv_cache_dtype": "fp8_e4m3", "engine": "sglang@0.5.20", "kv_budget": "30GiB"}),
    ("minimax-m3-bf16", {"layer_range": [20, 60], "kv_budget": "50GiB", "page_size": 64}),
]


@pytest.mark.parametrize(("spec", "overrides"), PLANS, ids=[f"{spec}-{i}" for i, (spec, _) in enumerate(PLANS)])
def test_tensors_and_ledger_agree_to_the_byte(spec, overrides):
    plan = hsplan.plan(spec, **overrides)
    for name, entry in plan.scenarios.items():
        if entry.pools is None:
            continue
        wanted = {line.name: line.bytes for line in entry.pools.lines if line.name not in WITHOUT_TENSORS}
        found = {line: size for line, size in by_line(entry.pools).items() if size}
        assert found == wanted, name


def test_glm_52_keeps_78_layers_of_rows_and_21_of_index_keys():
    plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", max_total_tokens=64_000)
    buffers = plan.scenarios["elided"].pools.buffers()
    rows, index, elided, table = buffers
    assert (rows.line, rows.shape, rows.dtype, rows.count) == ("KV rows", (64_064, 1, 656), "uint8", 78)
    assert (index.line, index.shape, index.count) == ("index-K", (1_001, 8_448), 21)
    assert (elided.shape, elided.count) == ((0, 8_448), 57)
    assert (table.shape, table.dtype) == ((129, 1_048_580), "int32")


def shapes(pools):
    return [(buffer.line, buffer.shape, buffer.dtype, buffer.count) for buffer in pools.buffers() if buffer.count]


def test_deepseek_v4_flash_keeps_windows_entries_keys_and_state_by_pages():
    flags = {"max_total_tokens": 256_000, "max_running_requests": 4, "max_model_len": 65_536, "radix_cache": False}
    windows = {"swa_full_tokens_ratio": None, "chunked_prefill_size": 8192}
    plan = hsplan.plan("deepseek-v4-flash", kv_budget="40GiB", **flags, **windows)
    # 4 requests × (128 window + 128 eviction + 256 page + 256 step) + 2 chunks + a page = 19,712 window slots
    assert shapes(plan.scenarios["baseline"].pools) == [
        ("window KV", (78, 149_760), "uint8", 43),  # 77 pages and one to spare, 256 × 584 padded to 576
        ("ratio-4 KV", (1_004, 37_440), "uint8", 21),  # 64,000 entries and 256 slots, 64 a page
        ("ratio-128 KV", (1_128, 1_728), "uint8", 20),  # 2,000 entries and 256 slots, 2 a page
        ("index-K", (1_004, 8_448), "uint8", 21),  # 64 × 132
        ("ratio-4 state", (628, 2_048), "float32", 21),  # 77 rings of 8, one and a row to spare, in blocks of 4
        ("ratio-4 state", (628, 512), "float32", 21),
        ("ratio-128 state", (896, 1_024), "float32", 20),  # 5 rings of 128, one and a row to spare, in blocks of 128
        ("token to window map", (256_257,), "int64", 1),
        ("request to token table", (5, 65_540), "int32", 1),
    ]


def test_hisparse_moves_the_ratio_4_entries_of_deepseek_v4():
    flags = {"max_total_tokens": 256_000, "max_running_requests": 4, "max_model_len": 65_536}
    plan = hsplan.plan("deepseek-v4-flash", kv_budget="40GiB", host_to_device_ratio=4, **flags)
    found = shapes(plan.scenarios["offload"].pools)
    assert ("ratio-4 KV", (254, 37_440), "uint8", 21) in found  # a quarter of the 64,000 entries
    assert ("index-K", (1_004, 8_448), "uint8", 21) in found  # the keys of all of them
    assert ("host KV pool", (1_000, 37_440), "uint8", 21) in found
    assert ("HiSparse request tables", (5, 4_096 + 64), "int64", 1) in found
    assert ("HiSparse request tables", (5, 65_540 // 4 + 64), "int64", 1) in found  # a host slot for 4 tokens
    assert ("logical to device map", (64_000 + 64 + 1,), "int64", 1) in found


def test_deepseek_v4_1_keeps_entries_and_keys_in_its_source_layers_only():
    flags = {"max_total_tokens": 256_000, "max_running_requests": 4, "max_model_len": 65_536}
    found = shapes(hsplan.plan("deepseek-v4.1-flash", **flags).scenarios["baseline"].pools)
    assert ("ratio-2 KV", (1_002, 74_880), "uint8", 3) in found  # 128,000 entries and 256 slots, 128 a page
    assert ("ratio-1 KV", (1_001, 149_760), "uint8", 1) in found
    assert ("index-K, ratio 2", (2_003, 4_352), "uint8", 3) in found  # 128,128 entries and a page of 64 × 68
    assert ("index-K, ratio 1", (4_005, 4_352), "uint8", 1) in found
    assert ("ratio-2 state", (14, 1_024), "float32", 3) in found  # 5 rings of 2, one and a row to spare


def test_m3_keeps_k_and_v_of_every_layer_and_a_key_a_sparse_layer():
    plan = hsplan.plan("minimax-m3-bf16", max_total_tokens=128_000, max_running_requests=4, max_model_len=65_536)
    assert shapes(plan.scenarios["baseline"].pools) == [
        ("KV rows", (128_128, 256), "uint8", 6),  # K and V of 3 dense layers, one head of 128 in bf16
        ("KV rows", (128_128, 256), "uint8", 114),
        ("index-K", (128_128, 256), "uint8", 57),
        ("request to token table", (5, 65_540), "int32", 1),
    ]
    offload = shapes(plan.scenarios["offload"].pools)
    assert ("dense KV rows", (256_128, 256), "uint8", 6) in offload
    assert ("KV rows", (128_128, 256), "uint8", 114) in offload
    assert ("index-K", (256_128, 256), "uint8", 57) in offload
    assert ("HiSparse request tables", (5, 4_096), "int32", 1) in offload  # any slot of the hot buffer
    assert ("host KV pool", (256_128, 256), "uint8", 114) in offload


def test_the_host_pool_has_a_spare_page_and_every_layer():
    plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", max_total_tokens=64_000, host_to_device_ratio=4)
    (host,) = [buffer for buffer in plan.scenarios["offload"].pools.buffers() if buffer.place == "host"]
    assert (host.shape, host.count) == ((256_064, 656), 78)


def test_the_bytes_of_a_tensor_follow_from_its_shape_and_type():
    assert Buffer(line="x", shape=(3, 5), dtype="int32", count=2).bytes == 120
    assert Buffer(line="x", shape=(3, 5), dtype="int16").bytes == 30
    assert Buffer(line="x", shape=(0, 8448), count=57).bytes == 0
