"""Which layers a trace stands for: owners with their followers, groups of equal churn, and what a recording says."""

import msgspec

from hsplan.workload.layers import Layers, by_churn, of_recording
from hsplan.workload.profile import Churn, Profile

ALIKE = Profile(source="test", static=1.0, white=0.3)
MIXED = msgspec.structs.replace(ALIKE, layers=(Churn(end=2, white=5.0), Churn(end=8)))
GLM_5_2 = "FFF" + "SSSF" * 18 + "SSS"  # 21 of 78 layers compute top-k


def test_layers_of_equal_churn_have_one_trace_for_owners_and_followers():
    ((own, layers),) = by_churn(GLM_5_2, ALIKE)
    assert own == ALIKE
    assert (layers.ids[:5], len(layers.ids), layers.count) == ((0, 1, 2, 6, 10), 21, 78)


def test_a_follower_belongs_to_the_group_of_its_owner_wherever_it_stands():
    # Layer 2 follows layer 1, which is below the end of the first range.
    assert by_churn("FFSFSW", MIXED) == [(MIXED.at(0), Layers((0, 1), 3)), (ALIKE, Layers((3,), 2))]


def test_ranges_of_equal_weights_are_one_group():
    same = msgspec.structs.replace(ALIKE, layers=(Churn(end=1, white=5.0), Churn(end=2), Churn(end=3, white=5.0)))
    assert [layers.ids for _, layers in by_churn("FFFF", same)] == [(0, 2), (1, 3)]


def test_layers_that_compute_no_top_k_and_read_none_do_not_count():
    assert by_churn("DDWHFF", ALIKE) == [(ALIKE, Layers((4, 5), 2))]


def test_one_trace_stands_for_the_model():
    assert of_recording("FFSW", 1, None) == [Layers((0, 1), 3)]


def test_as_many_traces_as_owners_count_with_their_followers():
    assert of_recording("FFSSFW", 3, None) == [Layers((0,), 1), Layers((1,), 3), Layers((4,), 1)]


def test_as_many_traces_as_readers_count_once_each():
    assert of_recording("FFSSFW", 5, None) == [Layers((i,), 1) for i in (0, 1, 2, 3, 4)]


def test_a_recorded_follower_counts_for_itself_and_not_with_its_owner():
    assert of_recording("FFSSFW", 2, (1, 3)) == [Layers((1,), 2), Layers((3,), 1)]


def test_traces_that_fit_no_layers_count_once_each():
    assert of_recording("FFSSFW", 2, None) == [Layers((0,), 1), Layers((1,), 1)]
    assert of_recording("FFSSFW", 2, (1, 9)) == [Layers((1,), 1), Layers((9,), 1)]
