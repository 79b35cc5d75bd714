"""Drawn and recorded traces, and the profiles they come from."""

import numpy as np
import pytest

from hsplan.errors import InputError
from hsplan.workload.profile import Profile, load_profile, profile_names
from hsplan.workload.recording import load_traces, save_trace
from hsplan.workload.trace import draw

PROFILE = Profile(source="test", static=1.0, slow=0.4, slow_steps=20, mid=0.8, mid_steps=9, white=0.3)


def drawn(seed=0, **changes):
    values = {"context": 300, "top_k": 32, "steps": 20} | changes
    return list(draw(PROFILE, **values, seed=seed))


def test_ids_are_sorted_distinct_and_hold_the_first_and_the_newest_token():
    for ids in drawn():
        assert ids.dtype == np.int32
        assert np.all(np.diff(ids) > 0)
        assert ids[:4].tolist() == [0, 1, 2, 3]
        assert ids[-1] == 299


def test_a_seed_gives_the_same_trace_and_another_seed_another():
    assert np.array_equal(drawn(), drawn())
    assert not np.array_equal(drawn(), drawn(seed=1))


def test_recent_tokens_are_read_more_often_where_the_profile_says_so():
    near = Profile(source="test", static=1.0, white=0.3, recency=3.0, recency_tokens=20)
    recent = sum(int((ids >= 260).sum()) for ids in draw(near, context=300, top_k=32, steps=20, seed=0))
    assert recent > 1.5 * sum(int((ids >= 260).sum()) for ids in drawn())


def test_the_shipped_profiles_are_those_of_the_published_workloads():
    assert profile_names() == ["deepseek-v3.2-low-overlap", "glm-5.1-longbench", "stress"]
    assert load_profile("glm-5.1-longbench").mid == 0.755
    assert all("arXiv" in load_profile(name).source or "paper" in load_profile(name).source for name in profile_names())


@pytest.mark.parametrize(
    ("text", "what"),
    [("static: [1]\nsource: x", "Expected `float`"), ("source: x", "static"), ("static: 1\nsource: x\nslw: 1", "slw")],
)
def test_a_profile_with_wrong_keys_is_refused(tmp_path, text, what):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        load_profile(str(path))


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(InputError, match=r"did you mean glm-5\.1-longbench"):
        load_profile("glm-5-longbench")


def test_a_recorded_trace_comes_back_sorted_distinct_and_without_padding(tmp_path):
    path = tmp_path / "trace.npy"
    np.save(path, np.array([[5, 2, -1, 2], [7, 1, 0, 3]], dtype=np.int64))
    ((first, second),) = load_traces(path)
    assert (first.tolist(), second.tolist()) == ([2, 5], [0, 1, 3, 7])
    save_trace(path, drawn())
    assert np.array_equal(load_traces(path)[0], drawn())


def test_a_dump_of_many_layers_gives_one_trace_a_layer(tmp_path):
    path = tmp_path / "trace.npy"
    np.save(path, np.arange(24, dtype=np.int32).reshape(3, 2, 4))
    first, second = load_traces(path)
    assert [ids.tolist() for ids in first] == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    assert second[0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (np.zeros((2, 2), dtype=np.float32), "holds float32"),
        (np.zeros(4, dtype=np.int32), "holds int32"),
        (np.zeros((0, 4), dtype=np.int32), "holds int32"),
        (np.full((2, 2), 2**21, dtype=np.int32), "2,097,152 is beyond"),
    ],
)
def test_an_array_that_is_no_trace_is_refused(tmp_path, data, what):
    path = tmp_path / "trace.npy"
    np.save(path, data)
    with pytest.raises(InputError, match=what):
        load_traces(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY garbage", b"text"])
def test_a_file_that_is_no_array_is_refused(tmp_path, content):
    path = tmp_path / "trace.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"numpy\.save"):
        load_traces(path)
