"""Steps that are read at once: the distinct ids of a call, and how many they are with drafts."""

import msgspec
import numpy as np
import pytest

from hsplan.workload.calls import in_calls
from hsplan.workload.profile import load_profile
from hsplan.workload.trace import draw


def test_a_call_reads_the_distinct_ids_of_its_steps_and_a_rest_is_left_out():
    steps = [np.array(ids, dtype=np.int32) for ids in ([1, 5], [1, 2], [7, 9], [2, 9], [3, 4])]
    calls = in_calls(steps, 2)
    assert [ids.tolist() for ids in calls] == [[1, 2, 5], [2, 7, 9]]
    assert {ids.dtype for ids in calls} == {np.dtype(np.int32)}
    assert [ids.tolist() for ids in in_calls(steps, 1)] == [[1, 5], [1, 2], [7, 9], [2, 9], [3, 4]]
    assert in_calls(steps, 6) == []


# Calibration of the profile at 32,768 tokens: how many times top-k 4 steps read, by the weight of white noise and the
# scale of the other two. Written down with three digits for other seeds, of which two differ by up to 0.015.
@pytest.mark.parametrize(
    ("white", "scale", "union"),
    [(0.02, 0.1, 1.08), (0.05, 0.3, 1.22), (0.0, 1, 1.53), (0.264, 1, 1.70), (0.5, 1, 2.00), (0.8, 1, 2.38),
     (1.2, 1, 2.78)],
)  # fmt: skip
def test_four_steps_read_as_many_tokens_as_in_the_calibration(white, scale, union):
    profile = load_profile("glm-5.1-longbench")
    own = msgspec.structs.replace(profile, white=white, slow=scale * profile.slow, mid=scale * profile.mid)
    calls = in_calls(list(draw(own, context=32_768, top_k=2048, steps=40, seed=1)), 4)
    assert sum(ids.size for ids in calls) / len(calls) / 2048 == pytest.approx(union, abs=0.02)
