"""What every engine owes the planner: all questions answered, ints where ints are meant, sums that add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from configs import DEEPSEEK_V3, DEEPSEEK_V3_2, FP8, GLM_5_2, INT4, KIMI_K2_5, NVFP4, spec_of

import hsplan
from hsplan import UnsupportedError
from hsplan.cli import main
from hsplan.engines import ENGINES, PRESETS, SCENARIOS, Engine
from hsplan.engines.base import Engine as Questions

MODELS = {
    "glm-5.2-fp8": ({**GLM_5_2, "quantization_config": FP8}, {"gpu": "h200", "tp": 8}),
    "glm-5.2-nvfp4": ({**GLM_5_2, "quantization_config": NVFP4}, {"gpu": "gb300", "tp": 4, "draft_layers": 1}),
    "deepseek-v3.2": ({**DEEPSEEK_V3_2, "quantization_config": FP8}, {"gpu": "b200", "tp": 8}),
    "deepseek-v3": ({**DEEPSEEK_V3, "quantization_config": FP8}, {"gpu": "h200", "tp": 16, "nodes": 2}),
    "kimi-k2.5": ({**KIMI_K2_5, "quantization_config": INT4}, {"gpu": "h200", "tp": 8, "pp": 2, "nodes": 2}),
    "given budget": (GLM_5_2, {"gpu": "h200", "tp": 8, "kv_budget": "30GiB"}),
}
CASES = [(engine, model) for engine in ENGINES for model in MODELS]
QUESTIONS = [name for name in vars(Questions) if not name.startswith("_")]


SPECS = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "model_specs").glob("*.yaml"))
SHIPPED = [(engine, spec) for engine in ENGINES for spec in SPECS]
# Why an engine refuses a shipped spec; all others are priced.
REFUSED = {
    ("sglang", "longcat-2.0-fp8"): "no SGLang release up to 0.5.23 registers LongcatCausalLM",
    ("sglang", "longcat-flash-lite-sparse-bf16"): "no SGLang release up to 0.5.23 registers LongcatCausalLM",
    ("vllm", "longcat-2.0-fp8"): "hsplan does not know how vLLM sizes",
    ("vllm", "longcat-flash-lite-sparse-bf16"): "hsplan does not know how vLLM sizes",
}


def plan_of(engine: str, model: str, **overrides):
    config, deployment = MODELS[model]
    return hsplan.plan(spec_of(config, engine=engine, max_running_requests=128, **deployment), **overrides)


@pytest.mark.parametrize("engine", [*ENGINES.values(), *PRESETS.values()], ids=lambda engine: engine.name)
def test_an_engine_answers_every_question(engine: Engine):
    assert QUESTIONS == ["resolve", "as_launched", "applies", "layout", "budget", "pools", "flags"]
    assert engine.name
    assert all(callable(getattr(engine, question)) for question in QUESTIONS)


@pytest.mark.parametrize(("engine", "model"), CASES)
def test_every_scenario_is_priced_or_has_a_reason_and_the_one_launched_is_run(engine: str, model: str):
    plan = plan_of(engine, model)
    assert list(plan.scenarios) == [scenario.name for scenario in SCENARIOS]
    for entry in plan.scenarios.values():
        assert entry.available or entry.reason
    assert plan.launched.available
    assert plan.launched.engine_applies


@pytest.mark.parametrize(("engine", "model"), CASES)
def test_bytes_tokens_and_counts_are_ints(engine: str, model: str):
    def check(value: object, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                check(inner, name)
        elif isinstance(value, list):
            for inner in value:
                check(inner, key)
        elif isinstance(value, float):
            assert re.search("concurrency|ratio|fraction|bytes_per_(full|swa)_token|_ms$", key), key

    check(plan_of(engine, model).to_dict()["scenarios"], "")


@pytest.mark.parametrize(("engine", "spec"), SHIPPED)
def test_every_engine_prices_a_shipped_spec_or_refuses_it_with_a_reason(engine: str, spec: str, capsys):
    code = main(["estimate", spec, "--engine", engine, "--json"])
    out, err = capsys.readouterr()
    if (engine, spec) in REFUSED:
        assert code == 3
        assert REFUSED[engine, spec] in err
        return
    assert code in (0, 1), err
    plan = json.loads(out)
    launched = plan["scenarios"][plan["as_launched"]]
    assert launched["available"]
    assert launched["engine_applies"]
    assert all(scenario["available"] or scenario["reason"] for scenario in plan["scenarios"].values())
    for scenario in plan["scenarios"].values():
        if scenario["available"]:
            taken = sum(line["bytes"] for line in scenario["ledger"] if line["place"] == "gpu")
            assert taken + scenario["headroom_bytes"] == plan["gpu"]["reported_bytes"]


@pytest.mark.parametrize(("engine", "model"), CASES)
def test_ledger_and_headroom_add_up_to_the_reported_memory(engine: str, model: str):
    data = plan_of(engine, model).to_dict()
    for name, scenario in data["scenarios"].items():
        if scenario["available"]:
            taken = sum(line["bytes"] for line in scenario["ledger"] if line["place"] == "gpu")
            assert taken + scenario["headroom_bytes"] == data["gpu"]["reported_bytes"], name


@pytest.mark.parametrize(("engine", "model"), CASES)
def test_offload_asks_for_host_memory_and_nothing_else_does(engine: str, model: str):
    for name, scenario in plan_of(engine, model).to_dict()["scenarios"].items():
        if scenario["available"]:
            assert (scenario["host_pool_bytes"] > 0) == ("offload" in name)


@pytest.mark.parametrize(("engine", "model"), CASES)
def test_every_formula_is_written_out_with_a_source(engine: str, model: str):
    launched = plan_of(engine, model).launched
    steps = [
        s for part in (launched.layout, launched.budget, launched.pools, launched.capacity) for s in part.explain()
    ]
    assert len(steps) >= 4
    assert all(step.name and step.formula and step.source for step in steps)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_release_is_refused_and_the_known_ones_are_named(engine: str):
    with pytest.raises(UnsupportedError) as caught:
        plan_of(engine, "given budget", release="9.9.9")
    lines = "\n".join(caught.value.lines())
    latest = plan_of(engine, "given budget").launch.release.name
    assert "is not a release hsplan knows" in lines
    assert f"nearest: {latest}" in lines
    assert lines.count(", ") >= 5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_newer_and_an_older_build_than_the_known_ones_are_refused(engine: str):
    for day in ("main-2024-01-01", "main-2031-01-01"):
        with pytest.raises(UnsupportedError, match="than"):
            plan_of(engine, "given budget", release=day)


def test_an_unknown_preset_is_refused_and_the_known_one_named():
    with pytest.raises(UnsupportedError) as caught:
        plan_of("vllm", "given budget", preset="kvfit")
    assert caught.value.lines() == ["--preset: unknown preset 'kvfit'", "  known: vllm-calculator"]


def test_two_engines_price_the_same_rows_from_the_same_budget():
    """78 × 1,152 + 21 × 132 B a token on both, so 30 GiB hold the same whole pages of 64 tokens."""
    tokens = {}
    for engine in ENGINES:
        plan = plan_of(engine, "given budget", max_model_len=65_536)
        assert plan.as_launched == "elided"
        pools = plan.launched.pools
        tokens[engine] = pools.logical_tokens
        assert plan.launched.layout.rates.charged == 92_628
    assert tokens == {"sglang": 347_712, "vllm": 347_712}
