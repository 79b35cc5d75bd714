"""The tensor inventory closes on the published parameter counts and checkpoint sizes, to the element and the byte."""

from __future__ import annotations

import pytest
from configs import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_2,
    DEEPSEEK_V4_FLASH,
    DEEPSEEK_V4_PRO,
    GLM_5,
    GLM_5_2,
    KIMI_K2,
    KIMI_K2_5,
    LONGCAT_FLASH_LITE_SPARSE,
    MINIMAX_M3,
    spec_of,
)

from hsplan.families import read_model
from hsplan.spec import load_spec
from hsplan.weights import matrix_bytes, named, of_quantization

V3_UNITS = {"layer": 61, "dense": 3, "moe": 58, "first": 1, "last": 1, "mtp": 1, "mtp_copy": 1}
GLM_UNITS = {"layer": 78, "owner": 78, "dense": 3, "moe": 75, "first": 1, "last": 1, "mtp": 1}
K2_UNITS = {"layer": 61, "dense": 1, "moe": 60, "first": 1, "last": 1}
M3_UNITS = {"layer": 60, "owner": 57, "dense": 3, "moe": 57, "first": 1, "last": 1}
FLASH_UNITS = {
    "layer": 43, "owner": 21, "moe": 43, "first": 1, "last": 1, "mtp": 1, "ratio4": 21, "ratio128": 20, "unhashed": 40,
    "hash": 3,
}  # fmt: skip
PRO_UNITS = {
    "layer": 61, "owner": 30, "moe": 61, "first": 1, "last": 1, "mtp": 1, "ratio4": 30, "ratio128": 31, "unhashed": 58,
    "hash": 3,
}  # fmt: skip
LITE_UNITS = {"layer": 28, "owner": 14, "moe": 14, "first": 1, "last": 1}


def model_of(fields):
    """The model as its family reads it."""
    return read_model(load_spec(spec_of(fields), {}))


def inventory_of(fields):
    """Its tensors; all the fields they need are there."""
    model = model_of(fields)
    assert model.missing == ()
    return model.inventory


@pytest.mark.parametrize(
    ("fields", "units", "parameters"),
    [
        (DEEPSEEK_V3, V3_UNITS, 684_489_845_504),
        (DEEPSEEK_V3, {**V3_UNITS, "mtp": 0, "mtp_copy": 0}, 671_026_419_200),
        (DEEPSEEK_V3, {"mtp": 1, "mtp_copy": 1}, 13_463_426_304),
        (DEEPSEEK_V3_2, {**V3_UNITS, "owner": 61}, 685_355_329_792),
        (DEEPSEEK_V3_2, {**V3_UNITS, "owner": 61, "mtp": 0, "mtp_copy": 0}, 671_877_944_064),
        (GLM_5, GLM_UNITS, 753_864_139_008),
        (GLM_5, {**GLM_UNITS, "mtp": 0}, 743_911_218_432),
        (GLM_5_2, {**GLM_UNITS, "owner": 21}, 753_329_940_480),
        (GLM_5_2, {**GLM_UNITS, "owner": 21, "mtp": 0}, 743_377_019_904),
        (GLM_5_2, {"mtp": 1}, 9_952_920_576),
        (KIMI_K2, K2_UNITS, 1_026_408_232_448),
        (KIMI_K2_5, K2_UNITS, 1_026_408_232_448),
        (LONGCAT_FLASH_LITE_SPARSE, LITE_UNITS, 68_612_700_160),
        # with the hash tables, 3 × 129,280 × 6, the published total
        (DEEPSEEK_V4_FLASH, FLASH_UNITS, 290_944_616_402),
        (DEEPSEEK_V4_FLASH, {**FLASH_UNITS, "mtp": 0, "hash": 0}, 284_332_240_471),
        (DEEPSEEK_V4_FLASH, {"mtp": 1}, 6_610_048_891),
        (DEEPSEEK_V4_PRO, {**PRO_UNITS, "hash": 0}, 1_598_837_347_742),
        (DEEPSEEK_V4_PRO, {"mtp": 1}, 25_840_145_979),
        (MINIMAX_M3, M3_UNITS, 426_174_572_928),
    ],
    ids=["V3", "V3 main", "V3 MTP", "V3.2", "V3.2 main", "GLM-5", "GLM-5 main", "GLM-5.2", "GLM-5.2 main",
         "GLM-5.2 MTP", "K2", "K2.5", "LongCat Lite", "V4-Flash", "V4-Flash main", "V4-Flash MTP", "V4-Pro",
         "V4-Pro MTP", "M3"],
)  # fmt: skip
def test_parameters_are_the_published_ones(fields, units, parameters):
    assert inventory_of(fields).parameters(units) == parameters


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [(DEEPSEEK_V3_2, 13_959_424), (GLM_5, 9_371_904), (LONGCAT_FLASH_LITE_SPARSE, 3_588_224), (MINIMAX_M3, 3_932_416)],
)
def test_an_indexer_has_the_published_parameters(fields, parameters):
    assert inventory_of(fields).parameters({"owner": 1}) == parameters


def test_the_n_gram_tables_of_longcat_are_counted():
    tables = [t for t in inventory_of(LONGCAT_FLASH_LITE_SPARSE).tensors if t.module == "model.ngram_embeddings"]
    assert sum(t.elements for t in tables) == 31_406_985_216


def bf16(_tensor):
    return "bf16"


def fp8(_tensor):
    return "fp8"


def experts_of_the_stack_in(name):
    """4-bit checkpoints hold the routed experts of the stack only; MTP layers stay bf16."""

    def format_of(tensor):
        return name if tensor.module.startswith("mlp.experts.") and tensor.unit == "moe" else "bf16"

    return format_of


def checkpoint_bytes(fields, units, format_of):
    """Bytes on disk: what the tensor's own type does not fix is in the checkpoint's format."""
    return sum(
        matrix_bytes(format_of(t) if t.dtype == "linear" else t.dtype, t.rows, t.cols) * t.count * units.get(t.unit, 0)
        for t in inventory_of(fields).tensors
    )


@pytest.mark.parametrize(
    ("fields", "units", "format_of", "n_bytes"),
    [
        (GLM_5_2, {**GLM_UNITS, "owner": 21}, bf16, 1_506_659_919_872),
        (GLM_5_2, {**GLM_UNITS, "owner": 21}, fp8, 755_617_140_416),
        (GLM_5_2, {**GLM_UNITS, "owner": 21}, experts_of_the_stack_in("nvfp4"), 464_795_267_072),
        (GLM_5, GLM_UNITS, bf16, 1_507_728_316_928),
        (GLM_5, GLM_UNITS, fp8, 756_162_687_872),
        (DEEPSEEK_V3, V3_UNITS, fp8, 688_574_839_360),
        (DEEPSEEK_V3_2, {**V3_UNITS, "owner": 61}, fp8, 689_468_986_496),
        (KIMI_K2, K2_UNITS, fp8, 1_029_173_249_888),
        (KIMI_K2_5, K2_UNITS, experts_of_the_stack_in("int4"), 594_206_457_856),
    ],
    ids=[
        "GLM-5.2 bf16",
        "GLM-5.2 fp8",
        "GLM-5.2 nvfp4",
        "GLM-5 bf16",
        "GLM-5 fp8",
        "V3 fp8",
        "V3.2 fp8",
        "K2 fp8",
        "K2.5 int4",
    ],
)
def test_a_checkpoint_has_the_published_bytes(fields, units, format_of, n_bytes):
    assert checkpoint_bytes(fields, units, format_of) == n_bytes


@pytest.mark.parametrize(
    ("fields", "units", "expert_dtype", "n_bytes"),
    [
        (DEEPSEEK_V4_FLASH, FLASH_UNITS, "fp4", 159_609_485_896),
        (DEEPSEEK_V4_PRO, PRO_UNITS, "fp4", 864_704_792_696),
        (DEEPSEEK_V4_PRO, {**PRO_UNITS, "mtp": 0}, "fp4", 850_748_205_004),
        (DEEPSEEK_V4_FLASH, FLASH_UNITS, "fp8", 292_502_338_120),
        (DEEPSEEK_V4_PRO, PRO_UNITS, "fp8", 1_602_033_600_632),
    ],
    ids=["V4-Flash", "V4-Pro", "V4-Pro main", "V4-Flash fp8 experts", "V4-Pro fp8 experts"],
)
def test_a_checkpoint_of_deepseek_v4_has_the_published_bytes(fields, units, expert_dtype, n_bytes):
    model = {**fields, "expert_dtype": expert_dtype}
    formats = of_quantization(model_of(model).quantization)

    def format_of(tensor):
        return formats.of(f"model.layers.0.{tensor.module}")

    assert checkpoint_bytes(model, units, format_of) == n_bytes


def test_a_named_checkpoint_of_deepseek_v4_changes_its_experts_only():
    known = of_quantization(model_of(DEEPSEEK_V4_FLASH).quantization)
    expert, attention = "model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.self_attn.wq_b"
    assert (known.of(expert), known.of(attention)) == ("mxfp4", "fp8_ue8m0")
    assert named("fp8", known).of(expert) == "fp8_ue8m0"
    assert (named("nvfp4", known).of(expert), named("nvfp4", known).of(attention)) == ("nvfp4", "fp8_ue8m0")


def test_the_indexer_of_deepseek_v4_flash_takes_the_published_bytes_a_layer():
    formats = of_quantization(model_of(DEEPSEEK_V4_FLASH).quantization)
    owner = [tensor for tensor in inventory_of(DEEPSEEK_V4_FLASH).tensors if tensor.unit == "owner"]
    sizes = (
        matrix_bytes(formats.of(t.module) if t.dtype == "linear" else t.dtype, t.rows, t.cols) * t.count for t in owner
    )
    assert sum(sizes) == 13_112_064


@pytest.mark.parametrize(
    ("number_format", "rows", "cols", "n_bytes"),
    [
        ("bf16", 128, 7168, 1_835_008),
        ("fp32", 256, 1, 1_024),
        # 128 × 7168 values and 1 × 56 scales of 4 bytes.
        ("fp8", 128, 7168, 917_728),
        # 576 rows need 5 rows of scales: 576 × 7168 + 5 × 56 × 4.
        ("fp8", 576, 7168, 4_129_888),
        # Half a byte a value, a byte a 16 values, and two fp32 scalars.
        ("nvfp4", 2048, 6144, 7_077_896),
        # A byte a value and one for each of 64 × 8 blocks.
        ("fp8_ue8m0", 8192, 1024, 8_389_120),
        # Half a byte a value and a byte a 32 values.
        ("mxfp4", 2048, 4096, 4_456_448),
        ("int64", 129_280, 6, 6_205_440),
        # Half a byte a value, two bytes a 32 values, and the shape tensor.
        ("int4", 2048, 7168, 8_257_552),
    ],
)
def test_a_matrix_takes_its_values_and_its_scales(number_format, rows, cols, n_bytes):
    assert matrix_bytes(number_format, rows, cols) == n_bytes


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (GLM_5, "vocab_size"),
        (GLM_5, "index_n_heads"),
        (DEEPSEEK_V3, "n_routed_experts"),
        (LONGCAT_FLASH_LITE_SPARSE, "zero_expert_num"),
        (DEEPSEEK_V4_FLASH, "o_lora_rank"),
        (MINIMAX_M3, "dense_intermediate_size"),
    ],
)
def test_a_field_that_the_inventory_lacks_is_named(fields, name):
    model = model_of({key: value for key, value in fields.items() if key != name})
    assert model.inventory is None
    assert model.missing == (name,)


def test_another_moe_frequency_is_not_guessed():
    model = model_of({**GLM_5, "moe_layer_freq": 2})
    assert model.inventory is None
    assert model.missing == ("moe_layer_freq (only 1 is known)",)
