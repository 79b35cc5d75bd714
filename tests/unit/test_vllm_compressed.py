"""vLLM's DeepSeek-V4: pages, groups, strides and requests by release; expected numbers are written out."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V4_FLASH, DEEPSEEK_V4_PRO, spec_of

import hsplan
from hsplan import InputError, UnsupportedError

GIB = 2**30
FLASH, PRO = DEEPSEEK_V4_FLASH, DEEPSEEK_V4_PRO


def plan_of(model=FLASH, context=4_096, **keys):
    given = {"engine": "vllm", "gpu": "h200", "tp": 8, "kv_budget": "20GiB", "max_model_len": 33_792} | keys
    return hsplan.plan(spec_of(model, **given), context=context)


def launched(model=FLASH, **keys):
    plan = plan_of(model, **keys).to_dict()
    return plan["scenarios"][plan["as_launched"]]


def groups_of(model=FLASH, **keys):
    """The pages of every group as written out: (page bytes, layers) in each."""
    steps = plan_of(model, **keys).launched.layout.explain()
    return [[part.split(" B × ") for part in step.formula.split(" = ")[0].split(" + ")] for step in steps]


def pages(model=FLASH, **keys):
    return {part[1].split(" ", 1)[1]: int(part[0].replace(",", "")) for group in groups_of(model, **keys)
            for part in group}  # fmt: skip


def test_the_pages_are_those_of_the_table():
    assert pages() == {
        "ratio-4 KV": 37_440,  # 64 × 584 = 37,376, in whole 576 B
        "index-K": 8_640,  # 64 × 132 = 8,448
        "ratio-128 KV": 1_728,  # 2 × 584 = 1,168
        "window KV": 37_440,
        "ratio-128 state": 32_832,  # 8 × 2 × 512 × 4 = 32,768
        "ratio-4 state": 32_832,  # 4 × 4 × 512 × 4 = 32,768
        "index state": 8_640,  # 4 × 4 × 128 × 4 = 8,192
    }
    assert pages(gpu="b200", indexer_kv_dtype="mxfp4")["index-K"] == 4_608  # 64 × 68 = 4,352


def test_plain_rows_of_flashinfer_lie_in_whole_512_bytes():
    keys = {"gpu": "b200", "attention_backend": "flashinfer_mla_sparse"}
    fp8, bf16 = pages(kv_cache_dtype="fp8_e4m3", **keys), pages(**keys)
    assert (fp8["window KV"], fp8["ratio-128 KV"], fp8["index-K"]) == (32_768, 1_024, 8_704)
    assert (bf16["window KV"], bf16["ratio-128 KV"], bf16["ratio-4 state"]) == (65_536, 2_048, 32_768)
    assert launched(**keys)["row"] == {
        "format": "bf16", "bytes": 1_024, "attention_backend": "flashinfer_mla_sparse_dsv4",
        "kv_cache_dtype": "bfloat16", "page_tokens": 256,
    }  # fmt: skip


# model, keys, release, bytes of a block, of a token
STRIDES = [
    (FLASH, {}, "0.26.0", 1_039_680, 4_061.25),  # 22 × 37,440 + 21 × 8,640 + 20 × 1,728
    (FLASH, {}, "0.27.0", 1_002_240, 3_915),  # 21 × 46,080 + 20 × 1,728
    (FLASH, {}, "0.33.0", 1_002_240, 3_915),
    (FLASH, {"draft_layers": 3}, "0.33.0", 1_002_240, 3_915),
    (FLASH, {"gpu": "b200", "indexer_kv_dtype": "mxfp4"}, "0.33.0", 917_568, 3_584.25),  # 21 × 42,048 + 34,560
    (PRO, {}, "0.33.0", 1_435_968, 5_609.25),  # 30 × 46,080 + 31 × 1,728
    (PRO, {"gpu": "b200", "indexer_kv_dtype": "mxfp4"}, "0.33.0", 1_315_008, 5_136.75),
]


@pytest.mark.parametrize(("model", "keys", "release", "block", "token"), STRIDES)
def test_the_bytes_of_a_block_are_those_of_the_table(model, keys, release, block, token):
    blocks = launched(model, release=release, **keys)["blocks"]
    assert (blocks["bytes_per_block"], blocks["bytes_per_full_token"]) == (block, token)
    assert blocks["num_blocks"] == 20 * GIB // block


# model, keys, bytes that a block counts in the start-up check: tuples × (37,440 + 8,640 + 1,728), or the block.
CHECKS = [
    (FLASH, {"release": "0.25.0"}, 22 * 47_808),
    (FLASH, {"release": "0.28.0"}, 22 * 47_808),
    (FLASH, {"release": "0.28.0", "draft_layers": 3}, 23 * 47_808),
    (PRO, {"release": "0.28.0"}, 31 * 47_808),
    (FLASH, {"release": "0.29.0"}, 1_002_240),
]


@pytest.mark.parametrize(("model", "keys", "block"), CHECKS)
def test_the_start_up_check_counts_whole_tuples_before_029(model, keys, block):
    # 132 + 2 × (cdiv(8,319, 64) + 1) + (cdiv(8,319, 8) + 1) + (cdiv(8,199, 4) + 1) blocks, F = 8,192
    blocks = 132 + 2 * 131 + 1_041 + 2_051
    spare = block if keys["release"] == "0.29.0" else 0  # the null block
    run = {"max_num_batched_tokens": 8_192, "async_scheduling": False, **keys}
    assert launched(model, kv_budget=blocks * block + spare, **run)["fits"]
    short = launched(model, kv_budget=blocks * block + spare - 1, **run)
    assert "one request of max_model_len 33,792 needs" in short["why_not"]
    # One block of 256 tokens less.
    assert short["cure"] == "max_model_len 33,536"


def test_five_groups_take_blocks_of_one_pool():
    assert [[int(part[1].split()[0]) for part in group] for group in groups_of()] == [
        [21, 21, 20], [22], [21], [20], [21, 21],
    ]  # fmt: skip
    assert [[int(part[1].split()[0]) for part in group] for group in groups_of(PRO)] == [
        [30, 30, 31], [31], [30], [31], [30, 30],
    ]  # fmt: skip
    # DSpark: 46 windows in two groups of 23.
    assert [[int(part[1].split()[0]) for part in group] for group in groups_of(draft_layers=3)][1:3] == [[23], [23]]


def test_groups_of_more_layers_are_taken_where_padding_is_the_same():
    # 4 windows, 1 and 3 states: groups of 3 and of 4 both leave 4 places empty.
    small = {**FLASH, "num_hidden_layers": 4, "compress_ratios": [4, 4, 4, 128]}
    counts = [[int(part[1].split()[0]) for part in group] for group in groups_of(small)]
    assert counts == [[3, 3, 1], [4], [1], [3, 3]]


def test_index_state_padded_to_a_larger_page_was_cut_in_two_with_fp4_keys():
    # Before 0.27.0 8,640 B do not fit the 4,608 B of fp4 keys: 42 states of 37,440 B, in two groups of 21.
    keys = {"gpu": "b200", "indexer_kv_dtype": "mxfp4", "release": "0.26.0"}
    assert [[int(part[1].split()[0]) for part in group] for group in groups_of(**keys)] == [
        [21, 21, 20], [22], [21], [20], [21], [21],
    ]  # fmt: skip


# L, F: blocks of a request
BLOCKS = [
    (33_792, 16_896, 132 + 2 * 267 + 2_129 + 4_227),
    (30_000, 16_384, 118 + 2 * 259 + 2_065 + 4_099),
    (1_048_576, 16_384, 4_096 + 2 * 259 + 2_065 + 4_099),
    (4_096, 16_384, 16 + 2 * 65 + 513 + 1_025),
]


@pytest.mark.parametrize(("length", "in_flight", "blocks"), BLOCKS)
def test_a_request_takes_the_blocks_of_all_groups(length, in_flight, blocks):
    found = launched(max_model_len=length, max_num_batched_tokens=in_flight // 2)
    assert found["blocks"]["max_concurrency"] == (20 * GIB // 1_002_240) / blocks
    assert found["max_total_num_tokens"] == int((20 * GIB // 1_002_240) / blocks * length)
    full = -(-length // 256)
    assert found["blocks"]["fixed_bytes_per_request"] == (blocks - full) * 1_002_240


def test_windows_count_the_tokens_of_every_step_from_026_on():
    def blocks(release, **keys):
        found = launched(release=release, max_num_batched_tokens=2_048, max_model_len=262_144, **keys)["blocks"]
        return round(found["num_blocks"] / found["max_concurrency"])

    # Bytes in blocks of full attention: (p_swa × 43 + p_c128 × 20) × 37,440 + p_c4 × 21 × 46,080, over 1,002,240.
    # F = 2,048: 35, 273 and 515 pages; F = 4,096: 67, 529 and 1,027.
    assert blocks("0.25.1") == -(-(1_024 * 1_002_240 + (35 * 43 + 273 * 20) * 37_440 + 515 * 967_680) // 1_002_240)
    assert blocks("0.25.1") == 1_782
    assert blocks("0.26.0") == -(-(1_024 * 1_002_240 + (67 * 43 + 529 * 20) * 37_440 + 1_027 * 967_680) // 1_002_240)
    assert blocks("0.26.0", async_scheduling=False) == 1_782
    assert blocks("0.27.0", async_scheduling=False) == 1_024 + 2 * 35 + 273 + 515


def test_requests_count_the_tokens_in_flight_once():
    found = launched(context=32_768, max_num_batched_tokens=8_192, kv_budget=20_000 * 1_002_240)
    # 128 + 2 × 259 + 2,065 + 4,099 blocks are admitted; at rest windows of 127 + 2 and 7 + 2 tokens stay.
    assert found["concurrency"]["limits"]["gpu"] == 1 + (20_000 - 6_810) // (128 + 2 * 4 + 18 + 4)
    assert found["blocks"]["steady_state_concurrency"] == 1 + (20_000 - 6_814) / (132 + 2 * 4 + 18 + 4)


def test_stages_hold_their_layers_of_every_group():
    # Layers 0 to 21 of 43: 10 of ratio 4 and 10 of ratio 128; the draft is on the last stage.
    first = launched(pp=2, tp=4, draft_layers=1)
    assert first["blocks"]["bytes_per_block"] == 11 * 46_080 + 10 * 1_728
    assert launched(layer_range=[0, 22])["blocks"]["bytes_per_block"] == 10 * 46_080 + 10 * 1_728


REFUSED = [
    (FLASH, {"offload": {}}, "HiSparse of vLLM 0.33.0 does not support DeepSeek-V4"),
    (FLASH, {"offload": {}, "release": "0.29.0"}, "has no HiSparse (from 0.30.0 on, and not for DeepSeek-V4)"),
    (FLASH, {"dcp": 2}, "sliding windows do not run with it"),
    (FLASH, {"pcp": 2, "tp": 4, "release": "0.25.1"}, "sliding windows do not run with it"),
    (FLASH, {"pp": 2, "tp": 4, "release": "0.26.0"}, "pipeline stages of DeepSeek-V4 is not modelled"),
    (FLASH, {"release": "main-2026-04-27"}, "how vLLM main-2026-04-27 sizes DeepSeek-V4 is not known"),
    (FLASH, {"kv_cache_dtype": "bfloat16"}, "packed entries of DeepSeek-V4 are fp8"),
    (FLASH, {"gpu": "a100"}, "no attention of DeepSeek-V4 for the a100"),
    (FLASH, {"gpu": "mi355x"}, "on ROCm"),
    (FLASH, {"attention_backend": "flashinfer_mla_sparse"}, "no backend of DeepSeek-V4 on the h200"),
    (FLASH, {"tp": 16, "nodes": 2}, "8 output groups of DeepSeek-V4 cannot be divided over 16 ranks"),
    (FLASH, {"page_size": 64}, "pages of 256 tokens, not 64"),
    (FLASH, {"indexer_kv_dtype": "mxfp4"}, "Blackwell datacenter GPU"),
    ({**FLASH, "compress_ratios": [0, 0, *[4, 128] * 20, 2], "kv_source_layer_ids": [42]}, {}, "of ratio 4 and of"),
]


@pytest.mark.parametrize(("model", "keys", "words"), REFUSED)
def test_what_vllm_or_hsplan_does_not_run_is_refused_with_the_reason(model, keys, words):
    with pytest.raises(UnsupportedError) as caught:
        launched(model, **keys)
    assert words in "\n".join(caught.value.lines())


def test_offload_is_unavailable_with_the_reason_and_elision_changes_nothing():
    plan = plan_of().to_dict()
    assert plan["as_launched"] == "baseline"
    for name in ("offload", "elided+offload"):
        assert plan["scenarios"][name]["reason"] == "HiSparse of vLLM 0.33.0 does not support DeepSeek-V4"
    assert plan["scenarios"]["elided"]["blocks"] == plan["scenarios"]["baseline"]["blocks"]
    assert "offload" not in plan["scenarios"]["baseline"]["concurrency"]["lift"]


def test_the_window_ratio_of_the_other_engine_is_noted_and_changes_nothing():
    with_ratio = plan_of(swa_full_tokens_ratio=0.1)
    assert any("swa_full_tokens_ratio is SGLang's" in note for note in with_ratio.notes)
    assert with_ratio.to_dict()["scenarios"] == plan_of().to_dict()["scenarios"]
    with pytest.raises(InputError, match="radix_cache is a key of SGLang"):
        plan_of(radix_cache=False)


def test_the_workspace_is_that_of_entries_of_four_tokens():
    lines = {line["name"]: line["bytes"] for line in launched(kv_budget="auto", max_model_len=262_144)["ledger"]}
    # 40 × 65,536 × 132 B of index keys are more than 4 × (65,536 + 128 + 8,192) × 1,024 B of entries, and ids.
    assert lines["sparse attention workspace"] == 40 * 65_536 * 132
    assert lines["top-k buffer"] == 8_192 * 512 * 4
    long = {line["name"]: line["bytes"] for line in launched(kv_budget="auto", max_model_len=1_048_576)["ledger"]}
    # 512 entries and 128 tokens of the window are selected for each token, with their count.
    assert long["sparse attention workspace"] == 4 * (262_144 + 128 + 8_192) * 1_024 + 8_192 * (640 + 1) * 4
    assert long["sparse attention workspace"] == 1_128_824_832
    # FlashInfer reads the entries as they are: what is left are 16 × 262,144 index keys.
    read = launched(gpu="b200", attention_backend="flashinfer_mla_sparse", kv_budget="auto", max_model_len=1_048_576)
    assert {line["name"]: line["bytes"] for line in read["ledger"]}["sparse attention workspace"] == 16 * 262_144 * 132
