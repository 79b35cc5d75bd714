"""The form of a step and of the stored profiles; tests/truth/test_published_points.py holds what they give."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("step", "tpot_ms", "most", "requests"),
    [
        (StepMs(fixed=10, per_request=2), 20, 100, 5),
        (StepMs(fixed=10, per_request=2), 20, 4, 4),
        (StepMs(fixed=10, per_request=1, per_context_token=0.001), 20, 100, 5),
        (StepMs(fixed=10), 20, 100, 100),
        (StepMs(fixed=21), 20, 100, 0),
        (StepMs(fixed=0, per_request=1e-320), 1e9, 100, 100),
    ],
)
def test_requests_fill_the_time_per_token(step, tpot_ms, most, requests):
    assert step.requests_within(tpot_ms, 1000, most) == requests


@given(
    st.builds(StepMs, fixed=st.floats(0, 100), per_request=st.floats(0, 10), per_context_token=st.floats(0, 0.01)),
    st.floats(0.1, 1000),
    st.integers(1, 10**6),
    st.integers(1, 4096),
)
def test_no_request_more_would_fit_the_time_and_no_fewer_are_given(step, tpot_ms, context, most):
    requests = step.requests_within(tpot_ms, context, most)
    assert requests == 0 or step.at(requests, context) <= tpot_ms * (1 + 1e-9)
    assert requests == most or step.at(requests + 1, context) > tpot_ms * (1 - 1e-9)


def test_a_step_of_no_time_is_refused_and_a_plan_of_no_requests_has_no_tokens_a_second():
    with pytest.raises(InputError, match="--step-ms: a step of no time at all"):
        hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 0})
    with pytest.raises(InputError, match=r"give at least 0\.001"):
        hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 5e-324})  # as good as none: its rates would be infinite
    nothing = hsplan.plan("glm-5.1-fp8", step_ms={"fixed": 0, "per_request": 1}, max_total_tokens=64)
    assert (nothing.launched.capacity.requests, nothing.launched.capacity.tokens_s) == (0, None)


def test_a_plan_says_what_its_step_profile_is_of():
    plan = hsplan.plan(SPEC)
    assert any("step_ms glm-5.1-8xh200: fitted to three throughputs of a paper" in note for note in plan.notes)
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


def notes_of(spec, **overrides):
    return next(note for note in hsplan.plan(spec, **overrides).notes if note.startswith("step_ms"))


def test_a_profile_of_another_deployment_says_in_what_it_differs():
    assert "not of this deployment" not in notes_of(SPEC)
    assert "not of this deployment" not in notes_of("glm-5.1-fp8", step_ms=NAME, dp_attention=8)
    other = notes_of("glm-5.2-nvfp4", gpu="gb300", tp=4, step_ms=NAME, num_speculative_tokens=3)
    assert other.endswith(
        "not of this deployment: model glm-5.1-fp8, here glm-5.2-nvfp4; gpu h200, here gb300; dp_attention 8, here 1; "
        "drafts 0, here 3"
    )
    assert notes_of("glm-5.1-fp8", step_ms=NAME, dp_attention=8, checkpoint="nvfp4").endswith(
        "not of this deployment: model glm-5.1-fp8, here glm-5.1-fp8 in nvfp4"
    )
    assert "engine sglang, here vllm" in notes_of("glm-5.1-fp8", engine="vllm", step_ms=NAME, max_model_len=65_536)


def test_a_number_is_a_step_of_any_requests():
    capacity = hsplan.plan("glm-5.2-fp8", step_ms=12, max_running_requests=3).launched.capacity
    assert (capacity.requests, capacity.step_ms, capacity.tokens_s) == (3, 12.0, 250.0)
    with pytest.raises(InputError, match="a step of no time at all"):
        hsplan.plan("glm-5.1-fp8", step_ms=0)


def test_parts_of_a_step_without_braces_are_told_how_to_be_written():
    with pytest.raises(InputError) as caught:
        hsplan.plan("glm-5.1-fp8", step_ms="fixed: 12, per_request: 0.3")
    assert caught.value.lines()[1] == '  put braces round it: "{fixed: 12, per_request: 0.3}"'


def test_drafts_yield_no_more_tokens_than_steps_as_none_is_taken_to_be_accepted():
    plan = hsplan.plan("glm-5.2-fp8", step_ms=12, max_running_requests=3, num_speculative_tokens=3)
    assert plan.launched.capacity.tokens_s == 250.0
    assert "tokens/s and tpot_ms count one token of a request a step: no draft accepted" in plan.notes


def test_a_time_per_token_that_a_step_meets_to_the_last_digit_is_met():
    # (12.2 − 12) / 0.2 is less than 1 in doubles
    found = hsplan.plan("glm-5.2-fp8", tpot_ms=12.2, step_ms={"fixed": 12, "per_request": 0.2}).launched.capacity
    assert (found.limits.tpot_ms, found.requests, found.fits) == (1, 1, True)
