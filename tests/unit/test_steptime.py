"""The form of a step and of the stored profiles; tests/truth/test_published_points.py holds what they give."""

from pathlib import Path

import pytest

import hsplan
from hsplan.errors import InputError
from hsplan.steptime import StepMs, step_profile, step_profiles
from hsplan.tuning import tuned

NAME = "glm-5.1-8xh200"
SPEC = Path(__file__).resolve().parents[2] / "benchmarks/data/glm-5.1-8xh200.yaml"


def test_a_step_is_its_three_parts():
    step = StepMs(fixed=10, per_request=2, per_context_token=0.0001)
    assert step.at(0, 4096) == 10
    assert step.at(3, 20_000) == pytest.approx(10 + 3 * (2 + 2))


def test_a_step_of_no_time_is_refused_and_a_plan_of_no_requests_has_no_tokens_a_second():
    with pytest.raises(InputError, match="--step-ms: a step of no time at all"):
        hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 0})
    with pytest.raises(InputError, match=r"give at least 0\.001"):
        hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 5e-324})  # as good as none: its rates would be infinite
    nothing = hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 0, "per_request": 1}, max_total_tokens=64)
    assert (nothing.launched.capacity.requests, nothing.launched.capacity.tokens_s) == (0, None)


def test_a_plan_says_what_its_step_profile_is_of():
    plan = hsplan.plan(SPEC)
    assert any("step_ms glm-5.1-8xh200: fitted to three published" in note for note in plan.notes)
    assert not any("step_ms" in note for note in hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 12}).notes)
    assert hsplan.plan("glm-5.1-fp8").launched.capacity.tokens_s is None


def test_a_profile_says_where_its_points_and_its_assumptions_come_from():
    assert step_profiles() == (NAME,)
    profile = step_profile(NAME)
    assert "2608.07009" in profile.source
    assert len(profile.points) == 3
    assert all(point.why for point in profile.points)
    assert any("mem_fraction 0.85" in what for what in profile.assumptions)


def test_an_unknown_step_profile_names_the_nearest():
    with pytest.raises(InputError, match=r"--step-ms: unknown step profile 'glm-5.1'\n  did you mean glm-5.1-8xh200\?"):
        hsplan.plan("glm-5.1-fp8", step_ms="glm-5.1")


def test_the_published_deployment_is_advised_to_offload_at_32k_and_not_at_4k():
    long = tuned(hsplan.plan(SPEC, tpot_ms=200))
    assert long.pays
    assert long.best.tokens_s > 2 * long.without.tokens_s
    short = tuned(hsplan.plan(SPEC, context=4096, tpot_ms=100))
    assert not short.pays
    assert short.without.binding == "tpot_ms"
