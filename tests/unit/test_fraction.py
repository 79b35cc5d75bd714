"""mem_fraction_static, prefill chunk and graph batch where the user gives none, by card, flags and release."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, GLM_5, GLM_5_2, KIMI_K2, KIMI_K2_5, spec_of

import hsplan
from hsplan.engines.sglang.fraction import memory_settings
from hsplan.engines.sglang.releases import release_of
from hsplan.families import read_model
from hsplan.hardware import Gpu
from hsplan.spec import load_spec

RELEASES = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


def settings(model=GLM_5, **keys):
    """What the engine resolves for a deployment."""
    return hsplan.plan(spec_of(model, **{"kv_budget": "64GiB", **keys})).launch.extra.memory


def fraction(model=GLM_5, **keys):
    return settings(model, **keys).fraction


@pytest.mark.parametrize("release", ["main-2026-08-18", *RELEASES])
@pytest.mark.parametrize(
    ("keys", "value"),
    [
        # A log: 294,896 MiB less 512 + 24,576 + 1,024 + 1,024; ROCm has no prefill graph.
        ({"gpu": "mi355x", "tp": 8}, 0.908),
        # 143,771 MiB less 512 + 12,288 + 1,024 + 1,024 + 1,536.
        ({"gpu": "h200", "tp": 8}, 0.886),
        ({"gpu": "h200", "tp": 4}, 0.890),
        ({"gpu": "b200", "tp": 8}, 0.844),
        ({"gpu": "b200", "tp": 8, "dp_attention": 8}, 0.743),
        ({"gpu": "h100", "tp": 8}, 0.799),
        ({"gpu": "h20", "tp": 8}, 0.833),
        ({"gpu": "gb300", "tp": 4}, 0.901),
        ({"gpu": "rtx-pro-6000", "tp": 8}, 0.833),
        # 46,068 MiB less 512 + 6,144 + 1,024 + 320 + 1,536; no floor of 10 GiB below 60 GiB.
        ({"gpu": "l40s", "tp": 8}, 0.793),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_the_automatic_fraction_is_the_published_one(release, keys, value):
    assert fraction(release=release, **keys) == value


@pytest.mark.parametrize(
    ("gpu", "tp", "chunk", "max_bs"),
    [
        ("l40s", 1, 4096, 32),
        ("l40s", 4, 4096, 160),
        ("h100", 2, 8192, 256),
        ("h100", 4, 8192, 512),
        ("h200", 1, 8192, 256),
        ("h200", 8, 8192, 512),
        ("b200", 1, 16384, 512),
        ("b200", 8, 16384, 512),
        ("mi355x", 8, 16384, 512),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_the_class_of_the_card_decides_chunk_and_graph_batch(release, gpu, tp, chunk, max_bs):
    found = settings(release=release, gpu=gpu, tp=tp)
    assert (found.chunk_tokens, found.max_bs) == (chunk, max_bs)


@pytest.mark.parametrize(
    ("mib", "tp", "release", "chunk", "max_bs"),
    [
        (16_384, 1, "0.5.17", 2048, 8),
        (16_384, 8, "0.5.23", 2048, 8),
        (24_564, 1, "0.5.17", 2048, 24),
        (24_564, 4, "0.5.18", 2048, 80),
        (24_564, 1, "0.5.20", 4096, 48),
        (24_564, 4, "0.5.23", 4096, 160),
        (35_839, 4, "0.5.23", 4096, 160),
        (35_840, 1, "0.5.17", 4096, 32),
        (61_439, 4, "0.5.17", 4096, 160),
        (61_440, 1, "0.5.17", 8192, 256),
        (163_839, 4, "0.5.17", 8192, 512),
        (163_840, 1, "0.5.17", 16384, 512),
    ],
)
def test_the_bounds_of_the_classes_are_those_of_the_release(mib, tp, release, chunk, max_bs):
    loaded = load_spec(spec_of(GLM_5, tp=tp, release=release), {})
    gpu = Gpu("card", mib, 90, 8, 1, 1, "assumed", "a test")
    found = memory_settings(
        read_model(loaded), gpu, release_of(loaded), loaded.spec.deployment, tp=tp, aiter_mla=False,
        graph_mib=lambda _: 1536,
    )  # fmt: skip
    assert (found.chunk_tokens, found.max_bs) == (chunk, max_bs)


def test_a_given_fraction_is_taken():
    assert fraction(mem_fraction=0.7) == 0.7
    assert fraction(mem_fraction=0.7, gpu="mi355x", dp_attention=8, release="0.5.17") == 0.7


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        # Chunk 4,096: 512 + 6,144 + 1,024 + 1,024 + 1,536 = 10,240.
        ({"chunked_prefill_size": 4096}, 0.929),
        # A small chunk counts as 2,048, and 10 GiB are kept at least.
        ({"chunked_prefill_size": 1}, 0.929),
        ({"chunked_prefill_size": 16384}, 0.801),
        # Graph batch 64: 512 + 12,288 + 1,024 + 128 + 1,536 = 15,488.
        ({"cuda_graph_max_bs": 64}, 0.892),
        # No decode graphs: 15,360.
        ({"cuda_graph_max_bs": 0}, 0.893),
        # A prefill node captures no decode graphs: 15,360.
        ({"disaggregation": "prefill"}, 0.893),
        # A decode node prefills nothing: 512 + 3,072 + 1,024 + 1,024, below the 10 GiB.
        ({"disaggregation": "decode"}, 0.929),
        # 2,000 requests of 4 tokens to verify: 512 + 12,000 + 1,024 + 1,024 = 14,560.
        (
            {"disaggregation": "decode", "max_running_requests": 2000, "draft_layers": 1, "num_speculative_tokens": 3},
            0.899,
        ),
        # 2 stages of 4: 512 + 12,288 + 1,024 + 1,024, no prefill graph under PP since 0.5.20.
        ({"tp": 4, "pp": 2, "gpus": 8}, 0.897),
        # DeepEP: 16,384 + 1,024 for the prefill graph + 2,048 for the decode graphs.
        ({"moe_a2a_backend": "deepep"}, 0.865),
        # Other all-to-all backends switch the prefill graph off: 14,848.
        ({"moe_a2a_backend": "mooncake"}, 0.897),
        ({"moe_a2a_backend": "flashinfer"}, 0.886),
        ({"moe_a2a_backend": "megamoe"}, 0.886),
        ({"cp": 2}, 0.897),
        # DP attention: 16,384 + 3 × 512 × 4 + 1.5 × 512 × 4 = 25,600.
        ({"dp_attention": 4}, 0.822),
        # Up to 300 requests the second term is not there: 512 + 12,288 + 1,024 + 600 + 3,600 + 1,536 = 19,560.
        ({"dp_attention": 4, "cuda_graph_max_bs": 300}, 0.864),
        ({"dp_attention": 4, "disaggregation": "prefill"}, 0.893),
        # Offload, speculation and HiCache have no rule.
        ({"offload": {}}, 0.886),
        ({"draft_layers": 1}, 0.886),
        ({"hierarchical_cache": True}, 0.886),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_flags_change_the_reserve_of_an_h200(keys, value):
    assert fraction(**keys) == value


@pytest.mark.parametrize(
    ("release", "value"),
    # 128 requests cap the graph batch: 512 + 12,288 + 1,024 + 256 + 1,536 = 15,616.
    [("0.5.17", 0.886), ("0.5.20", 0.886), ("0.5.21", 0.886), ("0.5.22", 0.891), ("0.5.23", 0.891)],
)
def test_max_running_requests_caps_the_graph_batch_from_0_5_22_on(release, value):
    assert fraction(release=release, max_running_requests=128) == value
    assert settings(release=release, max_running_requests=128).max_bs == (128 if value == 0.891 else 512)


def test_max_running_requests_never_raises_the_graph_batch_nor_caps_a_given_one():
    assert settings(max_running_requests=10_000).max_bs == 512
    assert settings(max_running_requests=16, cuda_graph_max_bs=64).max_bs == 64


@pytest.mark.parametrize(
    ("release", "value"),
    [("0.5.17", 0.886), ("0.5.18", 0.886), ("0.5.20", 0.897), ("0.5.22", 0.897), ("0.5.23", 0.897)],
)
def test_pipeline_parallelism_drops_the_prefill_graph_from_0_5_20_on(release, value):
    assert fraction(release=release, tp=4, pp=2, gpus=8) == value


@pytest.mark.parametrize(
    ("release", "value"), [("0.5.17", 0.897), ("0.5.18", 0.886), ("0.5.20", 0.886), ("0.5.23", 0.886)]
)
def test_plain_mla_has_a_prefill_graph_from_0_5_18_on(release, value):
    assert fraction(DEEPSEEK_V3, release=release) == value


@pytest.mark.parametrize("release", RELEASES)
def test_the_vision_tower_of_kimi_k2_5_takes_nine_percent(release):
    """0.886 × 0.909736328125; 0.5.17 keeps a piecewise prefill graph for this model."""
    assert fraction(KIMI_K2_5, release=release) == pytest.approx(0.80602638671875, abs=1e-12)


def test_a_decode_node_loads_no_vision_tower_into_its_fraction():
    assert fraction(KIMI_K2_5, disaggregation="decode") == 0.929


@pytest.mark.parametrize("flags", [{"disaggregation": "prefill"}, {"moe_a2a_backend": "deepep"}])
def test_kimi_k2_5_has_no_piecewise_graph_with_these_flags_in_0_5_17(flags):
    """Prefill: 512 + 12,288 + 1,024 = 13,824. DeepEP: 14,848 + 2,048 = 16,896."""
    value = 0.904 if "disaggregation" in flags else 0.882
    assert fraction(KIMI_K2_5, release="0.5.17", **flags) == pytest.approx(value * 0.909736328125, abs=1e-12)


@pytest.mark.parametrize(
    ("build", "keys", "value"),
    [
        # No prefill graphs before #16331: 14,848.
        ("main-2026-03-01", {}, 0.897),
        ("main-2026-03-02", {}, 0.886),
        # EAGLE kept 2 GiB, then 4 GiB, until its cache was charged.
        ("main-2026-02-25", {"draft_layers": 1}, 0.882),
        ("main-2026-02-26", {"draft_layers": 1}, 0.868),
        ("main-2026-03-01", {"draft_layers": 1}, 0.868),
        ("main-2026-06-11", {"draft_layers": 1}, 0.858),
        ("main-2026-06-12", {"draft_layers": 1}, 0.886),
        # Decode nodes kept the prefill activations until #29615: 512 + 12,288 + 1,024 + 1,024.
        ("main-2026-07-03", {"disaggregation": "decode"}, 0.897),
        ("main-2026-07-04", {"disaggregation": "decode"}, 0.929),
    ],
)
def test_a_dated_build_reserves_by_the_rule_of_its_day(build, keys, value):
    assert fraction(release=build, **keys) == value


def test_aiter_takes_another_15_percent_of_plain_mla_with_a_long_context():
    """128 heads over 8 ranks run on aiter: 0.908 × 0.85; DSA models and short contexts do not."""
    assert fraction(DEEPSEEK_V3, gpu="mi355x") == pytest.approx(0.7718, abs=1e-12)
    assert fraction(DEEPSEEK_V3, gpu="mi355x", max_model_len=8192, workload={"context": 8192}) == 0.908
    assert fraction(GLM_5_2, gpu="mi355x") == 0.908


@pytest.mark.parametrize(
    ("model", "gpu", "value"),
    [
        # 196,592 MiB less 512 + 24,576 + 1,024 + 256 + 768 is 0.862; 128 heads over TP 8 run on aiter: × 0.85.
        (DEEPSEEK_V3, "mi300x", 0.7327),
        # 294,896 MiB less the same; 64 heads over TP 8 do not, though a rank has 16 of them.
        (KIMI_K2, "mi355x", 0.908),
    ],
    ids=["deepseek-v3", "kimi-k2"],
)
def test_aiter_takes_its_15_percent_by_the_heads_over_all_of_tp(model, gpu, value):
    found = fraction(model, gpu=gpu, dp_attention=2, max_running_requests=128)
    assert found == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("keys", "value"),
    [
        # 512 + 1.5 × 4,096 + 1,024 + 1,024 = 8,704 of 143,771 MiB: the 10 GiB are kept.
        ({"gpu": "h200", "max_running_requests": 4096}, 0.929),
        # 512 + 1.5 × 8,192 + 1,024 + 1,024 = 14,848.
        ({"gpu": "h200", "max_running_requests": 8192}, 0.897),
        # Of 183,359 MiB: 512 + 3,072 + 1,024 + 1,024 + 3 × 512 × 8 + 1.5 × 512 × 8 = 24,064.
        ({"gpu": "b200", "max_running_requests": 2048, "dp_attention": 8, "ep": 8}, 0.869),
    ],
    ids=["h200-4096", "h200-8192", "b200-2048"],
)
def test_draft_tokens_that_the_engine_fills_in_later_count_as_one(release, keys, value):
    """A decode node reserves for what was given: its own 4 tokens of a step come after the fraction."""
    assert fraction(GLM_5_2, release=release, disaggregation="decode", draft_layers=1, **keys) == value


def test_dp_attention_divides_the_prefill_chunk_only_after_the_fraction():
    """The chunk stays whole in the rule and is shared by the ranks when activations are counted."""
    found = settings(gpu="b200", dp_attention=8)
    assert (found.chunk_tokens, found.fraction) == (16384, 0.743)
