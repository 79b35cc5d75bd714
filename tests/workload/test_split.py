"""The best sizes under one total: by hand, and against trying all of them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hsplan.workload.split import BestSplit


def test_a_curve_that_gains_nothing_at_first_still_gets_its_pages():
    # One page at a time, the first group always looks better; both pages there save 2, in the second 9.
    assert BestSplit([[10, 9, 8], [20, 20, 11]], [1, 1], 2).pages(2) == [0, 2]


def test_a_group_of_many_layers_pays_for_each_of_them():
    # A page of the three layers of the first group costs what three of the second do.
    best = BestSplit([[30, 20], [12, 9, 6, 3]], [3, 1], 4)
    assert best.pages(2) == [0, 2]
    assert best.pages(3) == [1, 0]
    assert best.pages(4) == [1, 1]


def test_pages_that_save_nothing_are_not_given():
    assert BestSplit([[5, 5, 5], [7, 2]], [1, 1], 9).pages(9) == [0, 1]


curves = st.lists(st.integers(0, 30), min_size=1, max_size=6).map(lambda values: sorted(values, reverse=True))
groups = st.lists(st.tuples(curves, st.integers(1, 4)), min_size=1, max_size=4)


@given(groups, st.integers(0, 20))
def test_no_other_sizes_within_the_total_miss_less(groups, total):
    misses, layers = [curve for curve, _ in groups], [count for _, count in groups]

    def taken(pages):
        return sum(count * own for count, own in zip(layers, pages, strict=True))

    def missed(pages):
        return sum(curve[own] for curve, own in zip(misses, pages, strict=True))

    every = itertools.product(*(range(len(curve)) for curve in misses))
    found = BestSplit(misses, layers, 20).pages(total)
    assert taken(found) <= total
    assert missed(found) == min(missed(pages) for pages in every if taken(pages) <= total)
