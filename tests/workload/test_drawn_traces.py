"""Drawn and recorded traces, and the profiles they come from."""

import itertools

import msgspec
import numpy as np
import pytest

from hsplan.errors import InputError
from hsplan.workload import model
from hsplan.workload.profile import Churn, Profile, load_profile, profile_names
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
    [
        ("static: [1]\nsource: x", "Expected `float`"),
        ("source: x", "static"),
        ("static: 1\nsource: x\nslw: 1", "slw"),
        ("static: 1\nsource: x\nlayers: [{end: 2, whte: 1}]", r"whte.*layers\[0\]"),
        ("static: 1\nsource: x\nlayers: [{white: 1}]", "end"),
        ("static: 1\nsource: x\nlayers: [{end: 0}]", ">= 1"),
        ("static: 1\nsource: x\nlayers: [{end: 4}, {end: 4}]", r"ends of `layers` are \[4, 4\]"),
        ("static: .nan\nsource: x", "static"),
        ("static: .inf\nsource: x", "static"),
        ("static: 1\nsource: x\nlayers: [{end: 2, white: .nan}]", r"layers\[0\].white"),
        ("static: 1\nsource: x\nslow_steps: 0", ">= 0.001 - at `\\$.slow_steps"),
        ("static: 1\nsource: x\nmid_steps: -3", ">= 0.001 - at `\\$.mid_steps"),
        ("static: 1\nsource: x\nrecency_tokens: 0", ">= 0.001 - at `\\$.recency_tokens"),
        ("static: 1\nsource: x\nsinks: -1", ">= 0 - at `\\$.sinks"),
        ("static: 1\nsource: x\nrecent: 0", ">= 1 - at `\\$.recent"),
        ("static: 1\nsource: x\nstatic: 2", "mine.yaml:3: static stands twice"),
        ("- static", "a profile is a mapping"),
        ("\ud800", "cannot be read"),
    ],
)
def test_a_profile_with_wrong_keys_is_refused(tmp_path, text, what):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=what):
        load_profile(str(path))


def test_a_profile_of_another_system_is_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xef\xbb\xbfsource: x\r\nstatic: 1\r\n")
    assert load_profile(str(path)) == Profile(source="x", static=1.0)


def test_what_is_always_read_must_fit_into_the_top_k(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("source: x\nstatic: 1\nsinks: 10\nrecent: 7")
    with pytest.raises(InputError, match="sinks 10 and recent 7 do not fit into top-k 16"):
        model.drawn(str(path), "F", context=100, top_k=16, steps=2, seed=0)
    ((first, _),) = model.drawn(str(path), "F", context=100, top_k=17, steps=2, seed=0).steps
    assert first.tolist() == [*range(10), *range(93, 99)]  # token 99, the newest, is left out


def test_a_range_of_layers_has_the_weights_that_it_gives_and_the_others_of_the_profile():
    mixed = msgspec.structs.replace(PROFILE, layers=(Churn(end=2, white=5.0), Churn(end=7, slow=0.0, mid=0.1)))
    assert [(one.slow, one.mid, one.white) for one in map(mixed.at, (0, 1, 2, 6, 7, 90))] == [
        (0.4, 0.8, 5.0),
        (0.4, 0.8, 5.0),
        (0.0, 0.1, 0.3),
        (0.0, 0.1, 0.3),
        (0.4, 0.8, 0.3),
        (0.4, 0.8, 0.3),
    ]
    assert mixed.at(7) == PROFILE


def overlap(layer, context=68_665):
    """Percent of a top-k set that the next one has too."""
    own = load_profile("deepseek-v3.2-low-overlap").at(layer)
    steps = list(draw(own, context=context, top_k=2048, steps=20, seed=1))
    return 100 * sum(np.intersect1d(*pair).size for pair in itertools.pairwise(steps)) / 19 / 2048


def test_layers_of_the_low_overlap_profile_overlap_as_published():
    # arXiv 2604.22312: 1 to 2 % in layers 0 and 1, where chance alone gives 2,048 of 68,665 tokens, 3 %.
    assert overlap(0) == overlap(1) < 5
    # 35 to 50 % in layers 20 to 60, at the high end.
    assert overlap(20) == overlap(60) == pytest.approx(50, abs=2)


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(InputError, match=r"did you mean glm-5\.1-longbench"):
        load_profile("glm-5-longbench")
