"""Every formula in the ledger gives the bytes beside it."""

from __future__ import annotations

import re

import pytest

import hsplan

RUNS = [
    ("glm-5.2-nvfp4", {}),
    ("glm-5.2-nvfp4", {"draft_layers": 1, "num_speculative_tokens": 3, "offload": {}, "release": "0.5.23"}),
    ("glm-5.2-fp8", {"kv_cache_dtype": "fp8_e4m3", "offload": {}, "host_to_device_ratio": 5}),
    ("glm-5.2-fp8", {"kv_budget": "30GiB"}),
    ("deepseek-v3.2-fp8", {"gpu": "b200", "dp_attention": 8}),
    ("kimi-k2.5-int4", {}),
    ("glm-5-fp8", {"bytes_per_rank": "89.24GiB"}),
]
# What is stated in words: a constant of logs, the parts of a draft, a backend, an assumption about activations.
IN_WORDS = ("allocator and loading overhead", "draft weights", "attention workspace", "activations")


def value(formula: str) -> int:
    """A formula without its words: numbers, × and +, −, and parentheses that hold numbers."""
    text = re.sub(r"[A-Za-z_][\w'-]*", " ", formula.replace(",", "").replace("×", "*").replace("−", "-"))
    text = re.sub(r"[^0-9()+*\- ]", " ", text)
    text = re.sub(r"(?<=[0-9)])\s+(?=[0-9(])", "+", text)
    assert re.fullmatch(r"[0-9()+*\- ]+", text), text
    return int(eval(text))  # noqa: S307 - digits and operators only


@pytest.mark.parametrize(("spec", "flags"), RUNS, ids=str)
def test_a_formula_of_the_ledger_gives_its_bytes(spec, flags):
    for name, scenario in hsplan.plan(spec, **flags).to_dict()["scenarios"].items():
        for line in scenario["ledger"] or []:
            if line["name"] in IN_WORDS:
                continue
            assert value(line["formula"]) == line["bytes"], (name, line)
