"""GLM-5.1 on 8 × H200: what the stored step profile gives against every published throughput of that deployment."""

from pathlib import Path

import pytest

import hsplan
from hsplan.steptime import step_profile

NAME = "glm-5.1-8xh200"
SPEC = Path(__file__).resolve().parents[2] / "benchmarks/data/glm-5.1-8xh200.yaml"
RANKS = 8
# (context, requests a rank, tokens/s of all ranks) with offload: arXiv 2608.07009, quoted through a secondary note
PAPER = [(4096, 32, 2280), (40_960, 31, 1919), (160_000, 8, 680)]
# the same at 32K as the chart of the blog with the launch command has it, about
CHART = [(40_960, 31, 2640)]


def planned(context, **overrides):
    return hsplan.plan(SPEC, context=context, **overrides).launched.capacity


@pytest.mark.parametrize(
    ("context", "requests", "published"), [(4096, 32, 2288), (40_960, 3, 624), (160_000, 1, 232)], ids=str
)
def test_the_published_points_without_offload_are_met(context, requests, published):
    # arXiv 2608.07009; a rank holds 162,240 tokens, and 256 requests are 32 a rank.
    capacity = planned(context, offload=None)
    assert capacity.requests == requests
    assert capacity.tokens_s * RANKS == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(("context", "requests", "published"), PAPER, ids=str)
def test_the_published_points_with_offload_are_met_within_30_percent_and_were_not_used(context, requests, published):
    capacity = planned(context)
    assert capacity.requests == requests
    assert capacity.tokens_s * RANKS == pytest.approx(published, rel=0.30)
    assert published not in [point.tokens_s for point in step_profile(NAME).points]


def test_by_the_chart_of_the_blog_the_plan_is_42_percent_short():
    ((context, requests, charted),) = CHART
    capacity = planned(context)
    assert capacity.requests == requests
    assert capacity.tokens_s * RANKS / charted - 1 == pytest.approx(-0.42, abs=0.005)


@pytest.mark.parametrize(("clients", "published"), [(8, 252.33), (16, 439.91)])
def test_another_users_runs_of_the_same_command_are_met_within_10_percent(clients, published):
    # sglang issue 30985: GLM-5.1-FP8 on 8 × H200 without offload, before its pool is full; not used either.
    capacity = planned(40_960, offload=None, max_running_requests=clients)
    assert (capacity.requests, capacity.binding) == (clients // RANKS, "max_running")
    assert capacity.tokens_s * RANKS == pytest.approx(published, rel=0.10)


@pytest.mark.parametrize("context", [16_384, 32_768, 40_960, 131_072])
def test_below_8_requests_offload_costs_between_0_and_10_percent(context):
    # Of 1 to 7 requests on 8 ranks none has two.
    without, offload = (planned(context, offload=kind, max_running_requests=8) for kind in (None, {}))
    assert (without.requests, offload.requests) == (1, 1)
    assert 0 < 1 - offload.tokens_s / without.tokens_s < 0.10
