"""Number formats: which module is in which format, and what is too odd to know."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager

import pytest
from configs import FP8, GLM_5_2, INT4, NVFP4, spec_of

import hsplan
from hsplan import UnsupportedError
from hsplan.weights import Formats, kv_cache_is_fp8, named, of_quantization

EXPERT = "model.layers.5.mlp.experts.0.gate_proj"
ATTENTION = "model.layers.5.self_attn.o_proj"
SHARED = "model.layers.5.mlp.shared_experts.gate_proj"
DENSE = "model.layers.0.mlp.gate_proj"


def test_no_quantisation_means_bf16_everywhere():
    formats = of_quantization(None)
    assert [formats.of(module) for module in (EXPERT, ATTENTION, DENSE, "lm_head")] == ["bf16"] * 4


def test_block_fp8_holds_every_linear_layer_that_is_not_excluded():
    formats = of_quantization({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.5.self_attn"]})
    assert (formats.of(EXPERT), formats.of(ATTENTION), formats.of("lm_head")) == ("fp8", "bf16", "bf16")


def test_nvfp4_of_glm_5_2_holds_the_routed_experts_of_the_stack():
    formats = of_quantization(NVFP4)
    assert formats.of(EXPERT) == "nvfp4"
    bf16 = [ATTENTION, SHARED, DENSE, "lm_head", "model.layers.78.mlp.experts.0.gate_proj"]
    assert [formats.of(module) for module in bf16] == ["bf16"] * 5


def test_nvfp4_reads_the_older_name_of_its_list():
    formats = of_quantization({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]})
    assert (formats.of(EXPERT), formats.of(ATTENTION)) == ("nvfp4", "bf16")


def test_int4_of_kimi_holds_the_routed_experts():
    formats = of_quantization(INT4)
    assert formats.of(EXPERT) == "int4"
    assert [formats.of(module) for module in (ATTENTION, SHARED, DENSE, "lm_head")] == ["bf16"] * 4


@pytest.mark.parametrize("checkpoint", ["nvfp4", "int4"])
def test_a_named_4_bit_checkpoint_holds_the_routed_experts_only(checkpoint):
    formats = named(checkpoint)
    assert formats.of(EXPERT) == checkpoint
    assert [formats.of(module) for module in (ATTENTION, SHARED, DENSE, "lm_head")] == ["bf16"] * 4


@pytest.mark.parametrize("checkpoint", ["bf16", "fp8"])
def test_a_named_wide_checkpoint_holds_every_linear_layer(checkpoint):
    assert {named(checkpoint).of(module) for module in (EXPERT, ATTENTION, SHARED, DENSE)} == {checkpoint}


@pytest.mark.parametrize(
    ("pattern", "module", "matches"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "lm_head2", False),
        ("model.layers.5", "model.layers.5.mlp.gate_proj", True),
        ("model.layers.5", "model.layers.50.mlp.gate_proj", False),
        ("model.layers.5*", "model.layers.50.mlp.gate_proj", True),
        ("*self_attn*", ATTENTION, True),
        ("*.mlp.experts.*", EXPERT, True),
        ("re:.*self_attn.*", ATTENTION, True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", DENSE, True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", EXPERT, False),
        ("re:self_attn", ATTENTION, False),
        ("model.layers.[0-5].self_attn", ATTENTION, False),
    ],
)
def test_an_exclusion_matches_a_name_its_children_a_glob_or_a_regular_expression(pattern, module, matches):
    assert (Formats("fp8", (pattern,)).of(module) == "bf16") is matches


@pytest.mark.parametrize(
    "config",
    [
        {}, [], "fp8", 8,
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [64, 128]},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"quant_method": "quark", "quant_algo": "NVFP4"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {**INT4, "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 128, "type": "int"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}},
        {"quant_method": "compressed-tensors", "config_groups": [1]},
        {**FP8, "modules_to_not_convert": "lm_head"},
        {**FP8, "modules_to_not_convert": [1]},
        {**FP8, "modules_to_not_convert": ["x" * 301]},
        {**FP8, "modules_to_not_convert": {"lm_head": 1}},
        {"quant_method": ["fp8"], "quant_algo": {}},
    ],
    ids=lambda config: str(config)[:60],
)  # fmt: skip
def test_a_format_that_is_not_known_is_a_reason_and_never_a_guess(config):
    reason = of_quantization(config)
    assert isinstance(reason, str)
    assert "quantization_config" in reason


def test_an_unknown_format_needs_given_weights_or_a_given_budget():
    fields = {**GLM_5_2, "quantization_config": {"quant_method": "awq", "bits": 4}}
    with pytest.raises(UnsupportedError) as caught:
        hsplan.plan(spec_of(fields))
    assert caught.value.lines()[1] == "  give weights.bytes_per_rank, weights.path or deployment.kv_budget"
    plan = hsplan.plan(spec_of(fields, kv_budget="64GiB")).to_dict()
    assert any("all scenarios have the same budget" in line for line in plan["not_modelled"])
    assert (
        hsplan.plan(spec_of(fields, weights={"bytes_per_rank": "90GiB"})).to_dict()["scenarios"]["elided"][
            "kv_budget_bytes"
        ]
        > 0
    )


HOSTILE = {
    "nested repeat": "re:(a+)+$",
    "nested groups": "re:((m|o|d)*)*X",
    "many stars": "re:" + ".*" * 20 + "X",
    "three stars": "re:.*.*.*X",
    "many question marks": "re:" + ".?" * 100 + "X",
    "lazy question marks": "re:" + r"\w??" * 60 + "X",
    "alternatives": "re:" + r"(?:.|\w)" * 32 + "X",
    "overlapping classes": "re:" + r"(.|[a-z])" * 30 + "[0-9]",
    "counted": "re:(?:m{0,90}){90}X",
    "back reference": "re:(.*)(.*)\\1\\2X",
    "lookahead": "re:" + "(?=.*)" * 40 + "X",
    "unbalanced": "re:((((",
    "deep": "re:" + "(" * 140 + ")" * 140,
    "glob": "*" * 300,
    "glob of stars": "*m*o*d*e*l*X",
    "glob classes": "[!" + "a-z" * 90 + "]*",
    "inline flags": "re:(?i)(?x).*",
    "group name": "re:(?P<a>.)(?P=a)",
}


@contextmanager
def within(seconds):
    """Stop what runs longer: a regular expression that runs away would never come back."""

    def stop(_number, _frame):
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pattern_is_refused_or_matched_within_a_second(pattern):
    fields = {**GLM_5_2, "quantization_config": {**FP8, "modules_to_not_convert": [pattern]}}
    with within(1):
        try:
            hsplan.plan(spec_of(fields))
        except UnsupportedError as error:
            assert "quantization_config" in error.lines()[0]  # noqa: PT017


def test_ten_thousand_patterns_are_matched_within_seconds():
    patterns = [f"model.layers.{i}.mlp*" for i in range(10_000)]
    start = time.process_time()
    hsplan.plan(spec_of({**GLM_5_2, "quantization_config": {**FP8, "modules_to_not_convert": patterns}}))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("config", "is_fp8"),
    [
        (None, False),
        ([], False),
        (FP8, False),
        (INT4, False),
        (NVFP4, True),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8}}, True),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, False),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 4}}, False),
        ({"kv_cache_scheme": "FP8"}, True),
        ({"kv_cache_quant_algo": "fp8"}, True),
        ({"kv_cache_quant_algo": "NVFP4"}, False),
        ({"kv_cache_quant_algo": None}, False),
        ({"kv_cache_scheme": []}, False),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_checkpoint_asks_for_an_fp8_cache_in_three_ways(config, is_fp8):
    assert kv_cache_is_fp8(config) is is_fp8
