"""`hsplan specs`: list, show, import, schema."""

import json

import pytest

from hsplan import plan
from hsplan.spec import shipped_names

CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 7,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
    "indexer_types": ["full", "full", "full", "shared", "shared", "shared", "full"],
    "rms_norm_eps": 1e-05,
    "id2label": {"0": "no"},
    "some\nnew_field": "yes: it is",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


@pytest.fixture
def config(tmp_path):
    """A config.json in a folder."""
    folder = tmp_path / "GLM-Tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "config.json"


def test_list_has_one_line_for_each_shipped_spec(run):
    code, out, err = run("specs", "list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[2:]] == shipped_names()
    assert max(map(len, out.splitlines())) <= 100
    summaries = json.loads(run("specs", "list", "--json")[1])
    assert [entry["name"] for entry in summaries] == shipped_names()


def test_show_draws_the_layers_and_counts_the_parameters(run, glm):
    code, out, err = run("specs", "show", glm)
    assert (code, err) == (0, "")
    assert "78: 21 compute top-k, 57 reuse it" in out
    assert "0-2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74" in out
    assert f"   0  {('FFF' + 'SSSF' * 16)[:64]}\n  64  SSFSSSFSSSFSSS\n" in out
    # total of nvidia/GLM-5.2 and zai-org/GLM-5.2 on the hub: 753,329,940,480 with the MTP layer
    assert "parameters       743,377,019,904" in out
    assert "with MTP       753,329,940,480" in out
    assert "# GLM-5.2 as its config.json has it." in out
    assert "not verified: nothing, this line tests the remark" in out


def test_show_draws_a_model_that_no_engine_loads(run, longcat):
    assert run("estimate", longcat)[0] == 3
    code, out, err = run("specs", "show", longcat)
    assert (code, err) == (0, "")
    assert "28: 14 compute top-k, 14 reuse it" in out
    assert "   0  " + "FS" * 14 in out


def test_show_counts_by_the_rules_of_the_release_asked_for(run, config):
    now, before = (run("specs", "show", str(config), "--release", name)[1] for name in ("latest", "0.5.17"))
    assert "by SGLang 0.5.23: F computes top-k, S reuses it, M has no indexer\n   0  FFFSSSF" in now
    assert "by SGLang 0.5.17: F computes top-k, S reuses it, M has no indexer\n   0  FFFFFFF" in before
    shown = json.loads(run("specs", "show", str(config), "--json")[1])
    assert (shown["pattern"], shown["parameters"], shown["deployment"]) == ("FFFSSSF", None, None)


def test_an_unknown_release_exits_with_3(run, glm):
    code, _, err = run("specs", "show", glm, "--release", "9.9")
    assert (code, err.splitlines()[0]) == (3, "--release: SGLang '9.9' is not a release hsplan knows")


def test_import_writes_a_spec_that_plans_as_the_config_does(run, config, tmp_path):
    target = tmp_path / "tiny.yaml"
    assert run("specs", "import", str(config.parent), "--gpu", "H200", "--tp", "8", "-o", str(target)) == (0, "", "")
    text = target.read_text()
    assert text.splitlines()[:3] == [
        "# GlmMoeDsaForCausalLM. Source: config.json, fields as they are.",
        r"# Left out, no rule of hsplan reads it: some\nnew_field",
        "name: glm-tiny",
    ]
    assert "  indexer_types: [full, full, full, shared, shared, shared, full]\n" in text
    assert text.endswith("deployment:\n  engine: sglang\n  gpu: h200\n  tp: 8\n")
    given = {"kv_budget": "20GiB"}
    first, second = plan(target, **given), plan(config, gpu="h200", tp=8, **given)
    assert first.to_dict()["scenarios"] == second.to_dict()["scenarios"]


def test_import_keeps_a_nested_text_config(run, tmp_path):
    nested = {key: value for key, value in CONFIG.items() if key not in ("architectures", "quantization_config")}
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": nested, "vision_config": {"a": 1}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(outer))
    code, out, err = run("specs", "import", str(path), "--gpu", "h200", "--tp", "8")
    assert (code, err) == (0, "")
    assert "  text_config:\n    num_hidden_layers: 7\n" in out


@pytest.mark.parametrize(
    ("args", "code", "first"),
    [
        (["--gpu", "h2000", "--tp", "8"], 2, "--gpu: unknown GPU 'h2000'"),
        (["--gpu", "h200", "--tp", "0"], 2, "--tp: 0 is not valid"),
        (["--gpu", "h200", "--tp", "x"], 2, "Invalid value for '--tp': 'x' is not a valid int"),
        (["--gpu", "h200"], 2, "Missing option '--tp'."),
    ],
)
def test_import_wants_a_gpu_and_tp(run, config, args, code, first):
    found, out, err = run("specs", "import", str(config), *args)
    assert (found, out) == (code, "")
    assert err.splitlines()[0].startswith(first)


def test_import_refuses_a_spec(run, glm):
    code, _, err = run("specs", "import", glm, "--gpu", "h200", "--tp", "8")
    assert (code, err.splitlines()[0]) == (2, f"{glm}: is a spec already")


def test_import_refuses_a_field_that_may_change_the_cache(run, config):
    config.write_text(json.dumps({**CONFIG, "kv_something_new": 4}))
    assert run("specs", "import", str(config), "--gpu", "h200", "--tp", "8")[0] == 3


def test_import_names_the_config_whose_text_yaml_cannot_hold(run, config):
    config.write_text(json.dumps({**CONFIG, "model_type": "\ud800x"}))
    code, _, err = run("specs", "import", str(config), "--gpu", "h200", "--tp", "8")
    assert code == 2
    assert err.startswith(f"{config}: a text in it cannot be written as YAML")


def test_schema_is_written_as_json(run, tmp_path):
    target = tmp_path / "schema.json"
    assert run("specs", "schema", "-o", str(target)) == (0, "", "")
    assert json.loads(target.read_text())["$schema"] == "https://json-schema.org/draft/2020-12/schema"
