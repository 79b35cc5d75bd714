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


def test_the_host_pool_has_a_spare_page_and_every_layer():
    plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", max_total_tokens=64_000, host_to_device_ratio=4)
    (host,) = [buffer for buffer in plan.scenarios["offload"].pools.buffers() if buffer.place == "host"]
    assert (host.shape, host.count) == ((256_064, 656), 78)


def test_the_bytes_of_a_tensor_follow_from_its_shape_and_type():
    assert Buffer(line="x", shape=(3, 5), dtype="int32", count=2).bytes == 120
    assert Buffer(line="x", shape=(3, 5), dtype="int16").bytes == 30
    assert Buffer(line="x", shape=(0, 8448), count=57).bytes == 0
