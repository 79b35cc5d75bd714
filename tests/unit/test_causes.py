"""A log that contradicts the spec names the change of one key with which they agree."""

from __future__ import annotations

import io

import pytest

from hsplan import InputError
from hsplan.calibrate import calibrate

SGLANG = {"gpu": "gb300", "tp": 4, "draft_layers": 1, "mem_fraction": 0.9}
VLLM = {"engine": "vllm@0.33.0", "max_model_len": 131_072}
TOKENS = (
    "[x TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2574848, KV size: {} GB\n"
    "[x TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2574848, KV size: {} GB\n"
    "[x TP0] max_total_num_tokens=2574848, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=128, context_len=1048576, available_gpu_mem=20.00 GB"
)
# GLM-5.2 on Hopper, 10,000 blocks of 64 × (78 × 656 + 21 × 132) B: 32.15 GiB
BLOCKS = (
    "(Worker_TP0 pid=9) INFO 11-01 10:00:00 [w.py:1] Available KV cache memory: 32.15 GiB\n"
    "(EngineCore pid=7) INFO 11-01 10:00:00 [k.py:1] GPU KV cache size: 640,000 tokens, "
    "Maximum concurrency for 131,072 tokens per request: 4.88x"
)


def remedies(spec: str, log: str, **flags: object) -> str:
    with pytest.raises(InputError) as caught:
        calibrate(spec, [("log", io.BytesIO(log.encode()))], **flags)
    return "\n".join(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("release", "sizes", "flags", "cause"),
    [
        # (2,574,848 + 64) × 78 × (576 + 132) B: index-K of every layer, which 0.5.18 stores under PD and HiCache only
        ("0.5.18", (132.43, 1.70), {}, "disaggregation prefill, or disaggregation decode, or hierarchical_cache True"),
        # 21 layers of index-K, which 0.5.17 never does
        ("0.5.17", (114.39, 1.70), {}, "release 0.5.18"),
        # rows of 656 B and 21 layers
        ("0.5.18", (129.35, 1.89), {}, "attention_backend flashmla_kv"),
        ("0.5.18", (114.39, 1.70), {"draft_layers": 0}, "draft_layers 1"),
        ("0.5.18", (122.83, 1.70), {}, "GB taken for GiB"),
    ],
)
def test_the_sizes_of_the_pools_tell_what_the_spec_leaves_out(release, sizes, flags, cause):
    log = TOKENS.format(*(f"{size:.2f}" for size in sizes))
    assert cause in remedies("glm-5.2-nvfp4", log, **{**SGLANG, "release": release, **flags})


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype fp8_e4m3"),
        ({"kv_cache_dtype": "fp8_e4m3", "draft_layers": 1}, "draft_layers 0"),
        ({"kv_cache_dtype": "fp8_e4m3", "max_model_len": 65_536}, "give max_model_len 131072"),
        ({"kv_cache_dtype": "fp8_e4m3", "engine": "vllm@main-2026-06-01"}, "release 0."),
    ],
)
def test_the_budget_that_vllm_prints_and_its_blocks_tell_it_too(flags, cause):
    assert cause in remedies("glm-5.2-fp8", BLOCKS, **{**VLLM, **flags})


def test_the_log_of_the_spec_as_it_is_has_nothing_to_say():
    found = calibrate("glm-5.2-fp8", [("log", io.BytesIO(BLOCKS.encode()))], kv_cache_dtype="fp8_e4m3", **VLLM)
    assert all(abs(row.residual) <= 0.01 for row in found.compared if row.line == "KV budget, by its blocks")
