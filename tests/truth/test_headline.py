"""The A/B run of pull request #30531, by the commands of the README."""

from __future__ import annotations

import hsplan


def test_0_5_17_gives_2574848_tokens_and_elision_would_give_16_6_percent_more():
    plan = hsplan.plan(
        "glm-5.2-nvfp4", gpu="gb300", tp=4, draft_layers=1, engine="sglang@0.5.17", kv_budget="134.127GiB"
    ).to_dict()
    assert plan["as_launched"] == "baseline"
    baseline, elided = plan["scenarios"]["baseline"], plan["scenarios"]["elided"]
    assert baseline["bytes_per_token"]["charged"] == 55_932
    assert baseline["max_total_num_tokens"] == 2_574_848
    assert elided["bytes_per_token"]["charged"] == 48_311
    assert elided["max_total_num_tokens"] == 3_003_136
    low, high = elided["max_total_num_tokens_range"]
    assert low <= 3_002_752 <= high
    assert high - low <= 0.001 * 3_003_136
    assert elided["engine_applies"] is False
    assert round(100 * (3_003_136 / 2_574_848 - 1), 1) == 16.6


def test_0_5_23_charges_48408_bytes_and_gives_2996736_tokens():
    plan = hsplan.plan(
        "glm-5.2-nvfp4", gpu="gb300", tp=4, draft_layers=1, engine="sglang@0.5.23", kv_budget="135.104GiB"
    ).to_dict()
    assert plan["as_launched"] == "elided"
    assert plan["scenarios"]["elided"]["bytes_per_token"]["charged"] == 48_408
    assert plan["scenarios"]["elided"]["max_total_num_tokens"] == 2_996_736
