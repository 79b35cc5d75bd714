"""Top-k traces: what every step names, what a seed fixes, and the miss rate that was published."""

import itertools

import pytest
import torch

from hsplan.gpu.expected import ExpectedOrder
from hsplan.gpu.trace import GLM_51_LONGBENCH, Trace

GROUPS, REQUESTS, CONTEXT, TOP_K = 2, 3, 200, 16
LENS = torch.tensor([200, 150, 40], dtype=torch.int32)


def trace(seed=7):
    return Trace(GLM_51_LONGBENCH, GROUPS, REQUESTS, CONTEXT, TOP_K, "cpu", seed)


@pytest.fixture
def steps():
    """The ids of 12 steps, in each of which every request grows by a token; the first reaches its context."""
    found = trace()
    return [(LENS - 11 + step, found.step(LENS - 11 + step)) for step in range(12)]


def test_every_step_names_as_many_ids_for_each_layer_and_request(steps):
    assert all((ids.shape, ids.dtype) == ((2, 3, 16), torch.int32) for _, ids in steps)


def test_ids_are_distinct(steps):
    assert all(len(set(one)) == 16 for _, ids in steps for one in ids.view(-1, TOP_K).tolist())


def test_ids_lie_below_the_length_of_their_request(steps):
    for lens, ids in steps:
        assert int(ids.min()) >= 0
        assert bool((ids < lens[:, None]).all())


def test_the_first_four_tokens_and_the_newest_two_are_always_named(steps):
    for lens, ids in steps:
        for layer in ids.tolist():
            for length, one in zip(lens.tolist(), layer, strict=True):
                assert {0, 1, 2, 3, length - 2, length - 1} <= set(one)


def test_steps_differ_and_share_most_ids_with_the_step_before(steps):
    for (_, before), (_, after) in itertools.pairwise(steps):
        shared = len(set(before[0, 0].tolist()) & set(after[0, 0].tolist()))
        assert 8 <= shared < 16


def test_the_same_seed_gives_the_same_trace():
    one, other = trace(), trace()
    assert all(torch.equal(one.step(LENS), other.step(LENS)) for _ in range(3))


def test_another_seed_gives_another_trace():
    assert not torch.equal(trace(7).step(LENS), trace(8).step(LENS))


def test_layers_and_requests_have_traces_of_their_own():
    ids = trace().step(torch.full((3,), CONTEXT, dtype=torch.int32))
    assert len({frozenset(one) for one in ids.view(-1, TOP_K).tolist()}) == 6


def test_a_top_k_of_half_the_slots_misses_as_often_as_was_published():
    top_k, slots, context, steps = 2048, 4096, 32_768, 300
    scores = Trace(GLM_51_LONGBENCH, 1, 1, context, top_k, "cpu", 1)
    order = ExpectedOrder(1, 1, slots, context, "cpu")
    misses = []
    for step in range(1, steps + 1):
        lens = torch.tensor([context - steps + step], dtype=torch.int32)
        misses.append(int(order.step(scores.step(lens), lens, step)))
    share = sum(misses[150:]) / (150 * top_k)
    assert 0.124 <= share <= 0.144  # 13.4 % in arXiv 2608.07009, at 4096 slots
