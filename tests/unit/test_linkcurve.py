"""A link measured by `hsplan validate` as an input of a plan, the link shared by GPUs, and what overlap hides."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hsplan
from hsplan.errors import InputError
from hsplan.linkcurve import read_curve
from hsplan.tuning import tuned

RESULT = Path(__file__).resolve().parents[2] / "benchmarks/results/validate-h200-2026-11-29.json"
GIB = 2**30


@pytest.fixture(scope="module")
def measured():
    """The first case of the committed result: an H200, rows of 656 B."""
    return json.loads(RESULT.read_text(encoding="utf-8"))["cases"][0]["measurement"]


@pytest.fixture
def curve_file(tmp_path, measured):
    """A function that writes the measurement, with changes, and gives its path."""

    def write(**changes):
        path = tmp_path / "link.json"
        path.write_text(json.dumps(measured | changes), encoding="utf-8")
        return path

    return write


def gather(gb_s, row_bytes=656, pool_gib=1, rows=4096, **changes):
    rate = {"driver": "gpu", "direction": "h2d", "order": "random", "gb_s": gb_s}
    return rate | {"row_bytes": row_bytes, "pool_bytes": pool_gib * GIB, "rows": rows} | changes


def recursive_json():
    """JSON near a measurement: its keys, with wrong values."""
    keys = st.sampled_from(["schema", "machine", "gpu", "link", "driver", "direction", "gb_s", "rows", "pool_bytes"])
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.sampled_from(["hsplan.measurement/1", "gpu", "h2d"])
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner), max_leaves=12)


def planned(**overrides):
    return hsplan.plan(
        "glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", host_to_device_ratio=4, max_running_requests=16, **overrides
    )


def swap_in(**overrides):
    plan = planned(**overrides)
    return plan, plan.scenarios["offload"].pools.swap_in


def test_the_gathers_of_random_rows_are_taken_and_nothing_else(curve_file):
    path = curve_file(
        link=[
            gather(11.0),
            gather(99.0, order="sorted"),
            gather(99.0, direction="d2h"),
            {"driver": "copy_engine", "direction": "h2d", "gb_s": 55.0},
        ]
    )
    assert read_curve(path, "here").grids == {656: {GIB: {4096: 11.0}}}


def test_a_measured_link_replaces_the_shipped_one_and_is_not_scaled(curve_file):
    path = curve_file(link=[gather(20.0)])
    for gpu in ("h200", "a100", "gb200"):  # nominal links of 64, 32 and 225 GB/s
        plan, found = swap_in(gpu=gpu, link_curve=str(path))
        assert found.gb_s(16) == pytest.approx(0.95 * 20.0)
        other = "," if gpu == "h200" else f": not on an {gpu.upper()}, and"
        assert f"link rates as measured on NVIDIA H200, link.json{other} not scaled" in plan.notes
    assert not any("link rates" in note for note in planned().notes)


def test_a_step_with_a_measured_link_is_its_bytes_over_that_rate(curve_file):
    plan, found = swap_in(link_curve=str(curve_file(link=[gather(20.0)])))
    # 16 requests × misses × 656 B × 78 layers over 19 GB/s, and 21 owner layers × 25 µs
    copy_ms = 16 * found.misses * 656 * 78 / 19e9 * 1000
    capacity = plan.scenarios["offload"].capacity
    assert capacity.requests == 16
    assert capacity.swap_in_ms == pytest.approx(copy_ms + 0.525)


def test_the_committed_measurement_gives_the_swap_in_of_the_shipped_curve(curve_file):
    path = curve_file()
    of_file = planned(link_curve=str(path)).scenarios["offload"].capacity.swap_in_ms
    assert of_file == pytest.approx(planned().scenarios["offload"].capacity.swap_in_ms, rel=0.01)


def test_the_explanation_names_the_curve(curve_file):
    def source(**overrides):
        steps = planned(**overrides).scenarios["offload"].capacity.explain()
        return next(step for step in steps if step.name == "swap-in of a step")

    path = curve_file(link=[gather(20.0)])
    assert "benchmarks/results/validate-h200-2026-11-29.json" in source().source
    assert "NVIDIA H200, link.json" in source(link_curve=str(path)).source
    assert "at 19.0 GB/s, none of it hidden" in source(link_curve=str(path)).formula
    assert "70 % of that hidden" in source(link_curve=str(path), overlap=0.7).formula


def test_a_rate_of_other_rows_is_converted_by_the_ratio_of_the_shipped_curve(curve_file):
    path = str(curve_file(link=[gather(21.85)]))
    plan = hsplan.plan("glm-5.1-fp8", kv_cache_dtype="bfloat16", link_curve=path)
    own = plan.scenarios["offload"].pools.swap_in.curve
    sizes = {"row_bytes": 1152, "pool_bytes": GIB, "rows": 4096}
    # shipped: 49.3 GB/s of 1,152 B and 43.7 of 656 B; measured is half of the second
    assert own.gather_gb_s(plan.launch.gpu, **sizes) == pytest.approx(21.85 * 49.3 / 43.7)
    # out of 16 GiB: 41.1 and 24.5
    assert own.gather_gb_s(plan.launch.gpu, **sizes | {"pool_bytes": 16 * GIB}) == pytest.approx(21.85 * 41.1 / 24.5)
    assert own.gather_gb_s(plan.launch.gpu, **sizes | {"row_bytes": 656}) == 21.85
    note = next(note for note in plan.notes if note.startswith("no link rate of rows of 1,152 B was measured"))
    assert note.endswith(
        "that of 656 B stands in, times the ratio of the two on H200; "
        "`hsplan validate` with --kv-cache-dtype bfloat16 measures them"
    )


def test_a_file_of_either_row_size_gives_about_the_same_swap_in(tmp_path):
    result = json.loads((RESULT.with_name("validate-h200-2026-11-30.json")).read_text(encoding="utf-8"))
    found = {}
    for case in (0, 1):  # rows of 656 and of 1,152 B
        path = tmp_path / f"{case}.json"
        path.write_text(json.dumps(result["cases"][case]["measurement"]), encoding="utf-8")
        for dtype in ("fp8_e4m3", "bfloat16"):
            plan = hsplan.plan("glm-5.2-fp8", kv_cache_dtype=dtype, offload={}, context=131_072, link_curve=str(path))
            found[case, dtype] = plan.launched.capacity.swap_in_ms
    for dtype in ("fp8_e4m3", "bfloat16"):
        assert found[0, dtype] == pytest.approx(found[1, dtype], rel=0.03)


def test_a_plan_for_another_gpu_than_the_measured_says_whose_rates_it_takes():
    def link_notes(gpu):
        return [note for note in planned(gpu=gpu).notes if note.startswith("link rates")]

    assert link_notes("h200") == []
    assert link_notes("h100") == [
        "link rates as measured on H200, not scaled: --link-curve takes those of a machine with H100"
    ]
    (scaled,) = link_notes("gb300")
    assert scaled.startswith(
        "link rates as measured on H200, scaled by the nominal rates of the links, 225 for 64 GB/s"
    )


@pytest.mark.parametrize(
    ("told", "gpu", "notes"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-pcie", False),
        ("NVIDIA A100-SXM4-80GB", "a100", False),
        ("NVIDIA H200", "h20", True),
        ("NVIDIA GB200", "b200", True),
    ],
)
def test_a_driver_names_its_card_in_words_of_its_own(curve_file, told, gpu, notes):
    path = curve_file(machine={"gpu": told}, link=[gather(20.0)])
    assert any("not on an" in note for note in planned(gpu=gpu, link_curve=str(path)).notes) is notes


def of_ranks(rates):
    """A measurement of several ranks: `rates` are (of rank 0, of rank 1, order)."""
    shared = [
        {key: value for key, value in gather(1.0, order=order).items() if key != "gb_s"}
        | {"alone_gb_s": [90.0, 90.0], "together_gb_s": [one, other]}
        for one, other, order in rates
    ]
    ranks = [{"measurement": {"machine": {"gpu": "NVIDIA H200"}, "link": []}}] * 2
    return {"schema": "hsplan.ranks/1", "ranks": ranks, "link": shared}


def test_of_several_ranks_the_slowest_counts_with_all_at_once(tmp_path):
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(of_ranks([(31.0, 30.0, "random"), (50.0, 50.0, "sorted")])))
    curve = read_curve(path, "here")
    assert curve.grids == {656: {GIB: {4096: 30.0}}}
    assert curve.source == "NVIDIA H200, ranks.json (the slowest of 2 ranks at once)"
    path.write_text(json.dumps(of_ranks([(0.0, 30.0, "random")])))
    with pytest.raises(InputError, match="is no measurement"):
        read_curve(path, "here")


def test_a_file_that_holds_measurements_says_where_they_lie(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"date": "2026-11-30", "cases": [{"command": "x", "measurement": of_ranks([])}]}))
    with pytest.raises(InputError) as caught:
        planned(link_curve=str(path))
    what, remedy = caught.value.lines()
    assert what.endswith(" is no measurement, but holds some")
    assert remedy == "  its first measurement lies at cases[0].measurement: save that in a file of its own"


def test_a_relative_file_is_meant_from_the_folder_of_the_spec(tmp_path, curve_file):
    curve_file(link=[gather(20.0)])
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: glm-5.2-fp8\ndeployment: {gpu: h200, tp: 8, link_curve: link.json}\n")
    assert any("link.json, not scaled" in note for note in hsplan.plan(spec).notes)


def test_a_file_that_was_written_anew_is_read_anew(curve_file):
    slow = swap_in(link_curve=str(curve_file(link=[gather(20.0)])))[1]
    fast = swap_in(link_curve=str(curve_file(link=[gather(40.25)])))[1]
    assert (slow.gb_s(16), fast.gb_s(16)) == (pytest.approx(19.0), pytest.approx(38.2375))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "is no measurement"),
        ("[1]", "is no measurement"),
        ("{}", "is no measurement"),
        ('{"schema": "hsplan.plan/1"}', "is no hsplan.measurement/1, but hsplan.plan/1"),
        ('{"schema": "hsplan.measurement/1"}', "is no measurement: Object missing required field"),
        ('{"schema": "hsplan.measurement/1", "machine": {"gpu": "interpreter"}, "link": []}', "holds no gathers"),
        (json.dumps({"schema": "hsplan.measurement/1", "machine": {"gpu": "x"}, "link": [gather(0)]}), "is no meas"),
        (json.dumps({"schema": "hsplan.measurement/1", "machine": {"gpu": "x"}, "link": [gather(-1.0)]}), "is no meas"),
        (json.dumps({"schema": "hsplan.measurement/1", "machine": {"gpu": "x"}, "link": [gather(5e-324)]}), "is no m"),
        (" " * (2**20 + 1), "is larger than 1 MiB"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path, text, what):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        planned(link_curve=str(path))
    assert caught.value.lines()[0].startswith("--link-curve: ")
    assert what in caught.value.lines()[0]


@given(st.binary(max_size=200) | recursive_json().map(lambda data: json.dumps(data).encode()))
def test_no_file_makes_anything_but_an_input_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert read_curve(path, "here").grids


def test_a_folder_is_no_measurement(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        planned(link_curve=str(tmp_path))


def test_a_pipe_is_no_measurement(tmp_path):
    os.mkfifo(tmp_path / "link.json")
    with pytest.raises(InputError, match="not a regular file"):
        planned(link_curve=str(tmp_path / "link.json"))


@pytest.mark.parametrize("overlap", [0.0, 1.0])
@pytest.mark.parametrize("gb_s", [1e-3, 1e6])
def test_the_slowest_and_fastest_links_give_numbers(curve_file, gb_s, overlap):
    rates = [gather(gb_s, rows=1, pool_gib=1), gather(1e6, rows=10**6), gather(1e-3, rows=10**9)]
    plan = planned(link_curve=str(curve_file(link=rates)), host_gb_s=gb_s, overlap=overlap)
    assert 0 < plan.scenarios["offload"].capacity.swap_in_ms < 1e12


@pytest.mark.parametrize("gb_s", [0.0, 5e-324, 1e-9, 1e7])
def test_no_host_memory_is_so_slow_or_fast(gb_s):
    with pytest.raises(InputError, match=r"--host-gb-s"):
        planned(host_gb_s=gb_s)


def test_gpus_of_one_host_share_what_its_memory_gives():
    plan, shared = swap_in(host_gb_s=100)
    assert shared.gb_s(16) == pytest.approx(100 / 8)
    assert "host memory gives 100 GB/s to 8 GPUs together, 12.5 each" in plan.notes
    assert plan.scenarios["offload"].capacity.swap_in_ms > planned().scenarios["offload"].capacity.swap_in_ms


def test_host_memory_faster_than_all_links_changes_nothing():
    # Two H200s of one host were measured at 53 GB/s each, both at once: each link has its own.
    alone, shared = swap_in()[1], swap_in(host_gb_s=8 * 53)[1]
    assert shared.gb_s(16) == alone.gb_s(16)


def test_fewer_gpus_of_a_host_get_more_each():
    four = hsplan.plan("glm-5.2-nvfp4", gpu="b200", tp=4, offload={}, host_gb_s=100)
    assert four.scenarios["offload"].pools.swap_in.gb_s(16) == pytest.approx(25)


def test_overlap_hides_its_share_of_the_loading_and_not_the_resolving():
    none, most = swap_in()[1], swap_in(overlap=0.7)[1]
    copied = none.step_ms(16) - 0.525  # 21 owner layers × 25 µs
    assert most.step_ms(16) == pytest.approx(0.3 * copied + 0.525)
    assert swap_in(overlap=1)[1].step_ms(16) == pytest.approx(0.525)


def test_no_more_is_hidden_than_the_rest_of_the_step_takes():
    found = swap_in(overlap=1)[1]
    whole = swap_in()[1].step_ms(16)
    assert found.step_ms(16, 2.0) == pytest.approx(whole - 2.0)
    assert found.step_ms(16, 1000.0) == pytest.approx(0.525)


def test_overlap_is_stated_and_lets_more_requests_meet_the_time_per_token():
    wish = {"tpot_ms": 16, "step_ms": {"fixed": 12, "per_request": 0.1}}
    without, hidden = planned(**wish), planned(**wish, overlap=0.7)
    limits = [plan.scenarios["offload"].capacity.limits.link for plan in (without, hidden)]
    assert limits[0] < limits[1]
    assert "70 % of the loading is taken to be hidden behind the rest of the step" in hidden.notes
    assert not any("hidden" in note for note in without.notes)


@pytest.mark.parametrize("overrides", [{"overlap": 1.1}, {"overlap": -0.1}, {"host_gb_s": 0}, {"host_gb_s": "fast"}])
def test_shares_and_rates_out_of_range_are_refused(overrides):
    with pytest.raises(InputError, match="is not valid"):
        planned(**overrides)


def test_a_slower_link_is_advised_larger_hot_buffers(curve_file):
    wish = {"context": 131_072, "step_ms": {"fixed": 12, "per_request": 0.3}}
    fast = tuned(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", **wish))
    path = str(curve_file(link=[gather(8.0)]))
    slow = tuned(hsplan.plan("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3", link_curve=path, **wish))
    assert slow.best.device_buffer_size >= fast.best.device_buffer_size
    assert slow.best.tokens_s < fast.best.tokens_s
