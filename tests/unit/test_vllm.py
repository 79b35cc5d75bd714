"""vLLM: ranks, rows by backend, releases, the reserve, and what is refused; expected numbers are written out."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, DEEPSEEK_V3_2, GLM_5_2, LONGCAT_FLASH, NVFP4, spec_of

import hsplan
from hsplan import InputError, UnsupportedError
from hsplan.engines.vllm.launch import stage_sizes
from hsplan.engines.vllm.pages import Layers, packing
from hsplan.engines.vllm.releases import RELEASES, SWITCHES

GIB = 2**30


def launched(model=GLM_5_2, **keys):
    given = {"engine": "vllm", "gpu": "h200", "tp": 8, "kv_budget": "30GiB", "max_model_len": 131_072} | keys
    plan = hsplan.plan(spec_of(model, **given)).to_dict()
    return plan["scenarios"][plan["as_launched"]]


def refusal(error, model=GLM_5_2, **keys):
    with pytest.raises(error) as caught:
        launched(model, **keys)
    return "\n".join(caught.value.lines())


def lines_of(scenario):
    return {line["name"]: line["bytes"] for line in scenario["ledger"]}


# gpu, keys, format, bytes, backend, page
ROWS = [
    ("h200", {}, "bf16", 1152, "flash_attn_mla_sparse", 64),
    ("h200", {"release": "0.24.0"}, "bf16", 1152, "flashmla_sparse", 64),
    ("h200", {"kv_cache_dtype": "fp8_e4m3"}, "fp8_packed", 656, "flashmla_sparse", 64),
    ("h200", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashinfer_mla_sparse"}, "fp8_raw", 576,
     "flashinfer_mla_sparse_sm90", 64),
    ("b200", {}, "fp8_raw", 576, "flashinfer_mla_sparse", 64),
    ("b200", {"release": "0.31.0"}, "bf16", 1152, "flashinfer_mla_sparse", 64),
    ("b200", {"kv_cache_dtype": "bfloat16"}, "bf16", 1152, "flash_attn_mla_sparse_fa4", 64),
    ("b200", {"kv_cache_dtype": "bfloat16", "tp": 2}, "bf16", 1152, "flashmla_sparse", 64),
    ("b200", {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "flashmla_sparse"}, "fp8_packed", 656,
     "flashmla_sparse", 64),
    ("rtx-pro-6000", {}, "fp8_packed", 656, "flashinfer_mla_sparse_sm120", 64),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "keys", "kind", "size", "backend", "page"), ROWS)
def test_the_backend_decides_the_row_of_a_dsa_model(gpu, keys, kind, size, backend, page):
    row = launched(gpu=gpu, **keys)["row"]
    found = (row["format"], row["bytes"], row["attention_backend"], row["page_tokens"])
    assert found == (kind, size, backend, page)


DENSE = [
    ("h200", {}, "bf16", 1152, "flash_attn_mla", 16),
    ("h200", {"release": "main-2025-11-06"}, "bf16", 1152, "flashmla", 64),
    ("h200", {"kv_cache_dtype": "fp8_e4m3"}, "fp8_raw", 576, "flashmla", 64),
    ("b200", {"kv_cache_dtype": "fp8_e4m3"}, "fp8_raw", 576, "flashinfer_mla", 32),
    ("b200", {"attention_backend": "cutlass_mla"}, "bf16", 1152, "cutlass_mla", 128),
    ("b200", {"page_size": 64}, "bf16", 1152, "flashinfer_mla", 64),
    ("a100", {}, "bf16", 1152, "triton_mla", 16),
]


@pytest.mark.parametrize(("gpu", "keys", "kind", "size", "backend", "page"), DENSE)
def test_the_backend_decides_the_page_of_a_dense_mla_model(gpu, keys, kind, size, backend, page):
    scenario = launched(DEEPSEEK_V3, gpu=gpu, **keys)
    row = scenario["row"]
    found = (row["format"], row["bytes"], row["attention_backend"], row["page_tokens"])
    assert found == (kind, size, backend, page)
    assert scenario["blocks"]["bytes_per_block"] == 61 * size * page


def test_a_modelopt_checkpoint_chooses_an_fp8_cache_and_deepseek_on_b200_keeps_bf16():
    assert launched({**GLM_5_2, "quantization_config": NVFP4})["row"]["format"] == "fp8_packed"
    assert launched(DEEPSEEK_V3_2, gpu="b200")["row"]["bytes"] == 1152


def test_mxfp4_index_keys_are_a_what_if_of_68_bytes_on_sm10x():
    scenario = launched(gpu="b200", indexer_kv_dtype="mxfp4")
    assert scenario["bytes_per_token"]["charged"] == 78 * 576 + 21 * 68
    assert scenario["bytes_per_token"]["stored_index"] == 1_428
    assert not scenario["engine_applies"]
    assert "needs a Blackwell datacenter GPU" in refusal(UnsupportedError, indexer_kv_dtype="mxfp4")


def test_index_keys_of_shared_layers_go_with_45895_and_their_weights_with_46600():
    model = {**GLM_5_2, "quantization_config": NVFP4}

    def held(release):
        scenario = launched(model, kv_budget="auto", gpu="gb300", tp=4, release=release)
        return scenario["bytes_per_token"]["charged"], lines_of(scenario)["weights"]

    before, cache, both = held("main-2026-06-18"), held("main-2026-06-19"), held("main-2026-06-28")
    assert (before[0], cache[0], both[0]) == (78 * 708, 47_700, 47_700)
    # 57 indexers: 4,096 × 2,048 + (128 + 32) × 6,144 in bf16 and 2 × 128 in fp32, or two rotary halves apart.
    assert before[1] == cache[1]
    assert cache[1] - both[1] == 57 * (2 * (4_096 * 2_048 + 160 * 6_144) + 4 * 256)


def test_mtp_layers_own_an_indexer_whatever_the_schedule_says():
    rate = launched(draft_layers=1, kv_cache_dtype="fp8_e4m3")["bytes_per_token"]
    assert (rate["charged"], rate["draft"]) == (79 * 656 + 22 * 132, 788)


def test_the_last_stage_but_one_takes_the_remainder_first():
    assert stage_sizes(78, 4) == [19, 20, 20, 19]
    assert stage_sizes(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]
    assert stage_sizes(78, 16) == [4, *[5] * 14, 4]
    assert stage_sizes(61, 1) == [61]


def test_blocks_are_the_least_of_all_stages():
    # GLM-5.2 in four stages: layers 39 to 58 hold 20 rows and 5 owners (42, 46, 50, 54, 58), the fullest page.
    scenario = launched(pp=4, tp=8, nodes=4, gpus=8)
    page = 64 * (20 * 1_152 + 5 * 132)
    assert scenario["blocks"]["bytes_per_block"] == page
    assert scenario["blocks"]["num_blocks"] == 30 * GIB // page


def test_the_stage_with_more_weights_has_fewer_blocks_though_its_page_is_smaller():
    # Two stages of 39 layers; the first has 3 dense layers less to load, the draft makes the second fuller.
    model = {**GLM_5_2, "quantization_config": NVFP4}
    plan = hsplan.plan(
        spec_of(model, engine="vllm", gpu="h200", tp=4, pp=2, gpus=8, draft_layers=1, max_model_len=65_536)
    )
    assert plan.launched.layout.stage == (39, 78)
    assert {line.name for line in plan.launched.budget.lines} >= {"draft weights"}


def test_dcp_spreads_the_tokens_of_a_request_and_pcp_did_before_026():
    one, eight = launched(), launched(dcp=8)
    assert eight["blocks"]["num_blocks"] == one["blocks"]["num_blocks"] == 5_433
    assert one["max_total_num_tokens"] == 5_433 * 64
    assert eight["logical_tokens"] == 5_433 * 64 * 8
    assert eight["concurrency"]["limits"]["gpu"] == 5_433 // (32_768 // 8 // 64) == 84
    assert launched(pcp=2, tp=4, release="0.25.1")["logical_tokens"] == 5_433 * 64 * 2
    assert launched(pcp=2, tp=4, release="0.26.0")["logical_tokens"] == 5_433 * 64


def test_dcp_with_a_backend_that_no_published_build_runs_it_with_is_noted():
    def notes(**keys):
        given = {"engine": "vllm", "tp": 8, "dcp": 8, "kv_budget": "30GiB", "kv_cache_dtype": "fp8_e4m3"} | keys
        return " ".join(hsplan.plan(spec_of(GLM_5_2, **given)).notes)

    words = "as published does not run"
    assert words in notes(gpu="b200", release="0.25.1")
    assert words not in notes(gpu="b200", release="0.26.0")
    assert words in notes(gpu="h200", release="0.28.0")
    assert words not in notes(gpu="h200", release="0.29.0")
    assert words in notes(gpu="h200", kv_cache_dtype="bfloat16")
    assert words in notes(gpu="rtx-pro-6000")


def test_a_replica_prints_its_own_line_and_the_deployment_is_their_sum():
    scenario = launched(dp=8, tp=1, ep=8)
    assert scenario["deployment"]["tokens"] == 8 * scenario["max_total_num_tokens"]
    assert scenario["concurrency"]["limits"]["max_running"] == 1_024


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ep": 4}, "use 1 or 8"),
        ({"dcp": 3}, "use one of 1, 2, 4, 8"),
        ({"pcp": 2, "tp": 4, "dcp": 4}, "use one of 1, 2, 8"),
        ({"tp": 8, "dp": 2, "gpus": 8}, "tp 8 × pp 1 × dp 2 × pcp 1 = 16 ranks do not fill 1 × 8 GPUs"),
        ({"dp_attention": 8}, "dp_attention is a key of SGLang, not of vLLM"),
        ({"chunked_prefill_size": 8192}, "use max_num_batched_tokens"),
        ({"hierarchical_cache": True}, "hierarchical_cache is a key of SGLang"),
        ({"radix_cache": False}, "radix_cache is a key of SGLang"),
        ({"offload": {"host_to_device_ratio": 8}}, "host_to_device_ratio is a key of SGLang"),
        ({"max_model_len": 4096}, "requests of 32,768 tokens, but the engine stops at 4,096"),
    ],
)
def test_ranks_and_keys_that_do_not_fit_vllm_are_refused(keys, words):
    assert words in refusal(InputError, **keys)


@pytest.mark.parametrize(
    ("model", "keys", "words"),
    [
        (GLM_5_2, {"gpu": "mi355x"}, "hsplan does not know how vLLM sizes its cache on ROCm"),
        (GLM_5_2, {"gpu": "a100"}, "no sparse MLA backend for the a100"),
        (GLM_5_2, {"attention_backend": "trtllm"}, "trtllm is no sparse MLA backend of vLLM"),
        (GLM_5_2, {"page_size": 128}, "pages of 64 tokens, not 128"),
        (GLM_5_2, {"gpu": "rtx-pro-6000", "kv_cache_dtype": "bfloat16"}, "packed fp8 rows only"),
        (DEEPSEEK_V3, {"attention_backend": "fa4"}, "fa4 is no dense MLA backend of vLLM"),
        (DEEPSEEK_V3, {"attention_backend": "flashmla", "page_size": 16}, "flashmla takes pages of 64 tokens, not 16"),
        (LONGCAT_FLASH, {}, "hsplan does not know how vLLM sizes LongcatFlashForCausalLM"),
        (DEEPSEEK_V3, {"offload": {}}, "HiSparse needs a model with a top-k indexer"),
        (GLM_5_2, {"offload": {}, "release": "0.29.0"}, "vLLM 0.29.0 has no HiSparse (from 0.30.0 on)"),
        (GLM_5_2, {"offload": {}, "dcp": 2}, "decode context parallelism"),
        (GLM_5_2, {"offload": {}, "pp": 2, "tp": 4}, "pipeline parallelism"),
    ],
)
def test_what_vllm_does_not_run_is_refused_with_the_reason(model, keys, words):
    assert words in refusal(UnsupportedError, model, **keys)


def test_a_release_may_be_written_without_its_patch_and_builds_go_back_to_november_2025():
    for name in ("0.30", "v0.30.0", "0.30.0"):
        assert hsplan.plan(spec_of(GLM_5_2, engine=f"vllm@{name}", gpu="h200", tp=8, kv_budget="30GiB"))
    assert "nearest: main-2025-11-01" in refusal(UnsupportedError, release="main-2025-10-31")
    assert "nearest: 0.24.0" in refusal(UnsupportedError, release="0.22.1")


def test_every_switch_lies_between_the_first_build_and_the_latest_release():
    assert list(RELEASES) == sorted(RELEASES, key=lambda name: [int(part) for part in name.split(".")])
    assert all("2025-11-01" < day <= "2026-11-01" for day in SWITCHES.values())


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({"max_model_len": 131_072}, 40 * 131_072 * 132),
        ({"max_model_len": 1_048_576}, 16 * 1_048_576 * 132),
        ({"max_model_len": 1_048_576, "release": "0.31.0"}, 40 * 1_048_576 * 132),
        ({"max_model_len": 131_072, "kv_cache_dtype": "fp8_e4m3", "release": "0.27.1"}, 5 * 131_072 * 1_152),
    ],
)
def test_the_workspace_grows_with_max_model_len(keys, size):
    lines = lines_of(launched({**GLM_5_2, "quantization_config": NVFP4}, kv_budget="auto", gpu="h200",
                              **{"kv_cache_dtype": "bfloat16", **keys}))  # fmt: skip
    assert lines["sparse attention workspace"] == size
    assert lines["indexer logits scratch"] == 512 * 2**20
    assert lines["top-k buffer"] == 8_192 * 2_048 * 4


def test_gpu_memory_utilization_is_mem_fraction_and_092_by_default():
    model = {**GLM_5_2, "quantization_config": NVFP4}

    def budget(**keys):
        return launched(model, kv_budget="auto", gpu="h200", **keys)["kv_budget_bytes"]

    visible = 143_771 * 2**20 - int(0.6 * GIB)
    assert budget() == budget(mem_fraction=0.92)
    assert abs(budget(mem_fraction=0.92) - budget(mem_fraction=0.9) - 0.02 * visible) <= 1


def test_a_request_of_max_model_len_must_fit_beside_the_null_block():
    page = 64 * (78 * 1_152 + 21 * 132)
    exact, more = launched(kv_budget=2_048 * page), launched(kv_budget=2_049 * page)
    assert not exact["fits"]
    assert exact["cure"] == "max_model_len 131,008"
    assert launched(kv_budget=500 * page)["cure"] == "a shorter context, or a higher mem_fraction"
    assert launched(kv_budget=2_048 * page, max_model_len=131_008)["fits"]
    assert more["fits"]
    assert launched(kv_budget=2_048 * page, release="0.28.0")["fits"]


def test_under_hisparse_a_request_of_max_model_len_must_be_admitted():
    # 2,048 index + 20 × (64 hot + 256 resident) = 8,448 blocks, and block 0.
    short, enough = (launched(offload={"host_pool": "100GiB"}, kv_budget=n * 294_912) for n in (8_448, 8_449))
    assert "one request of max_model_len 131,072 needs 2.32 GiB" in short["why_not"]
    assert short["cure"] == "max_model_len 131,008"
    assert enough["fits"]
    assert enough["blocks"]["steady_state_concurrency"] == 1 + 1 / 3_368


def test_each_replica_runs_as_many_requests_as_max_running_requests_says():
    scenario = launched(dp=8, tp=1, ep=8, max_running_requests=4)
    assert scenario["concurrency"]["binding"] == "max_running"
    # 30 GiB are 5,433 blocks, 10 requests of 512; no replica shares its cap with another.
    assert scenario["concurrency"]["lift"] == "max_running_requests 10"
    assert scenario["deployment"]["requests"] == 32


def test_hot_groups_are_packed_while_they_are_no_larger_than_the_indexer_group():
    owners = tuple(layer in (0, 1, 2) or layer % 4 == 2 for layer in range(78))
    glm = packing(64, 576, 132, Layers(owners, has_indexer=True))
    assert (glm.hot, glm.index_page, glm.block) == ((2, *[4] * 19), 177_408, 184_320)
    assert glm.device_groups == 41
    v32 = packing(64, 656, 132, Layers((True,) * 61, has_indexer=True))
    assert (len(v32.hot), v32.index_page, v32.block) == (6, 515_328, 545_792)
    # 48 × 132 = 11 × 576: eleven layers are exactly as large as the indexer group.
    assert packing(64, 576, 132, Layers((True,) * 48, has_indexer=True)).hot == (11, 11, 11, 11, 4)
    # One unit larger than the indexer's page is a group of its own, and then sets the block.
    long = packing(64, 1_152, 132, Layers((True, *[False] * 15, True), has_indexer=True))
    assert (long.hot, long.block) == ((16, 1), 16 * 64 * 1_152)


def test_hot_rows_leave_one_top_k_of_slack_and_keep_to_the_limits_of_the_kernel():
    def tables(**keys):
        return lines_of(launched(offload=keys.pop("offload", {}), max_running_requests=128, **keys))["HiSparse tables"]

    # 128 × 4,096 slots of 4 + 2 B, the initial order, 4 arrays of 128 × 2,048, 4 counters of 128, two totals.
    one = 128 * 4_096 * 6 + 4_096 * 2 + 16 * 128 * 2_048 + 16 * 128 + 16
    assert tables() == 21 * one
    assert tables(release="0.30.0") == 21 * (one - 8 * 128)
    small = {"offload": {"device_buffer_size": 1_024}}
    assert "smaller than the 2048 that one step selects" in refusal(InputError, **small)
    large = {"offload": {"device_buffer_size": 32_769}}
    assert "16-bit slot numbers" in refusal(InputError, **large)
    # 4 × (2 × 8,193 + 3 × 1,024 + 7) + 2 × 32,768 = 143,396 B, and SM12x gives 101,376 to a block.
    wide = {
        "offload": {"device_buffer_size": 32_768}, "draft_layers": 1, "num_speculative_tokens": 3,
        "gpu": "rtx-pro-6000",
    }  # fmt: skip
    assert "takes 143,396 B of shared memory, the rtx-pro-6000 has 101,376 B" in refusal(InputError, **wide)
    assert launched(**{**wide, "gpu": "h200"})["fits"]
    assert launched(**{**wide, "release": "0.30.0"})["row"]["bytes"] == 656


def test_the_host_pool_must_hold_a_request_the_null_block_and_a_tail():
    stride = 78 * 64 * 1_152
    enough = 2_048 + 2
    assert launched(offload={"host_pool": enough * stride})["fits"]
    short = launched(offload={"host_pool": (enough - 1) * stride})
    assert "max_model_len 131,072 needs 2,050 host blocks, host_pool has 2,049" in short["why_not"]
    assert short["cure"] == "host_pool 11GiB"
    assert launched(offload={"host_pool": (enough - 1) * stride}, release="0.30.0")["fits"]


def test_ranks_of_one_replica_share_a_host_pool_of_whole_memory_pages():
    shared = launched(offload={"host_pool": "100GiB"}, kv_cache_dtype="fp8_e4m3")
    alone = launched(offload={"host_pool": "100GiB"}, kv_cache_dtype="fp8_e4m3", tp=1, dp=8)
    # 78 × 64 × 656 = 3,274,752 B, in pages of 4,096 B 3,276,800.
    assert (shared["blocks"]["host_block_stride"], alone["blocks"]["host_block_stride"]) == (3_276_800, 3_274_752)
    assert (shared["blocks"]["shared_host_pool"], alone["blocks"]["shared_host_pool"]) == (True, False)
    assert shared["deployment"]["host_bytes_per_node"] == shared["host_pool_bytes"] == 32_768 * 3_276_800
    assert alone["deployment"]["host_bytes_per_node"] == 8 * alone["host_pool_bytes"]


def test_a_host_pool_that_is_not_given_limits_nothing_and_takes_no_more_than_the_memory_there_is():
    free = launched(offload={})
    assert free["concurrency"]["limits"]["host"] >= free["concurrency"]["limits"]["gpu"]
    tight = launched(offload={"host_memory": "64GiB"})
    # 95 % of 64 GiB in whole GiB.
    assert tight["host_pool_bytes"] == 60 * GIB // 5_750_784 * 5_750_784
    assert tight["concurrency"]["binding"] == "host"
    assert tight["concurrency"]["lift"] == "more host memory on a node"
    small = launched(offload={"host_pool": "60GiB", "host_memory": "1TiB"})
    assert (small["concurrency"]["binding"], small["concurrency"]["lift"]) == ("host", "a larger host_pool")
    given = launched(offload={"host_memory": "64GiB", "host_pool": "61GiB"})
    assert "the host pools need 64.2" in given["why_not"]
    assert given["cure"].startswith("a smaller host_pool, or 64.2")


def test_async_scheduling_doubles_the_window_in_which_a_request_is_admitted():
    def steady(**keys):
        scenario = launched(
            offload={"host_pool": "900GiB"}, max_num_batched_tokens=16_384, kv_budget=20_000 * 294_912, **keys
        )
        return scenario["blocks"]["steady_state_concurrency"]

    # 2,048 + 20 × (64 + 512) against 2,048 + 20 × (64 + 256) blocks of admission; 2,048 + 20 × 66 at rest.
    assert steady() == 1 + (20_000 - 13_568) / 3_368
    assert steady(async_scheduling=False) == 1 + (20_000 - 8_448) / 3_368


def test_scenarios_of_a_given_budget_differ_by_the_tables_above_the_pool():
    plan = hsplan.plan(
        spec_of(GLM_5_2, engine="vllm", gpu="h200", tp=8, kv_budget="30GiB", max_running_requests=64,
                max_num_batched_tokens=8_192)
    ).to_dict()["scenarios"]  # fmt: skip
    tables = 21 * (64 * 4_096 * 6 + 4_096 * 2 + 16 * 64 * 2_048 + 16 * 64 + 16)
    assert plan["elided"]["kv_budget_bytes"] == 30 * GIB
    assert plan["elided+offload"]["kv_budget_bytes"] == 30 * GIB - tables
    assert plan["elided"]["engine_applies"]
    assert plan["elided+offload"]["engine_applies"]
    assert not plan["baseline"]["engine_applies"]


def test_blocks_have_the_keys_of_the_contract():
    plan = hsplan.plan(spec_of(GLM_5_2, engine="vllm", gpu="h200", tp=8, kv_budget="30GiB")).to_dict()["scenarios"]
    assert set(plan["elided"]["blocks"]) == {"bytes_per_block", "num_blocks", "max_concurrency"}
    assert set(plan["elided+offload"]["blocks"]) == {
        "bytes_per_block", "num_blocks", "steady_state_concurrency", "host_num_blocks", "host_block_stride",
        "shared_host_pool", "device_groups", "hot_groups",
    }  # fmt: skip
    assert plan["elided"]["bytes_per_token"]["charged"] == 92_628
    assert plan["elided+offload"]["bytes_per_token"]["charged"] is None
    sglang = hsplan.plan(spec_of(GLM_5_2, gpu="h200", tp=8, kv_budget="30GiB")).to_dict()["scenarios"]
    assert sglang["elided"]["blocks"] is None
