"""The eviction rule on whole batches: outcomes written out by hand, and the plain reference beside it, step by step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan.gpu.expected import ExpectedOrder, in_order
from hsplan_kernels import reference
from hsplan_kernels.state import new_plan, new_state

CONTEXT = 40


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


class OneRequest:
    """One layer and one request with hot slots for `slots` of 40 tokens."""

    def __init__(self, slots):
        self.order = ExpectedOrder(1, 1, slots, CONTEXT, "cpu")

    def use(self, now, *ids):
        """Misses of one step."""
        return int(self.order.step(ints(*ids).view(1, 1, -1), ints(CONTEXT), now))

    def differs(self, held):
        """Places in the order that `held`, a dict of token to step of last use, has otherwise; the rest is empty."""
        slots = self.order._keys.shape[-1]
        tokens = [*held, *[-1] * (slots - len(held))]
        steps = [*held.values(), *[-1] * (slots - len(held))]
        return int(self.order.wrong_slots(in_order(ints(*tokens).view(1, 1, -1), ints(*steps).view(1, 1, -1))))


def test_at_first_all_slots_are_empty_and_every_token_is_a_miss():
    request = OneRequest(4)
    assert request.differs({}) == 0
    assert request.use(1, 3, 9, 20) == 3
    assert request.differs({3: 1, 9: 1, 20: 1}) == 0


def test_a_token_that_is_held_is_no_miss_and_gets_the_step():
    request = OneRequest(4)
    request.use(1, 3, 9, 20)
    assert request.use(2, 9, 30) == 1
    assert request.differs({3: 1, 9: 2, 20: 1, 30: 2}) == 0


def test_the_least_recently_used_make_room_and_of_equals_the_smaller_token():
    request = OneRequest(4)
    request.use(1, 3, 9, 20)
    request.use(2, 9, 30)
    assert request.use(3, 5) == 1  # 3 and 20 are oldest: 3 goes
    assert request.differs({20: 1, 9: 2, 30: 2, 5: 3}) == 0
    assert request.use(4, 6, 7) == 2  # 20 goes, then 9
    assert request.differs({30: 2, 5: 3, 6: 4, 7: 4}) == 0


def test_a_token_that_went_is_a_miss_again():
    request = OneRequest(2)
    request.use(1, 3, 9)
    request.use(2, 4)
    assert request.use(3, 3) == 1
    assert request.differs({4: 2, 3: 3}) == 0


def test_tokens_used_now_are_never_the_ones_that_go():
    request = OneRequest(4)
    request.use(1, 3, 9, 20, 21)
    assert request.use(2, 3, 9, 35, 36) == 2
    assert request.differs({3: 2, 9: 2, 35: 2, 36: 2}) == 0


def test_the_newest_token_takes_no_slot_and_is_no_miss():
    request = OneRequest(4)
    assert request.use(1, 3, 39) == 1
    assert request.differs({3: 1}) == 0


def test_a_token_that_is_no_longer_the_newest_is_a_miss():
    order = ExpectedOrder(1, 1, 4, CONTEXT, "cpu")
    assert int(order.step(ints(3, 30).view(1, 1, -1), ints(31), 1)) == 1
    assert int(order.step(ints(3, 30).view(1, 1, -1), ints(32), 2)) == 1


def test_layers_and_requests_are_counted_each_for_itself():
    order = ExpectedOrder(2, 2, 4, CONTEXT, "cpu")
    first = ints(1, 2, 3, 4, 1, 2, 3, 4).view(2, 2, 2)
    second = ints(1, 2, 5, 6, 1, 7, 8, 4).view(2, 2, 2)
    assert order.step(first, ints(CONTEXT, 30), 1).tolist() == [[2, 2], [2, 2]]
    assert order.step(second, ints(CONTEXT, 30), 2).tolist() == [[0, 2], [1, 1]]


def test_slots_may_be_told_in_any_order():
    request = OneRequest(4)
    request.use(1, 3, 9, 20)
    assert request.differs({20: 1, 3: 1, 9: 1}) == 0


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        ({3: 2, 9: 1, 20: 2}, 2),  # the steps of 3 and 9 are swapped
        ({3: 1, 9: 2}, 3),  # 20 is missing: the places behind it are one off
        ({3: 1, 9: 2, 21: 2}, 1),  # 21 for 20
        ({3: 0, 9: 2, 20: 2}, 1),  # one step older
        ({}, 3),
    ],
)
def test_places_in_the_order_that_differ_are_counted(held, wrong):
    request = OneRequest(4)
    request.use(1, 3, 9)
    request.use(2, 9, 20)
    assert request.differs({3: 1, 9: 2, 20: 2}) == 0
    assert request.differs(held) == wrong


def test_a_token_too_many_is_a_wrong_place():
    request = OneRequest(4)
    request.use(1, 3, 9)
    assert request.differs({3: 1, 9: 1, 2: 1}) == 1


class Reference:
    """The plain reference on requests that start with empty slots and have every token in host memory."""

    def __init__(self, requests, slots, top_k):
        rows = torch.arange(requests * CONTEXT, dtype=torch.int64).view(requests, CONTEXT)
        self.state = new_state(rows, slots=slots, page_tokens=4, host_limit=requests * CONTEXT, device="cpu")
        self.state.slot_tokens.fill_(-1)
        self.state.token_slots.fill_(-1)
        self.plan = new_plan(requests, top_k, "cpu")
        self.requests = requests

    def step(self, ids, lens, now):
        """Misses of each request."""
        rows = torch.arange(self.requests, dtype=torch.int32)
        reference.resolve(self.state, self.plan, ids, rows, lens, ints(self.requests), ints(now), torch.zeros_like(ids))
        return self.plan.counts.tolist()


@st.composite
def decodings(draw):
    """K, B, the lengths of two requests at the first step, and the ids of both at each step: the newest and others."""
    top_k = draw(st.integers(4, 8))
    slots = draw(st.integers(max(top_k, 8), 16))
    steps = draw(st.integers(1, 12))
    starts = draw(st.tuples(*[st.integers(slots + 1, CONTEXT - steps)] * 2))

    def ids(length):
        older = st.lists(st.integers(0, length - 2), min_size=top_k - 1, max_size=top_k - 1, unique=True)
        return older.flatmap(lambda tokens: st.permutations([*tokens, length - 1]))

    return top_k, slots, starts, [[draw(ids(start + step)) for start in starts] for step in range(steps)]


@settings(max_examples=60)
@given(decodings())
def test_the_rule_on_batches_is_the_reference_token_by_token(decoding):
    top_k, slots, starts, steps = decoding
    plain = Reference(2, slots, top_k)
    order = ExpectedOrder(1, 2, slots, CONTEXT, "cpu")
    for done, both in enumerate(steps):
        ids, lens = ints(*both), ints(*(start + done for start in starts))
        missed = order.step(ids[None], lens, done + 1)
        assert missed.tolist() == [plain.step(ids, lens, done + 1)]
        assert int(order.wrong_slots(in_order(plain.state.slot_tokens[None], plain.state.slot_steps[None]))) == 0
