"""The workspace of SGLang's attention backends, which must still fit beside the pool."""

from __future__ import annotations

import pytest
from configs import DEEPSEEK_V3, GLM_5_2, MINIMAX_M3, spec_of

import hsplan

MIB = 2**20


def workspace(model=GLM_5_2, **keys):
    plan = hsplan.plan(spec_of(model, **{"kv_budget": "20GiB", "gpu": "b200", **keys})).to_dict()
    lines = {line["name"]: line["bytes"] for line in plan["scenarios"]["baseline"]["ledger"]}
    return lines.get("attention workspace", 0)


@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
@pytest.mark.parametrize(("dcp", "n_bytes"), [(1, 402_653_184), (2, 805_306_368), (8, 3_221_225_472)])
def test_the_workspace_of_trtllm_grows_with_dcp(release, dcp, n_bytes):
    """384 MiB for the queries of each rank of the group."""
    assert workspace(dcp=dcp, release=release) == n_bytes == dcp * 384 * MIB


@pytest.mark.parametrize(
    ("model", "keys", "mib"),
    [
        (GLM_5_2, {"gpu": "h200"}, 0),
        (GLM_5_2, {"gpu": "h200", "attention_backend": "trtllm"}, 384),
        (GLM_5_2, {"gpu": "rtx-pro-6000", "kv_cache_dtype": "fp8_e4m3"}, 384),
        (GLM_5_2, {"gpu": "mi355x"}, 0),
        (DEEPSEEK_V3, {}, 384 + 150),
        (DEEPSEEK_V3, {"dcp": 2}, 384 + 150),
        (DEEPSEEK_V3, {"gpu": "h200"}, 0),
        (DEEPSEEK_V3, {"gpu": "h200", "attention_backend": "flashinfer"}, 384),
        (MINIMAX_M3, {}, 0),
        (MINIMAX_M3, {"kv_cache_dtype": "fp8_e4m3"}, 384 + 512),
        (MINIMAX_M3, {"gpu": "rtx-pro-6000"}, 384),
        (MINIMAX_M3, {"gpu": "mi355x"}, 0),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) and len(value) < 3 else None,
)
def test_other_backends_have_one_workspace_or_none(model, keys, mib):
    assert workspace(model, **keys) == mib * MIB
