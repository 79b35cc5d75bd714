"""Swap-in on drawn inputs that no caller should give, against the reference at each step."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = ((4, 4, 24), (2, 5, 24), (8, 12, 24), (1, 9, 40), (4, 8, 6))  # top-k, slots, tokens


@dataclass
class Step:
    now: int
    ids: list
    rows: list
    lengths: list
    real: int


@st.composite
def runs(draw):
    """Sizes, host rows with gaps, and a few steps."""
    top_k, slots, tokens = draw(st.sampled_from(SIZES))
    requests, batch = 3, draw(st.integers(1, 3))
    pool = requests * tokens
    host_rows = torch.tensor(draw(st.permutations(range(pool)))).view(requests, tokens)
    for gap in draw(st.lists(st.integers(0, pool - 1), max_size=8)):
        host_rows.view(-1)[gap] = draw(st.sampled_from([-1, -7, 2**40, -(2**63)]))
    # Sampled, not from intervals, which are drawn near their ends: most ids shall be tokens, most requests long.
    token = st.sampled_from([*range(-5, tokens + 5), -(2**31), 2**31 - 1, 2**16])
    length = st.sampled_from([*[tokens] * 8, -1, 0, 1, top_k, slots, slots + 1, slots + 2, tokens + 3, 2**31 - 1])
    jump = st.sampled_from([1, 1, 1, 2, 3, 100, 255, 256, 257, 5000, 2**24])
    real = st.sampled_from([batch, batch, batch, batch + 1, batch - 1, 0, -1])
    steps, now = [], -1
    for _ in range(draw(st.integers(3, 5))):
        now += draw(jump)
        ids = draw(st.lists(st.lists(token, min_size=top_k, max_size=top_k), min_size=batch, max_size=batch))
        lengths = draw(st.lists(length, min_size=batch, max_size=batch))
        rows = draw(st.permutations(range(requests)))[:batch]
        steps.append(Step(now, ids, rows, lengths, draw(real)))
    return top_k, slots, host_rows, draw(st.integers(pool - 9, pool)), draw(st.booleans()), steps


@settings(max_examples=20)
@given(run=runs())
def test_drawn_steps_equal_the_reference(pair, run):
    top_k, slots, host_rows, host_limit, empty, steps = run
    requests = pair(
        slots=slots, top_k=top_k, page_tokens=3, row_bytes=16, batch=len(steps[0].rows),
        host_rows=host_rows, host_limit=host_limit, empty=empty,
    )  # fmt: skip
    for step in steps:
        requests.step(step.ids, rows=step.rows, lengths=step.lengths, real=step.real, now=step.now)
