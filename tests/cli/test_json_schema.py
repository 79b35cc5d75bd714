"""The JSON Schema of a spec: takes what hsplan takes, refuses what it refuses."""

import jsonschema
import pytest
import yaml

from hsplan.spec.json_schema import spec_schema
from hsplan.spec.source import shipped_folder

SHIPPED = sorted(shipped_folder().glob("*.yaml"))
SMALL = {"model": {"architectures": ["GlmMoeDsaForCausalLM"]}, "deployment": {"gpu": "h200", "tp": 8}}


@pytest.fixture(scope="module")
def validator():
    schema = spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_there_are_shipped_specs():
    assert SHIPPED


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_spec(validator, path):
    validator.validate(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": "glm-5.2-nvfp4"},
        {"deployment": {"gpu": "h200", "engine": "sglang@0.5.23"}},
        {"deployment": {"gpu": "h200", "kv_budget": "134.127GiB"}},
        {"deployment": {"gpu": "h200", "kv_budget": 144017769627, "layer_range": [0, 15], "mem_fraction": 0.9}},
        {"weights": {"bytes_per_rank": "106.76 GiB"}},
        {"weights": {"checkpoint": "nvfp4"}},
        {"offload": None},
        {"offload": {"host_memory": "2TiB", "host_pool": "384gib", "host_to_device_ratio": 2.5}},
        {"offload": {"host_memory": "here"}},
        {"workload": {"context": 131072, "tpot_ms": None}},
    ],
)
def test_the_schema_takes_what_hsplan_takes(validator, change):
    validator.validate({**SMALL, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"model": 5},
        {"deployment": {"tp": 8}},
        {"deployment": {"gpu": "h200", "tpp": 8}},
        {"deployment": {"gpu": "h200", "kv_budget": "134.127 apples"}},
        {"deployment": {"gpu": "h200", "kv_budget": 0}},
        {"weights": {"checkpoint": "fp5"}},
        {"offload": {"host_to_device_ratio": 0.5}},
        {"offload": {"host_pool": "here"}},
        {"something": 1},
    ],
)
def test_the_schema_refuses_what_hsplan_refuses(validator, change):
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**SMALL, **change})
