"""Verdicts at their edges, and the stable form of a measurement."""

import pytest
from readings import INTERPRETER, measurement

from hsplan.measurement import Check, LineCheck, Percentiles, Run, Timing, TokenCheck

MIB = 2**20


def line(predicted, measured):
    return LineCheck(name="KV rows", place="gpu", predicted_bytes=predicted, measured_bytes=measured)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("predicted", "off", "passed"),
    [
        (10 * MIB, 2 * MIB, True),
        (10 * MIB, 2 * MIB + 1, False),
        (4_000_000_000, 4_000_000, True),  # 0.1 %
        (4_000_000_000, 4_000_001, False),
        (2_097_152_000, 2 * MIB, True),  # where both allow as much
        (2_097_152_000, 2 * MIB + 1, False),
    ],
)
def test_a_line_may_be_off_by_2_mib_or_a_thousandth(predicted, off, passed, sign):
    assert line(predicted, predicted + sign * off).passed is passed


def test_a_line_of_nothing_may_take_2_mib():
    assert line(0, 2 * MIB).passed
    assert not line(0, 2 * MIB + 1).passed


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("off", "passed"), [(0, True), (700, True), (701, False)])
def test_tokens_may_be_off_by_a_thousandth(off, passed, sign):
    check = TokenCheck(
        scenario="elided", kv_budget_bytes=1, predicted_tokens=700_000, confirmed_tokens=700_000 + sign * off
    )
    assert check.passed is passed


def timing(gb_s, ceiling_gb_s):
    times = Percentiles(1, 2, 3)
    return Timing(mode="graph", steps=1, step_us=times, call_us=times, gb_s=gb_s, ceiling_gb_s=ceiling_gb_s)


def test_the_share_of_a_ceiling_is_a_ratio_and_of_none_zero():
    assert timing(30.0, 40.0).share == 0.75
    assert timing(30.0, 0.0).share == 0.0


RUN = Run(
    steps=6,
    requests=2,
    context=256,
    layers=4,
    owners=3,
    row_bytes=656,
    top_k=16,
    slots=32,
    host_bytes=1_343_488,
    rows_checked=768,
    rows_loaded=249,
    miss_share=0.25,
)


def found(*verdicts):
    checks = tuple(Check(name=str(i), claim="", passed=passed, detail="") for i, passed in enumerate(verdicts))
    return measurement(machine=INTERPRETER, run=RUN, checks=checks)


def test_a_measurement_passes_when_every_claim_holds():
    assert found(True, True).passed
    assert not found(True, False).passed


def test_plain_data_has_these_keys_in_this_order():
    data = found(True).to_dict()
    assert list(data) == [
        "schema",
        "hsplan_version",
        "passed",
        "name",
        "scenario",
        "injected",
        "caught",
        "machine",
        "scaled",
        "link",
        "lines",
        "tokens",
        "run",
        "timings",
        "checks",
        "not_checked",
    ]
    assert (data["schema"], data["passed"]) == ("hsplan.measurement/1", True)
    assert data["checks"] == ({"name": "0", "claim": "", "passed": True, "detail": ""},)
    assert data["run"]["miss_share"] == 0.25
