"""vLLM's DeepSeek-V4.1: pages, groups, strides and requests by release; expected numbers are written out."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V4_1_FLASH, spec_of

import hsplan
from hsplan import UnsupportedError

GIB = 2**30
FLASH = DEEPSEEK_V4_1_FLASH


def plan_of(model=FLASH, context=4_096, **keys):
    given = {"engine": "vllm", "gpu": "h200", "tp": 8, "kv_budget": "20GiB", "max_model_len": 33_792} | keys
    return hsplan.plan(spec_of(model, **given), context=context)


def launched(model=FLASH, **keys):
    plan = plan_of(model, **keys).to_dict()
    return plan["scenarios"][plan["as_launched"]]


def groups_of(model=FLASH, **keys):
    """The pages of every group as written out: (bytes, layers, name) of each."""
    found = []
    for step in plan_of(model, **keys).launched.layout.explain():
        parts = [part.split(" ", 4) for part in step.formula.split(" = ")[0].split(" + ")]
        found.append([(int(size.replace(",", "")), int(layers), name) for size, _, _, layers, name in parts])
    return found


def test_four_source_layers_have_entries_and_keys_and_every_layer_a_window():
    full, *windows, ring = groups_of()
    assert full == [
        (19_008, 3, "ratio-2 KV"),  # 32 x 584 = 18,688, in whole 576 B
        (4_608, 3, "index-K"),  # 32 x 132 = 4,224
        (37_440, 1, "ratio-1 KV"),  # 64 x 584 = 37,376
        (8_640, 1, "index-K"),  # 64 x 132 = 8,448
    ]
    # 116,928 // 19,008 = 6 windows fit a block of entries: 40 in 7 groups.
    assert windows == [[(19_008, n, "window KV")] for n in (6, 6, 6, 6, 6, 5, 5)]
    assert ring == [(32_768, 3, "ratio-2 ring")]  # 8 x 2 x 512 x 4
    assert plan_of().launched.layout.index_layers == 4


# keys, format, bytes of an entry, backend, tokens of a block, bytes of a block
ROWS = [
    # 3 x (19,008 + 4,608) + 37,440 + 8,640
    ({}, "v4_packed", 584, "flashmla_sparse_dsv41", 64, 116_928),
    # 3 x (37,440 + 8,640) + 74,880 + 17,280
    ({"gpu": "rtx-pro-6000"}, "v4_packed", 584, "flashinfer_mla_sparse_dsv41", 128, 230_400),
    # 3 x (18,432 + 4,608) + 36,864 + 8,704 = 114,688: the recipe's 890 B a token, 2.5 x (288 + 68), in pages.
    ({"gpu": "b200", "indexer_kv_dtype": "mxfp4", "release": "0.32.0"}, "v41_fp4", 288, "flashmla_mega_attn_dsv41",
     128, 114_688),
    # In whole rows of 528 and of 288 B: 37 x 3,168.
    ({"gpu": "b200", "indexer_kv_dtype": "mxfp4"}, "v41_fp4", 288, "flashmla_mega_attn_dsv41", 128, 117_216),
    # 3 x (33,792 + 8,704) + 67,584 + 16,896 = 211,968, then 402 x 528.
    ({"gpu": "b200", "release": "0.30.0"}, "v41", 528, "flashmla_sparse_dsv41", 128, 211_968),
    ({"gpu": "b200", "attention_backend": "flashmla_sparse"}, "v41", 528, "flashmla_sparse_dsv41", 128, 212_256),
    # 3 x (65,536 + 8,704) + 131,072 + 16,896; 3 x (32,768 + 8,704) + 65,536 + 16,896
    ({"gpu": "b200", "attention_backend": "flashinfer_mla_sparse"}, "bf16", 1_024, "flashinfer_mla_sparse_dsv41",
     128, 370_688),
    ({"gpu": "b200", "attention_backend": "flashinfer_mla_sparse", "kv_cache_dtype": "fp8_e4m3"}, "fp8_raw", 512,
     "flashinfer_mla_sparse_dsv41", 128, 206_848),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "kind", "size", "backend", "page", "block"), ROWS)
def test_entry_and_block_follow_gpu_backend_and_release(keys, kind, size, backend, page, block):
    found = launched(**keys)
    row, blocks = found["row"], found["blocks"]
    assert (row["format"], row["bytes"], row["attention_backend"], row["page_tokens"]) == (kind, size, backend, page)
    assert blocks["bytes_per_block"] == block
    assert blocks["bytes_per_full_token"] == block / page
    assert blocks["num_blocks"] == 20 * GIB // block


def test_the_mega_kernel_wants_eight_heads_a_group():
    assert launched({**FLASH, "num_attention_heads": 128}, gpu="b200")["row"]["format"] == "v41"


def test_a_request_takes_a_ring_and_the_blocks_of_seven_windows():
    found = launched(max_num_batched_tokens=8_192, context=32_768)
    # F = 16,384: 528 + 7 x (cdiv(127 + 16,384, 32) + 1) + 1
    each = 528 + 7 * 517 + 1
    assert found["blocks"]["max_concurrency"] == (20 * GIB // 116_928) / each
    assert found["max_total_num_tokens"] == 1_496_183
    assert found["blocks"]["fixed_bytes_per_request"] == (7 * 517 + 1) * 116_928
    # At rest 129 tokens of a window: 6 blocks of 32.
    assert found["concurrency"]["limits"]["gpu"] == 1 + (183_658 - (512 + 7 * 517 + 1)) // (512 + 7 * 6 + 1)


def test_the_start_up_check_leaves_out_the_null_block():
    run = {"max_num_batched_tokens": 8_192}
    assert launched(kv_budget=4_149 * 116_928, **run)["fits"]
    assert "one request of max_model_len 33,792 needs" in launched(kv_budget=4_149 * 116_928 - 1, **run)["why_not"]


def test_draft_layers_are_windows_and_drafted_tokens_widen_the_ring():
    drafts = groups_of(draft_layers=3)
    assert [group[0][1] for group in drafts if group[0][2] == "window KV"] == [6, 6, 6, 5, 5, 5, 5, 5]
    assert drafts[-1] == [(32_768, 3, "ratio-2 ring")]  # 3 + 2 rows, of 8
    assert groups_of(draft_layers=3, num_speculative_tokens=6)[-1] == [(32_768, 3, "ratio-2 ring")]  # 6 + 2 rows
    # 7 + 2 rows take 16, of 65,536 B: one fits a block.
    assert groups_of(draft_layers=3, num_speculative_tokens=7)[-3:] == [[(65_536, 1, "ratio-2 ring")]] * 3


def test_sources_of_one_ratio_cut_windows_as_those_of_v4():
    model = {**FLASH, "num_hidden_layers": 12, "compress_ratios": [2] * 12, "kv_source_layer_ids": [0, 3, 6, 9],
             "index_source_layer_ids": [0, 3, 6, 9]}  # fmt: skip
    assert [[(layers, name) for _, layers, name in group] for group in groups_of(model)] == [
        [(4, "ratio-2 KV"), (4, "index-K")], *[[(4, "window KV")]] * 3, [(2, "ratio-2 ring")], [(2, "ratio-2 ring")],
    ]  # fmt: skip


def test_a_stage_holds_its_layers_of_every_group():
    # Layers 0 to 19: 3 x (19,008 + 4,608) of entries and keys, less than the 3 rings.
    assert launched(pp=2, tp=4)["blocks"]["bytes_per_block"] == 3 * 32_768


REFUSED = [
    (FLASH, {"release": "0.29.0"}, "how vLLM 0.29.0 sizes DeepSeek-V4.1 is not known"),
    (FLASH, {"offload": {}}, "HiSparse of vLLM 0.33.0 does not support DeepSeek-V4.1"),
    (FLASH, {"dcp": 2}, "dcp with DeepSeek-V4.1 on vLLM is not modelled"),
    (FLASH, {"pcp": 2, "tp": 4}, "pcp with DeepSeek-V4.1 on vLLM is not modelled"),
    (FLASH, {"pp": 4, "tp": 2}, "a stage that starts at layer 10 is parted from the layer whose entries it reads"),
    (FLASH, {"layer_range": [21, 40]}, "a stage that starts at layer 21 is parted"),
    (FLASH, {"kv_cache_dtype": "bfloat16"}, "packed entries of DeepSeek-V4.1 are fp8"),
    (FLASH, {"gpu": "a100"}, "no attention of DeepSeek-V4.1 for the a100"),
    (FLASH, {"attention_backend": "flashinfer_mla_sparse"}, "no backend of DeepSeek-V4.1 on the h200"),
    (FLASH, {"tp": 16, "nodes": 2}, "8 output groups of DeepSeek-V4.1 cannot be divided over 16 ranks"),
    (FLASH, {"page_size": 256}, "blocks of DeepSeek-V4.1 on the h200 have 64 tokens"),
    (FLASH, {"indexer_kv_dtype": "mxfp4"}, "Blackwell datacenter GPU"),
    ({**FLASH, "index_source_layer_ids": [2, 8, 20]}, {}, "has no index keys in vLLM"),
    ({**FLASH, "compress_ratios": [4, 0, *[2] * 18, *[1] * 20]}, {}, "ratios 0, 1 and 2 only"),
    ({**FLASH, "kv_source_layer_ids": [0, 2, 8, 14, 20]}, {}, "source layers of ratio 1 or 2"),
    ({**FLASH, "index_head_dim": 64}, {}, "index keys other than of 128"),
]


@pytest.mark.parametrize(("model", "keys", "words"), REFUSED)
def test_what_vllm_or_hsplan_does_not_run_is_refused_with_the_reason(model, keys, words):
    with pytest.raises(UnsupportedError) as caught:
        launched(model, **keys)
    assert words in "\n".join(caught.value.lines())


def test_the_workspace_is_that_of_entries_of_the_lowest_ratio():
    keys = {"kv_budget": "auto", "max_num_batched_tokens": 8_192}
    ledger = launched({**FLASH}, weights={"bytes_per_rank": 70 * GIB}, **keys)["ledger"]
    lines = {line["name"]: line["bytes"] for line in ledger}
    # Entries, and 640 ids and a count for each token: more than 40 x 33,792 x 132 B of index keys.
    assert lines["sparse attention workspace"] == 4 * (33_792 + 128 + 8_192) * 1_024 + 8_192 * 641 * 4
    assert lines["top-k buffer"] == 8_192 * 512 * 4


def test_both_engines_stand_side_by_side():
    plans = [hsplan.plan("deepseek-v4.1-flash", engine=engine) for engine in ("sglang@0.5.23", "vllm@0.33.0")]
    assert all(plan.launched.available for plan in plans)
    assert plans[1].to_dict()["scenarios"]["baseline"]["blocks"]["num_blocks"] == 40 * GIB // 116_928
