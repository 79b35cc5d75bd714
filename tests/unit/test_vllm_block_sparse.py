"""vLLM's MiniMax-M3: one group of K, V and index keys; expected numbers are written out."""

from __future__ import annotations

import pytest
from configs import MINIMAX_M3, spec_of

import hsplan
from hsplan import UnsupportedError

GIB = 2**30
BF16, MIXED, FP8 = {}, {"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "fp8_e4m3", "indexer_kv_dtype": "fp8"}


def plan_of(**keys):
    given = {"engine": "vllm", "gpu": "b200", "tp": 4, "kv_budget": "40GiB", "max_model_len": 65_536} | keys
    return hsplan.plan(spec_of(MINIMAX_M3, **given))


def launched(**keys):
    plan = plan_of(**keys).to_dict()
    return plan["scenarios"][plan["as_launched"]]


# TP: bytes a token with a bf16 cache, with fp8 K and V, and with an fp8 index too.
RATES = [
    (1, 137_472, 76_032, 68_736),
    (2, 76_032, 45_312, 38_016),
    (4, 45_312, 29_952, 22_656),
    (8, 45_312, 29_952, 22_656),
]


@pytest.mark.parametrize(("tp", "bf16", "mixed", "fp8"), RATES)
def test_the_rates_are_those_of_the_table(tp, bf16, mixed, fp8):
    for keys, rate in ((BF16, bf16), (MIXED, mixed), (FP8, fp8)):
        found = launched(tp=tp, **keys)
        assert found["bytes_per_token"]["charged"] == rate
        assert found["blocks"]["bytes_per_block"] == 128 * rate
        assert found["blocks"]["num_blocks"] == 40 * GIB // (128 * rate)


def test_a_row_is_k_and_v_of_the_heads_of_one_rank():
    # 2 × 4 / 2 heads × 128 × 1 B, 60 layers; 57 index keys of 128 values.
    found = launched(tp=2, **FP8)
    assert found["row"] == {
        "format": "kv_fp8", "bytes": 512, "attention_backend": "minimax_m3_msa", "kv_cache_dtype": "fp8_e4m3",
        "page_tokens": 128,
    }  # fmt: skip
    assert (found["bytes_per_token"]["stored_kv"], found["bytes_per_token"]["stored_index"]) == (30_720, 7_296)
    assert launched(gpu="h200")["row"]["attention_backend"] == "minimax_m3_triton"


def test_a_draft_layer_has_k_and_v_and_no_index():
    found = launched(tp=2, draft_layers=1, **FP8)
    assert found["bytes_per_token"]["draft"] == 512
    assert found["bytes_per_token"]["charged"] == 38_528


def test_tokens_are_those_of_whole_blocks():
    found = launched(kv_budget=1_000 * 128 * 45_312, max_model_len=65_536)
    assert found["max_total_num_tokens"] == int(1_000 / 512 * 65_536) == 128_000
    assert found["concurrency"]["limits"]["gpu"] == 128_000 // 32_768


def test_the_last_stage_has_no_dense_layer():
    # Layers 30 to 59 are sparse: 30 rows of 512 B and 30 keys of 256 B.
    assert launched(pp=2)["blocks"]["bytes_per_block"] == 128 * 30 * (512 + 256)


REFUSED = [
    ({"offload": {}}, "takes DSA models with index_topk only, not MiniMax-M3"),
    ({"offload": {}, "release": "0.29.0"}, "vLLM 0.29.0 has no HiSparse"),
    ({"release": "main-2026-06-28"}, "how vLLM main-2026-06-28 sizes MiniMax-M3 is not known"),
    ({"dcp": 2}, "dcp with MiniMax-M3 is not modelled"),
    ({"indexer_kv_dtype": "mxfp4"}, "is bf16 or fp8, not mxfp4"),
    ({"attention_backend": "fa3"}, "attention of its own"),
    ({"page_size": 64}, "pages of 128 tokens, not 64"),
]


@pytest.mark.parametrize(("keys", "words"), REFUSED)
def test_what_vllm_or_hsplan_does_not_run_is_refused_with_the_reason(keys, words):
    with pytest.raises(UnsupportedError) as caught:
        launched(**keys)
    assert words in "\n".join(caught.value.lines())


def test_index_values_are_refused():
    sparse = {**MINIMAX_M3["sparse_attention_config"], "sparse_disable_index_value": [0] * 60}
    with pytest.raises(UnsupportedError, match="keeps keys only"):
        hsplan.plan(spec_of({**MINIMAX_M3, "sparse_attention_config": sparse}, engine="vllm", gpu="b200", tp=4))
