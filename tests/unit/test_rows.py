"""Which row a deployment stores: backend, number format and bytes, by card, model, release and flags."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, DEEPSEEK_V3_2, GLM_5, GLM_5_2, INT4, KIMI_K2, NVFP4, spec_of

import hsplan
from hsplan import HsplanError, InputError, UnsupportedError

RELEASES = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
TILELANG_BY_DEFAULT = ("0.5.17", "0.5.18", "0.5.19")
TRITON_BY_DEFAULT = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
# Elements of a row: 512 latent and 64 rope values.
BF16, PACKED, RAW = 1_152, 656, 576

FP8 = {"kv_cache_dtype": "fp8_e4m3"}
BFLOAT16 = {"kv_cache_dtype": "bfloat16"}


def scenario(model, gpu, name="baseline", **deployment):
    """One scenario with a given budget, so that only the row matters."""
    return hsplan.plan(spec_of(model, **{"gpu": gpu, "kv_budget": "64GiB", **deployment})).to_dict()["scenarios"][name]


def row(model, gpu, name="baseline", **deployment):
    found = scenario(model, gpu, name, **deployment)["row"]
    return found["attention_backend"], found["bytes"]


def test_the_three_rows_are_those_of_the_engine():
    assert BF16 == (512 + 64) * 2
    assert PACKED == 512 + 4 * 4 + 64 * 2
    assert RAW == 512 + 64


# DSA, without offload


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("gpu", "model", "flags", "backend", "n_bytes"),
    [
        ("a100", GLM_5, {}, "flashmla_sparse/fa3", BF16),
        ("l40s", GLM_5, {}, "flashmla_sparse/fa3", BF16),
        ("h100", GLM_5, {}, "flashmla_sparse/fa3", BF16),
        ("h200", GLM_5_2, {}, "flashmla_sparse/fa3", BF16),
        ("h20", DEEPSEEK_V3_2, {}, "flashmla_sparse/fa3", BF16),
        ("h200", GLM_5, FP8, "flashmla_kv", PACKED),
        ("h200", DEEPSEEK_V3_2, FP8, "flashmla_kv", PACKED),
        ("gh200", DEEPSEEK_V3_2, FP8, "flashmla_kv", PACKED),
        ("b200", GLM_5, {}, "trtllm", RAW),
        ("gb200", DEEPSEEK_V3_2, {}, "trtllm", RAW),
        ("b300", DEEPSEEK_V3_2, FP8, "trtllm", RAW),
        ("gb300", GLM_5_2, {}, "trtllm", RAW),
        ("b200", GLM_5, BFLOAT16, "flashmla_sparse/trtllm", BF16),
        ("rtx-pro-6000", GLM_5, {}, "flashinfer_sparse_mla", PACKED),
        ("rtx-pro-6000", DEEPSEEK_V3_2, {}, "trtllm", RAW),
        ("rtx-pro-6000", GLM_5, BFLOAT16, "flashmla_sparse/trtllm", BF16),
    ],
)
def test_auto_resolves_as_the_engine_does_on_cuda(release, gpu, model, flags, backend, n_bytes):
    assert row(model, gpu, release=release, **flags) == (backend, n_bytes)


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
@pytest.mark.parametrize(
    ("releases", "backend"),
    [(TILELANG_BY_DEFAULT, "tilelang"), (TRITON_BY_DEFAULT, "triton")],
    ids=["tilelang", "triton"],
)
def test_auto_resolves_as_the_engine_does_on_rocm(gpu, releases, backend):
    for release in releases:
        assert row(GLM_5, gpu, release=release) == (backend, BF16)
        assert row(DEEPSEEK_V3_2, gpu, release=release, **FP8) == (backend, RAW)


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        ("a100", "bfloat16"),
        ("h200", "bfloat16"),
        ("b200", "fp8_e4m3"),
        ("gb300", "fp8_e4m3"),
        ("rtx-pro-6000", "fp8_e4m3"),
        ("mi355x", "bfloat16"),
    ],
)
def test_auto_dtype_of_dsa_follows_the_card_and_never_the_checkpoint(gpu, dtype):
    for quantization in (None, NVFP4):
        model = {**GLM_5, "quantization_config": quantization}
        assert scenario(model, gpu)["row"]["kv_cache_dtype"] == dtype


@pytest.mark.parametrize(
    ("gpu", "backend", "n_bytes"),
    [
        ("b200", "trtllm", RAW),
        ("b200", "flashmla_kv", PACKED),
        ("h200", "flashmla_sparse", PACKED),
        ("h200", "flashmla_auto", PACKED),
        ("h200", "fa3", PACKED),
        ("mi355x", "aiter", RAW),
        ("mi355x", "tilelang", RAW),
        ("mi355x", "triton", RAW),
    ],
)
def test_a_backend_of_the_user_decides_the_fp8_row(gpu, backend, n_bytes):
    assert row(GLM_5, gpu, attention_backend=backend, **FP8) == (backend, n_bytes)


def test_the_q8_prefill_kernel_decodes_with_flashmla_kv():
    assert row(GLM_5, "h200", attention_backend="flashmla_sparse_q8", **FP8) == (
        "flashmla_sparse_q8/flashmla_kv",
        PACKED,
    )


@pytest.mark.parametrize(("release", "n_bytes"), [("0.5.22", RAW), ("0.5.23", RAW)])
def test_tilelang_on_cuda_keeps_fp8_rows_raw_from_0_5_22_on(release, n_bytes):
    assert row(GLM_5, "h200", attention_backend="tilelang", release=release, **FP8) == ("tilelang", n_bytes)


@pytest.mark.parametrize("page_size", [1, 32, 128])
def test_dsa_forces_pages_of_64_on_cuda(page_size):
    assert scenario(GLM_5, "h200", page_size=page_size)["row"]["page_tokens"] == 64


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("release", ["0.5.17", "0.5.20", "0.5.23"])
def test_the_role_of_a_pd_node_does_not_change_a_row_with_one_backend(role, release):
    assert scenario(GLM_5, "h200", disaggregation=role, release=release, **FP8)["row"]["bytes"] == PACKED
    assert scenario(GLM_5, "b200", disaggregation=role, release=release, **FP8)["row"]["bytes"] == RAW
    assert scenario(GLM_5, "b200", disaggregation=role, release=release, **BFLOAT16)["row"]["bytes"] == BF16


# DSA, dated builds


@pytest.mark.parametrize(
    ("gpu", "model", "flags", "build", "n_bytes"),
    [
        ("b200", GLM_5, {}, "main-2025-10-08", PACKED),
        ("b200", GLM_5, {}, "main-2026-02-15", PACKED),
        ("b200", GLM_5, {}, "main-2026-02-16", RAW),
        ("gb300", DEEPSEEK_V3_2, {}, "main-2026-02-15", PACKED),
        ("gb300", DEEPSEEK_V3_2, {}, "main-2026-02-16", RAW),
        ("h200", GLM_5, FP8, "main-2026-02-15", PACKED),
        ("h200", GLM_5, FP8, "main-2026-02-16", PACKED),
        ("mi355x", GLM_5, FP8, "main-2026-02-18", PACKED),
        ("mi355x", GLM_5, FP8, "main-2026-04-02", PACKED),
        ("mi355x", GLM_5, FP8, "main-2026-04-03", RAW),
        ("mi355x", GLM_5, {**FP8, "attention_backend": "aiter"}, "main-2026-06-18", PACKED),
        ("mi355x", GLM_5, {**FP8, "attention_backend": "aiter"}, "main-2026-06-19", RAW),
        ("rtx-pro-6000", GLM_5, {}, "main-2026-07-27", RAW),
        ("rtx-pro-6000", GLM_5, {}, "main-2026-07-28", PACKED),
        ("rtx-pro-6000", DEEPSEEK_V3_2, {}, "main-2026-07-28", RAW),
    ],
)
def test_a_dated_build_stores_the_row_of_its_day(gpu, model, flags, build, n_bytes):
    assert scenario(model, gpu, release=build, **flags)["row"]["bytes"] == n_bytes


@pytest.mark.parametrize(
    ("gpu", "build", "charged"),
    [
        # 78 × (576 + 132) charged although 656 are stored, until #31992.
        ("h200", "main-2025-10-08", 55_224),
        ("b200", "main-2026-02-15", 55_224),
        ("mi355x", "main-2026-02-18", 55_224),
        ("h200", "main-2026-07-26", 55_224),
        ("h200", "main-2026-07-27", 61_464),
        ("b200", "main-2026-07-26", 55_224),
        ("b200", "main-2026-07-27", 55_224),
    ],
)
def test_builds_before_july_2026_charge_576_for_a_packed_row(gpu, build, charged):
    assert scenario(GLM_5, gpu, release=build, **FP8)["bytes_per_token"]["charged"] == charged


def test_charged_and_stored_of_an_old_build_are_never_mixed():
    rates = scenario(GLM_5, "mi355x", release="main-2026-02-18", **FP8)["bytes_per_token"]
    assert (rates["charged"], rates["stored_kv"] + rates["stored_index"]) == (55_224, 61_464)
    assert rates["stored_kv"] + rates["stored_index"] - rates["charged"] == 80 * 78


# DSA under HiSparse


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("gpu", "model", "flags", "backend", "n_bytes"),
    [
        ("h200", GLM_5_2, {}, "flashmla_sparse", BF16),
        ("h200", GLM_5_2, FP8, "flashmla_kv", PACKED),
        ("b200", GLM_5_2, {}, "flashmla_kv", PACKED),
        ("gb300", DEEPSEEK_V3_2, {}, "flashmla_kv", PACKED),
        ("b200", GLM_5_2, BFLOAT16, "flashmla_sparse", BF16),
        ("rtx-pro-6000", DEEPSEEK_V3_2, {}, "flashmla_kv", PACKED),
        ("rtx-pro-6000", GLM_5_2, BFLOAT16, "flashmla_sparse", BF16),
        ("mi355x", GLM_5_2, {}, "tilelang", BF16),
        ("mi355x", GLM_5_2, FP8, "tilelang", RAW),
    ],
)
def test_offload_resolves_rows_of_its_own(release, gpu, model, flags, backend, n_bytes):
    assert row(model, gpu, "offload", release=release, **flags) == (backend, n_bytes)


def test_rows_of_one_plan_differ_between_scenarios_on_blackwell():
    scenarios = hsplan.plan(spec_of(GLM_5_2, gpu="gb300", kv_budget="64GiB")).to_dict()["scenarios"]
    found = {name: entry["row"]["bytes"] for name, entry in scenarios.items()}
    assert found == {"baseline": 576, "elided": 576, "offload": 656, "elided+offload": 656}


@pytest.mark.parametrize(
    ("release", "available"),
    [("0.5.17", False), ("0.5.18", True), ("0.5.23", True), ("main-2026-08-10", False), ("main-2026-08-11", True)],
)
def test_glm_in_fp8_on_sm120_offloads_from_the_change_of_11_august_2026_on(release, available):
    found = scenario(GLM_5_2, "rtx-pro-6000", "offload", release=release)
    assert found["available"] is available
    if available:
        assert (found["row"]["attention_backend"], found["row"]["bytes"]) == ("flashinfer_sparse_mla", PACKED)
    else:
        assert "flashinfer_sparse_mla" in found["reason"]


@pytest.mark.parametrize(
    ("gpu", "flags"),
    [
        ("b200", {"attention_backend": "trtllm"}),
        ("h200", {"attention_backend": "fa3"}),
        ("h200", {"attention_backend": "flashmla_auto"}),
        ("h200", {"attention_backend": "flashmla_sparse", **FP8}),
        ("h200", {"attention_backend": "flashmla_kv", **BFLOAT16}),
        ("h200", {"attention_backend": "tilelang", **FP8}),
        ("mi355x", {"attention_backend": "flashmla_kv", **FP8}),
        ("h200", {"dcp": 2}),
        ("h200", {"hierarchical_cache": True}),
        ("h200", {"release": "main-2026-03-21"}),
    ],
)
def test_what_the_engine_refuses_under_offload_is_an_error_only_when_launched_so(gpu, flags):
    plan = hsplan.plan(spec_of(GLM_5_2, gpu=gpu, kv_budget="64GiB", **flags)).to_dict()["scenarios"]
    for name in ("offload", "elided+offload"):
        assert plan[name]["available"] is False
        assert plan[name]["engine_applies"] is False
        assert plan[name]["reason"]
    assert plan["baseline"]["available"] is True
    with pytest.raises(UnsupportedError) as caught:
        hsplan.plan(spec_of(GLM_5_2, gpu=gpu, kv_budget="64GiB", offload={}, **flags))
    assert caught.value.exit_code == 3


def test_a_model_without_an_indexer_cannot_offload():
    plan = hsplan.plan(spec_of(DEEPSEEK_V3, kv_budget="64GiB")).to_dict()["scenarios"]
    assert plan["offload"]["available"] is False
    with pytest.raises(UnsupportedError, match="top-k indexer"):
        hsplan.plan(spec_of(DEEPSEEK_V3, kv_budget="64GiB", offload={}))


# What the engine refuses with every flag of offload


@pytest.mark.parametrize(
    ("model", "gpu", "flags"),
    [
        (GLM_5, "h200", {"attention_backend": "flashinfer_sparse_mla", **FP8}),
        (GLM_5, "b200", {"attention_backend": "flashinfer_sparse_mla", **FP8}),
        (DEEPSEEK_V3_2, "rtx-pro-6000", {"attention_backend": "flashinfer_sparse_mla", **FP8}),
        (GLM_5, "rtx-pro-6000", {"attention_backend": "flashinfer_sparse_mla", **BFLOAT16}),
        (GLM_5, "rtx-pro-6000", {"attention_backend": "flashmla_kv", **FP8}),
        (GLM_5, "rtx-pro-6000", {"attention_backend": "trtllm", **FP8}),
        (GLM_5, "h200", {"attention_backend": "tilelang", "release": "0.5.17", **FP8}),
        (GLM_5, "h200", {"attention_backend": "tilelang", "release": "0.5.18", **FP8}),
        (GLM_5, "h200", {"attention_backend": "tilelang", "release": "0.5.20", **FP8}),
        (GLM_5, "h200", {"attention_backend": "triton", "release": "0.5.20", **FP8}),
        (GLM_5, "b200", {"attention_backend": "flashmla_sparse_q8", **FP8}),
        (GLM_5, "h200", {"attention_backend": "flashmla_sparse_q8", **BFLOAT16}),
        (GLM_5, "h200", {"attention_backend": "trtllm_mla"}),
        (DEEPSEEK_V3, "h200", {"attention_backend": "trtllm_mla"}),
        (DEEPSEEK_V3, "mi355x", {"attention_backend": "trtllm_mla"}),
        (DEEPSEEK_V3, "h200", {"attention_backend": "cutedsl_mla"}),
        (DEEPSEEK_V3, "b200", {"attention_backend": "cutlass_mla", "release": "0.5.20"}),
        (DEEPSEEK_V3, "b200", {"attention_backend": "tokenspeed_mla", "release": "0.5.23"}),
    ],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else " ".join(map(str, value.values()))
        if len(value) < 5
        else value["model_type"]
    ),
)
def test_a_backend_that_the_engine_refuses_on_this_card_is_refused(model, gpu, flags):
    with pytest.raises(HsplanError) as caught:
        hsplan.plan(spec_of(model, gpu=gpu, kv_budget="64GiB", **flags))
    assert isinstance(caught.value, InputError | UnsupportedError)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("wanted", "page"), [("auto", 64), (16, 64), (128, 64), (10, 64), (64, 64), (1, 1)])
def test_rocm_forces_pages_of_64_or_on_the_legacy_path_of_one(release, wanted, page):
    """50 GiB // 100,152 B are 536,056 tokens: 536,000 in pages of 64; pages of 16 would hold 536,048."""
    keys = {"gpu": "mi300x", "release": release, "page_size": wanted, "kv_budget": "50GiB"}
    found = scenario(GLM_5, **keys)
    assert found["row"]["page_tokens"] == page
    assert found["max_total_num_tokens"] == {64: 536_000, 1: 536_056}[page]
    notes = " ".join(hsplan.plan(spec_of(GLM_5, **keys)).to_dict()["notes"])
    assert ("SGLang forces 64" in notes) == (wanted in (16, 128, 10))
    assert ("legacy path" in notes) == (wanted == 1)


# MLA without an indexer


@pytest.mark.parametrize(
    ("gpu", "model", "tp", "backend", "page"),
    [
        ("a100", DEEPSEEK_V3, 8, "triton", 1),
        ("l40s", DEEPSEEK_V3, 8, "triton", 1),
        ("h200", DEEPSEEK_V3, 8, "fa3", 1),
        ("h20", KIMI_K2, 8, "fa3", 1),
        ("b200", DEEPSEEK_V3, 8, "trtllm_mla", 64),
        ("gb300", KIMI_K2, 8, "trtllm_mla", 64),
        ("rtx-pro-6000", DEEPSEEK_V3, 8, "triton", 1),
        ("mi300x", DEEPSEEK_V3, 8, "aiter", 1),
        ("mi300x", DEEPSEEK_V3, 4, "triton", 1),
        ("mi355x", KIMI_K2, 4, "aiter", 1),
        ("mi355x", KIMI_K2, 8, "triton", 1),
    ],
)
def test_auto_resolves_as_the_engine_does_for_plain_mla(gpu, model, tp, backend, page):
    found = scenario(model, gpu, tp=tp)["row"]
    assert (found["attention_backend"], found["page_tokens"], found["bytes"]) == (backend, page, BF16)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("groups", [{"dp_attention": 2}, {"dp_attention": 4}, {"cp": 2}])
def test_rocm_counts_heads_over_all_of_tp_whatever_dp_attention_leaves(release, groups):
    """128 // 8 are 16, which aiter takes, and 64 // 8 are 8; a rank really has 2 or 4 times as many."""
    assert row(DEEPSEEK_V3, "mi300x", release=release, **groups) == ("aiter", BF16)
    assert row(KIMI_K2, "mi355x", release=release, **groups) == ("triton", BF16)


def test_the_ranks_of_a_node_decide_the_rocm_backend_when_tp_is_left_out():
    """64 heads over 4 GPUs are 16 a rank, which aiter takes."""
    data = {"model": KIMI_K2, "deployment": {"gpu": "mi300x", "gpus": 4, "kv_budget": "64GiB"}}
    assert hsplan.plan(data).to_dict()["scenarios"]["baseline"]["row"]["attention_backend"] == "aiter"


@pytest.mark.parametrize(
    ("backend", "wanted", "page"),
    [
        ("flashmla", "auto", 64),
        ("flashmla", 16, 64),
        ("trtllm_mla", 32, 32),
        ("trtllm_mla", 16, 64),
        ("cutedsl_mla", 32, 32),
        ("flashinfer", "auto", 1),
        ("flashinfer", 16, 16),
        ("triton", 64, 64),
    ],
)
def test_a_backend_of_plain_mla_forces_its_pages_or_takes_the_users(backend, wanted, page):
    assert scenario(DEEPSEEK_V3, "b200", attention_backend=backend, page_size=wanted)["row"]["page_tokens"] == page


def test_plain_mla_in_fp8_keeps_its_rows_raw():
    found = scenario(DEEPSEEK_V3, "h200", **FP8)
    assert (found["row"]["format"], found["row"]["bytes"]) == ("fp8_raw", RAW)
    assert found["bytes_per_token"]["charged"] == 35_136


MODELOPT_FP8 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"type": "float", "num_bits": 8}}
COMPRESSED_FP8 = {
    **INT4,
    "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False},
}
BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "kv_cache_quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("quantization", "release", "dtype"),
    [
        (None, "0.5.17", "bfloat16"),
        (INT4, "0.5.23", "bfloat16"),
        (MODELOPT_FP8, "0.5.17", "fp8_e4m3"),
        (MODELOPT_FP8, "0.5.23", "fp8_e4m3"),
        (BLOCK_FP8, "0.5.17", "bfloat16"),
        (BLOCK_FP8, "0.5.18", "fp8_e4m3"),
        (COMPRESSED_FP8, "0.5.17", "bfloat16"),
        (COMPRESSED_FP8, "0.5.18", "bfloat16"),
        (COMPRESSED_FP8, "0.5.20", "fp8_e4m3"),
    ],
    ids=[
        "none 17",
        "int4 23",
        "modelopt 17",
        "modelopt 23",
        "fp8 17",
        "fp8 18",
        "compressed 17",
        "compressed 18",
        "compressed 20",
    ],
)
def test_auto_dtype_of_plain_mla_follows_the_checkpoint_as_far_as_the_release_reads_it(quantization, release, dtype):
    model = {**DEEPSEEK_V3, "quantization_config": quantization}
    assert scenario(model, "h200", release=release)["row"]["kv_cache_dtype"] == dtype
