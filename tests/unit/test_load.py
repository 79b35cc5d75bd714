"""Specs, overrides and model references: what is right is read, what is wrong is named with place and remedy."""

from __future__ import annotations

import collections
import json
from types import MappingProxyType

import pytest
from configs import DEEPSEEK_V3, GLM_5_2, NVFP4, spec_of

import hsplan
from hsplan import InputError, UnsupportedError
from hsplan.spec import load_spec, shipped_names
from hsplan.spec.source import find

SMALL = """\
model:
  architectures: [GlmMoeDsaForCausalLM]
  num_hidden_layers: 78
  kv_lora_rank: 512
  qk_rope_head_dim: 64
  index_topk: 2048
  index_head_dim: 128
deployment:
  gpu: h200
  tp: 8
  kv_budget: 64GiB
"""


@pytest.fixture
def spec(tmp_path):
    """Write a YAML spec and return its path."""

    def write(text, name="my.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def lines_of(path, **overrides):
    """What a user sees of the error."""
    with pytest.raises(InputError) as caught:
        hsplan.plan(path, **overrides)
    assert caught.value.exit_code == 2
    return caught.value.lines()


# What is right


def test_a_spec_file_is_planned(spec):
    plan = hsplan.plan(spec(SMALL)).to_dict()
    assert plan["model"]["layers"] == 78
    assert plan["scenarios"]["baseline"]["kv_budget_bytes"] == 68_719_476_736


def test_defaults_are_those_of_the_contract(spec):
    loaded = load_spec(spec(SMALL), {}).spec
    deployment = loaded.deployment
    assert (loaded.name, loaded.weights, loaded.offload) == (None, "auto", None)
    assert (loaded.workload.context, loaded.workload.tpot_ms) == (32768, None)
    assert (deployment.engine, deployment.release, deployment.gpus, deployment.nodes) == ("sglang", "latest", "auto", 1)
    assert (deployment.pp, deployment.dp, deployment.dp_attention, deployment.ep) == (1, 1, 1, 1)
    assert (deployment.cp, deployment.dcp, deployment.pcp) == (1, 1, 1)
    assert (deployment.kv_cache_dtype, deployment.attention_backend, deployment.page_size) == ("auto", "auto", "auto")
    assert (deployment.mem_fraction, deployment.chunked_prefill_size, deployment.cuda_graph_max_bs) == ("auto",) * 3
    assert (deployment.moe_a2a_backend, deployment.enable_dp_lm_head) == ("none", False)
    assert (deployment.draft_layers, deployment.num_speculative_tokens) == (0, 0)
    assert (deployment.hierarchical_cache, deployment.unified_cache_linker, deployment.disaggregation) == (
        False,
        False,
        None,
    )
    assert (deployment.layer_range, deployment.max_running_requests, deployment.max_model_len) == (None, "auto", "auto")
    assert (deployment.max_total_tokens, deployment.radix_cache, deployment.async_scheduling) == (None, True, True)


def test_an_offload_section_may_be_empty_and_then_has_the_defaults(spec):
    offload = load_spec(spec(SMALL + "offload: {}\n"), {}).spec.offload
    assert (offload.device_buffer_size, offload.host_to_device_ratio) == ("auto", 2)
    assert (offload.host_pool, offload.host_memory) == ("auto", "auto")


def test_a_mapping_is_read_and_never_changed():
    data = spec_of(GLM_5_2, kv_budget="64GiB", offload={"host_to_device_ratio": 4}, engine="sglang@0.5.20")
    before = json.dumps(data)
    hsplan.plan(data, tp=4, kv_budget="32GiB", host_to_device_ratio=2)
    assert json.dumps(data) == before


def test_a_read_only_mapping_is_as_good_as_a_dict():
    data = MappingProxyType(spec_of(GLM_5_2, kv_budget="64GiB"))
    assert hsplan.plan(data).to_dict()["model"]["layers"] == 78


def test_sizes_are_read_with_their_units(spec):
    loaded = load_spec(spec(SMALL + "offload: {host_memory: 2TiB}\n"), {"bytes_per_rank": "106.76GiB"}).spec
    assert loaded.deployment.kv_budget == 68_719_476_736
    assert loaded.offload.host_memory == 2_199_023_255_552
    assert loaded.weights.bytes_per_rank == 114_632_677_130


def test_a_budget_may_be_given_in_bytes(spec):
    assert load_spec(spec(SMALL), {"kv_budget": 144_017_769_627}).spec.deployment.kv_budget == 144_017_769_627


def test_the_engine_may_name_its_release(spec):
    loaded = load_spec(spec(SMALL + "  engine: sglang@0.5.17\n"), {}).spec.deployment
    assert (loaded.engine, loaded.release) == ("sglang", "0.5.17")


def test_the_name_of_the_spec_is_the_name_of_the_plan(spec):
    assert hsplan.plan(spec("name: my deployment\n" + SMALL)).to_dict()["name"] == "my deployment"


def test_what_a_spec_marks_as_unverified_is_a_note_of_the_plan(spec):
    notes = hsplan.plan(spec("# unverified: max positions\n" + SMALL)).to_dict()["notes"]
    assert "not verified against an original: max positions" in notes


# Overrides


def test_an_override_of_a_leaf_wins_over_the_file(spec):
    plan = hsplan.plan(spec(SMALL), gpu="b200", kv_budget="32GiB", context=1024)
    assert plan.launch.gpu.name == "b200"
    assert plan.to_dict()["scenarios"]["baseline"]["kv_budget_bytes"] == 34_359_738_368
    assert plan.to_dict()["workload"]["context"] == 1024


def test_an_override_of_a_section_is_merged_by_key(spec):
    loaded = load_spec(
        spec(SMALL + "workload: {tpot_ms: 50}\n"), {"workload": {"context": 1024}, "deployment": {"tp": 4}}
    ).spec
    assert (loaded.workload.context, loaded.workload.tpot_ms) == (1024, 50)
    assert (loaded.deployment.tp, loaded.deployment.gpu) == (4, "h200")


def test_an_offload_leaf_launches_with_offload(spec):
    assert hsplan.plan(spec(SMALL), host_to_device_ratio=4).as_launched == "offload"


def test_an_offload_leaf_goes_into_a_section_that_is_null(spec):
    loaded = load_spec(spec(SMALL + "offload: null\n"), {"host_to_device_ratio": 4}).spec
    assert loaded.offload.host_to_device_ratio == 4


def test_weights_of_an_override_replace_those_of_the_file(spec):
    loaded = load_spec(spec(SMALL + "weights: {checkpoint: fp8}\n"), {"bytes_per_rank": 5_000_000}).spec
    assert (loaded.weights.checkpoint, loaded.weights.bytes_per_rank) == (None, 5_000_000)


def test_an_override_may_name_another_model(spec):
    plan = hsplan.plan(spec(SMALL), model="deepseek-v3.2-fp8")
    assert plan.to_dict()["model"]["layers"] == 61
    assert plan.launch.gpu.name == "h200"


def test_a_wrong_override_is_named_by_its_option(spec):
    assert lines_of(spec(SMALL), max_running_requests=-1)[0] == "--max-running-requests: -1 is not valid"


def test_an_unknown_override_is_refused_with_the_nearest_name(spec):
    assert lines_of(spec(SMALL), kv_budgets="1GiB") == ["unknown option 'kv_budgets'", "  did you mean kv_budget?"]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"8", 8j, float("nan"), [8], {"a": 8}, None, "eight", True, 8.5])
def test_an_override_of_a_wrong_type_is_an_error_of_input(spec, value):
    lines_of(spec(SMALL), tp=value)


# What is wrong


def test_each_wrong_value_is_named_with_file_line_key_and_remedy(spec):
    path = spec(SMALL.replace("tp: 8", "tp: eight").replace("64GiB", "64G") + "workload: {context: -1}\n")
    assert lines_of(path) == [
        f"{path}:10: deployment.tp: 'eight' is not valid",
        "  give a whole number from 1 to 4,096 or auto",
        f"{path}:11: deployment.kv_budget: '64G' is not a size",
        "  unknown unit 'G': use GiB (2^30 bytes), GB (10^9 bytes), MiB, TiB, …",
        f"{path}:12: workload.context: -1 is not valid",
        "  give a whole number from 1 to 2,147,483,647",
    ]


def test_a_missing_required_key_is_named_with_its_section(spec):
    path = spec(SMALL.replace("  gpu: h200\n", ""))
    where, remedy = lines_of(path)
    assert where == f"{path}:8: deployment: `deployment.gpu` is missing"
    assert remedy.startswith("  give --gpu, or write it in a spec; known: a100, ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: x\n", 1),
        ("model: {}\n", 1),
        ("model: 3\ndeployment: {gpu: h200}\n", 1),
        ("deployment: {gpu: h200}\nmodel: [1]\n", 2),
    ],
)
def test_a_missing_section_is_named(spec, text, line):
    lines = lines_of(spec(text))
    assert any(f"my.yaml:{line}" in shown for shown in lines)
    assert any("missing" in shown for shown in lines)


@pytest.mark.parametrize("section", ["deployment", "workload", "offload", "weights"])
@pytest.mark.parametrize("value", ["3", "x", "[1]"])
def test_a_section_that_is_no_mapping_is_refused(spec, section, value):
    text = SMALL.split("deployment:", maxsplit=1)[0] if section == "deployment" else SMALL
    lines = lines_of(spec(f"{text}{section}: {value}\n"))
    assert any(f"`{section}` is" in line and "no mapping" in line for line in lines)


@pytest.mark.parametrize(
    ("section", "option"), [("deployment", "gpu"), ("workload", "tpot_ms"), ("offload", "device_buffer_size")]
)
def test_an_option_never_hides_a_section_that_is_no_mapping(spec, section, option):
    head = SMALL.split("deployment:", maxsplit=1)[0] if section == "deployment" else SMALL
    lines = lines_of(spec(f"{head}{section}: x\n"), **{option: "h200" if option == "gpu" else 8})
    assert any(f"`{section}` is" in line and "no mapping" in line for line in lines)


def test_an_unknown_key_is_refused_with_the_nearest_name(spec):
    path = spec(SMALL + "  kv_cache_dtyp: auto\n")
    assert lines_of(path) == [
        f"{path}:12: deployment.kv_cache_dtyp: unknown key 'kv_cache_dtyp'",
        "  did you mean kv_cache_dtype?",
    ]


def test_an_unknown_section_is_refused_with_the_nearest_name(spec):
    path = spec(SMALL + "workloads: {context: 5}\n")
    assert lines_of(path) == [f"{path}:12: workloads: unknown key 'workloads'", "  did you mean workload?"]


@pytest.mark.parametrize(
    ("extra", "where", "home"),
    [
        ("context: 4096\n", "context", "workload"),
        ("  context: 4096\n", "deployment.context", "workload"),
        ("offload: {tp: 8}\n", "offload.tp", "deployment"),
        ("workload: {host_memory: 2TiB}\n", "workload.host_memory", "offload"),
        ("  bytes_per_rank: 5\n", "deployment.bytes_per_rank", "weights"),
    ],
)
def test_a_leaf_under_the_wrong_section_is_sent_to_its_own(spec, extra, where, home):
    path = spec(SMALL + extra)
    lines = lines_of(path)
    assert f"{path}:12: {where}: unknown key {where.rsplit('.', 1)[-1]!r}" in lines
    assert f"  it belongs under `{home}:`" in lines


def test_an_unknown_model_field_is_refused_with_the_nearest_name(spec):
    path = spec(SMALL.replace("index_topk: 2048", "index_topkk: 2048"))
    assert lines_of(path) == [
        f"{path}:6: model.index_topkk: unknown model field 'index_topkk'",
        "  did you mean index_topk?",
    ]


def test_a_harmless_model_field_is_accepted(spec):
    hsplan.plan(spec(SMALL.replace("model:\n", "model:\n  rope_theta: 1000000\n  bos_token_id: 0\n")))


def test_at_most_ten_problems_are_printed(spec):
    text = SMALL + "".join(f"  unknown_{i}: 1\n" for i in range(25))
    lines = lines_of(spec(text))
    assert len([line for line in lines if "unknown key" in line]) == 10
    assert lines[-1] == "and 15 more"
    assert len(lines) == 21


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("mem_fraction", "1.5", "give a number above 0 and below 1 or auto"),
        ("mem_fraction", ".nan", "give a number above 0 and below 1 or auto"),
        ("mem_fraction", "0", "give a number above 0 and below 1 or auto"),
        ("page_size", "0", "give a whole number from 1 to 65,536 or auto"),
        ("hierarchical_cache", "maybe", "give true or false"),
        ("disaggregation", "both", "give decode, prefill or null"),
        ("kv_cache_dtype", "fp8", "did you mean fp8_e4m3?"),
        ("layer_range", "[1]", "give the first layer and the end, such as [0, 15] or null"),
        ("release", "0.5", "give a text"),
        ("tp", "99999", "give a whole number from 1 to 4,096 or auto"),
        ("max_total_tokens", "0", "give a whole number from 1 to 2,147,483,647 or null"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(spec, key, value, remedy):
    path = spec(SMALL.replace("  tp: 8\n", "") + f"  {key}: {value}\n" + ("  gpus: 8\n" if key != "tp" else ""))
    head, told = lines_of(path)
    assert head.startswith(f"{path}:11: deployment.{key}: ")
    assert told == f"  {remedy}"


def test_an_empty_or_reversed_layer_range_is_refused(spec):
    path = spec(SMALL + "  layer_range: [5, 5]\n")
    assert lines_of(path) == [
        f"{path}:12: deployment.layer_range: [5, 5] holds no layer",
        "  write [first, end) with first < end",
    ]


def test_a_layer_range_past_the_model_is_refused(spec):
    path = spec(SMALL + "  layer_range: [0, 79]\n")
    assert lines_of(path) == [
        f"{path}:12: deployment.layer_range: [0, 79) goes past the model's 78 layers",
        "  end at 78",
    ]


@pytest.mark.parametrize("weights", ["{}", "{checkpoint: fp8, bytes_per_rank: 5GiB}", "{path: a, checkpoint: fp8}"])
def test_weights_name_exactly_one_source(spec, weights):
    lines = lines_of(spec(SMALL + f"weights: {weights}\n"))
    assert lines[-1] == "  give exactly one of checkpoint, bytes_per_rank, path"


@pytest.mark.parametrize("keys", ["gpus: 4", "gpus: 16", "nodes: 2, gpus: 8", "pp: 2, gpus: 8"])
def test_ranks_that_do_not_fill_the_gpus_are_refused(spec, keys):
    lines = lines_of(spec(SMALL.replace("  tp: 8", "  tp: 8\n  " + keys.replace(", ", "\n  "))))
    assert "ranks do not fill" in lines[0]
    assert lines[1] == "  let tp × pp = gpus × nodes"


def test_a_number_with_thousands_of_digits_is_refused_in_one_short_line():
    lines = lines_of({**spec_of(GLM_5_2), "workload": {"context": 10**6000}})
    assert lines[0] == "workload.context: a very large int is not valid"


def test_control_characters_of_a_spec_never_reach_the_terminal(spec):
    lines = lines_of(spec(SMALL.replace("gpu: h200", 'gpu: "h\\e[2Jx\\n\\u202e"')))
    assert all(line.isprintable() for line in lines)


def test_an_unknown_architecture_is_refused_and_never_guessed(spec):
    with pytest.raises(UnsupportedError) as caught:
        hsplan.plan(spec(SMALL.replace("GlmMoeDsaForCausalLM", "LlamaForCausalLM")))
    assert caught.value.exit_code == 3
    head, remedy = caught.value.lines()
    assert head.endswith(
        ":2: model.architectures: unknown architecture 'LlamaForCausalLM'; an unknown model is never guessed"
    )
    assert remedy.startswith("  known: DeepseekV3ForCausalLM, ")


def test_an_unknown_engine_is_refused_with_the_known_ones(spec):
    with pytest.raises(UnsupportedError) as caught:
        hsplan.plan(spec(SMALL), engine="tensorrt")
    assert caught.value.lines()[0] == "--engine: unknown engine 'tensorrt'"


# Where a spec is found


@pytest.mark.parametrize(
    "name",
    [
        "no-such-spec", "/no/such/file.yaml", "~no-such-user-here/spec.yaml", "~no-such-user-here", "a" * 300,
        "a" * 5000, "/" + "a" * 5000, "a\0b", "/a\0b", "\ud800",
    ],
    ids=["name", "path", "home", "home alone", "300", "5000", "path 5000", "nul", "path nul", "surrogate"],
)  # fmt: skip
def test_a_spec_that_is_not_there_is_an_error_of_input(name):
    lines = lines_of(name)
    assert len(lines) <= 2
    assert all(line.isprintable() for line in lines)


def test_a_folder_without_config_json_is_refused(tmp_path):
    head, remedy = lines_of(tmp_path)
    assert head == f"{tmp_path}: the folder has no config.json"
    assert remedy == "  give a model folder with config.json, or a spec file"


def test_a_misspelt_shipped_name_gets_the_nearest_one():
    names = shipped_names()
    if not names:
        pytest.skip("no spec is shipped")
    assert lines_of(names[0] + "x")[1].endswith(f"did you mean {names[0]}?")


def test_a_model_may_be_a_relative_path_from_the_folder_of_the_spec(spec, tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    spec(json.dumps(GLM_5_2), "specs/models/glm/config.json")
    path = spec("model: models/glm\ndeployment: {gpu: h200, tp: 8, kv_budget: 64GiB}\n", "specs/my.yaml")
    monkeypatch.chdir(tmp_path / "far")
    assert hsplan.plan(path).to_dict()["model"]["index_owner_layers"] == 21


def test_a_model_below_the_home_folder_is_found(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    spec(json.dumps(GLM_5_2), "home/models/glm/config.json")
    path = spec("model: ~/models/glm\ndeployment: {gpu: h200, tp: 8, kv_budget: 64GiB}\n", "specs/my.yaml")
    assert hsplan.plan(path).to_dict()["model"]["index_owner_layers"] == 21


def test_a_model_may_be_a_file_beside_the_spec(spec):
    spec(json.dumps(GLM_5_2), "glm.json")
    path = spec("model: glm.json\ndeployment: {gpu: h200, tp: 8, kv_budget: 64GiB}\n")
    assert hsplan.plan(path).to_dict()["model"]["index_owner_layers"] == 21


def test_a_model_may_be_another_spec_of_which_only_the_model_is_taken(spec):
    spec(SMALL.replace("64GiB", "1GiB"), "other.yaml")
    path = spec("model: other.yaml\ndeployment: {gpu: h200, tp: 4, kv_budget: 64GiB}\n")
    plan = hsplan.plan(path).to_dict()
    assert plan["model"]["layers"] == 78
    assert plan["scenarios"]["baseline"]["kv_budget_bytes"] == 68_719_476_736


def test_an_error_in_a_referenced_model_is_placed_in_its_own_file(spec):
    config = spec('{\n "architectures": ["GlmMoeDsaForCausalLM"],\n "num_hidden_layers": "many"\n}', "glm.json")
    path = spec("model: glm.json\ndeployment: {gpu: h200, tp: 8}\n")
    assert any(line.startswith(f"{config}:3: num_hidden_layers") for line in lines_of(path))


@pytest.mark.parametrize("model", ["nowhere", "./nowhere.json", "~no-such-user-here/x", "a" * 5000, '"a\\0b"'])
def test_a_model_that_is_not_there_is_an_error_of_input(spec, model):
    path = spec(f"name: x\nmodel: {model}\ndeployment: {{gpu: h200, tp: 8}}\n")
    assert lines_of(path)[0]


@pytest.mark.parametrize("folder", ["nowhere", "~no-such-user-here/x", "a" * 5000, '"a\\0b"'])
def test_a_weights_folder_that_is_not_there_is_an_error_of_input(spec, folder):
    assert lines_of(spec(SMALL + f"weights: {{path: {folder}}}\n"))[0]


def test_a_relative_weights_folder_is_meant_from_the_folder_of_the_spec(spec, tmp_path):
    loaded = load_spec(spec(SMALL + "weights: {path: shards}\n"), {}).spec
    assert loaded.weights.path == str(tmp_path / "shards")


# config.json


def test_a_config_json_is_planned_with_options_alone(spec):
    plan = hsplan.plan(spec(json.dumps(GLM_5_2), "config.json"), gpu="h200", tp=8, kv_budget="64GiB")
    assert plan.to_dict()["model"]["skip_topk_layers"] == 57


def test_a_model_folder_is_planned_with_options_alone(spec, tmp_path):
    spec(json.dumps(GLM_5_2), "config.json")
    assert hsplan.plan(tmp_path, gpu="h200", tp=8, kv_budget="64GiB").to_dict()["model"]["layers"] == 78


def test_a_config_json_without_a_gpu_asks_for_one(spec):
    lines = lines_of(spec(json.dumps(GLM_5_2), "config.json"))
    assert "`deployment.gpu` is missing" in lines[0]


def test_an_unknown_field_of_a_config_json_is_a_note(spec):
    path = spec(json.dumps({**GLM_5_2, "brand_new_switch": 1}), "config.json")
    plan = hsplan.plan(path, gpu="h200", tp=8, kv_budget="64GiB").to_dict()
    assert plan["model"]["ignored_fields"] == ["brand_new_switch"]
    assert any("brand_new_switch" in note for note in plan["notes"])


@pytest.mark.parametrize("field", ["index_new", "kv_share", "compress_ratios", "sliding_window", "attn_index_x"])
def test_an_unknown_field_that_may_change_the_cache_is_refused(spec, field):
    path = spec(json.dumps({**GLM_5_2, field: 1}), "config.json")
    with pytest.raises(UnsupportedError) as caught:
        hsplan.plan(path, gpu="h200", tp=8, kv_budget="64GiB")
    assert caught.value.exit_code == 3
    assert caught.value.lines()[0].endswith(f"unknown field '{field}'")


def test_a_nested_text_config_is_read(spec):
    nested = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "vision_config": {},
        "text_config": {**DEEPSEEK_V3, "architectures": ["X"]},
    }
    plan = hsplan.plan(spec(json.dumps(nested), "config.json"), gpu="h200", tp=8, kv_budget="64GiB")
    assert plan.launch.model.architecture == "KimiK25ForConditionalGeneration"
    assert plan.to_dict()["model"]["layers"] == 61


def test_the_quantisation_beside_a_config_json_is_read(spec):
    spec(
        json.dumps({"producer": {}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}),
        "hf_quant_config.json",
    )
    path = spec(json.dumps(GLM_5_2), "config.json")
    assert find(path).document.data["quantization_config"] == {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"],
    }  # fmt: skip


def test_the_quantisation_in_a_config_json_wins_over_the_file_beside_it(spec):
    spec(json.dumps({"quantization": {"quant_algo": "FP8"}}), "hf_quant_config.json")
    path = spec(json.dumps({**GLM_5_2, "quantization_config": NVFP4}), "config.json")
    assert find(path).document.data["quantization_config"]["quant_algo"] == "NVFP4"


@pytest.mark.parametrize("text", ["{}", '{"quantization": 3}', "[]", "{", "\x00"])
def test_a_broken_quantisation_file_is_refused(spec, text):
    broken = spec(text, "hf_quant_config.json")
    path = spec(json.dumps(GLM_5_2), "config.json")
    assert str(broken) in lines_of(path, gpu="h200", tp=8)[0]


@pytest.mark.parametrize("architectures", [None, [], "GlmMoeDsaForCausalLM", [3], [["x"]], {}])
def test_architectures_that_name_no_class_are_refused(architectures):
    lines = lines_of(spec_of({**GLM_5_2, "architectures": architectures}))
    assert lines[0] == "model.architectures: `architectures` is missing"


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 10**400, "original_max_position_embeddings": 10},
        {"factor": 1.5, "original_max_position_embeddings": 10**400},
        {"factor": float("nan"), "original_max_position_embeddings": 4096},
        {"factor": float("inf"), "original_max_position_embeddings": 4096},
        {"factor": "40", "original_max_position_embeddings": None},
        [], "yarn", 3,
    ],
    ids=["huge factor", "huge original", "nan", "inf", "texts", "list", "text", "number"],
)  # fmt: skip
def test_absurd_rope_scaling_neither_crashes_nor_changes_the_tokens(scaling):
    plan = hsplan.plan(spec_of({**GLM_5_2, "rope_scaling": scaling}, kv_budget="64GiB"))
    # 64 GiB / 92,628 B are 741,886.3 tokens, 11,591 pages of 64.
    assert plan.to_dict()["scenarios"]["elided"]["max_total_num_tokens"] == 741_824


@pytest.mark.parametrize("key", ["dp", "pcp"])
def test_a_key_of_vllm_is_refused_under_sglang(key):
    assert (
        lines_of(spec_of(GLM_5_2, kv_budget="64GiB", **{key: 2}))[0]
        == f"deployment.{key}: {key} is a key of vLLM, not of SGLang"
    )


@pytest.mark.parametrize("section", [MappingProxyType({"ctx": 1}), collections.UserDict({"ctx": 1})], ids=repr)
def test_a_typo_in_a_mapping_of_any_kind_is_an_error(section):
    with pytest.raises(InputError, match="unknown key 'ctx'"):
        hsplan.plan("glm-5.2-fp8", workload=section)


class OfAnArray:
    """What a sweep over an array gives: a scalar with `item`."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


def test_scalars_of_arrays_are_numbers():
    assert hsplan.plan("glm-5.2-fp8", tp=OfAnArray(16), step_ms={"fixed": OfAnArray(12.5)}).launch.tp == 16


@pytest.mark.parametrize(
    ("arguments", "options", "what"),
    [
        ([None], {}, "a spec is a path, the name of a shipped spec or a mapping, not NoneType"),
        ([8], {}, "a spec is a path, the name of a shipped spec or a mapping, not int"),
        (["glm-5.2-fp8"], {"calibration": {}}, "a calibration is what `hsplan calibrate` made or its file, not dict"),
        (["glm-5.2-fp8"], {"calibration": True}, "a calibration is what `hsplan calibrate` made or its file, not bool"),
    ],
)
def test_what_is_no_spec_and_no_calibration_is_said_to_be_none(arguments, options, what):
    with pytest.raises(InputError) as caught:
        hsplan.plan(*arguments, **options)
    (problem,) = caught.value.problems
    assert problem.what == what
    assert problem.remedy
