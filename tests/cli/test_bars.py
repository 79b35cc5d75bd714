"""Bars as text, by hand; and what becomes of them where a stream takes ASCII only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsplan.cli.bars import bars
from hsplan.cli.output import ASCII


def test_bars_are_drawn_to_an_eighth_of_a_block_and_labels_stand_in_one_column():
    drawn = bars("tokens/s", ["none", "4,096 (best)"], [250.0, 800.0]).splitlines()
    assert drawn == [
        "tokens/s",
        "none         " + "█" * 15 + "▋ 250",  # 50 × 250 / 800 = 15.625 blocks
        "4,096 (best) " + "█" * 50 + " 800",
    ]


def test_nothing_has_no_bar():
    assert bars("requests", ["a", "b"], [0.0, 0.0]).splitlines()[1:] == ["a  0", "b  0"]


def test_in_ascii_a_block_is_a_hash():
    assert bars("t", ["a", "b"], [1.0, 3.0]).translate(ASCII).splitlines()[1:] == [
        "a " + "#" * 16 + " 1",
        "b " + "#" * 50 + " 3",
    ]


@pytest.mark.parametrize("label", ["x", "x" * 40])
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=10))
def test_no_line_is_wider_than_the_output(label, values):
    assert all(len(line) <= 100 for line in bars("title", [label] * len(values), values).splitlines())
