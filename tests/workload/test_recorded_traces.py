"""Recorded traces: the format, what dumps of servers become, and what is refused."""

import base64
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsplan.errors import InputError
from hsplan.workload.dumps import load_recording
from hsplan.workload.recording import as_array, load_array


def test_a_recorded_trace_comes_back_sorted_distinct_and_without_padding(tmp_path):
    path = tmp_path / "trace.npy"
    np.save(path, np.array([[5, 2, -1, 2], [7, 1, 0, 3]], dtype=np.int64))
    ((first, second),) = load_array(path).traces
    assert (first.tolist(), second.tolist()) == ([2, 5], [0, 1, 3, 7])


def test_a_dump_of_many_layers_gives_one_trace_a_layer(tmp_path):
    path = tmp_path / "trace.npy"
    np.save(path, np.arange(24, dtype=np.int32).reshape(3, 2, 4))
    first, second = load_array(path).traces
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
        load_array(path)


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"\x93NUMPY garbage", b"text", npy(b"(" * 9000), npy(b"\x00\xff{{{"), npy(b"{'a': ")],
)
def test_a_file_that_is_no_array_is_refused(tmp_path, content):
    path = tmp_path / "trace.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"numpy\.save"):
        load_array(path)


@given(st.binary(max_size=120))
def test_no_header_makes_anything_but_an_input_error(tmp_path_factory, header):
    path = tmp_path_factory.getbasetemp() / "fuzzed.npy"
    path.write_bytes(npy(header))
    with pytest.raises(InputError):
        load_array(path)


@pytest.mark.parametrize("name", ["trace.npy", "trace.jsonl", "trace.json"])
def test_a_pipe_is_no_trace(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="not a regular file"):
        load_recording(tmp_path / name, 16)


def as_lists(traces):
    return [[ids.tolist() for ids in trace] for trace in traces]


ids_of_steps = st.lists(st.sets(st.integers(0, 60), max_size=6).map(sorted), min_size=4, max_size=4)


@given(st.lists(ids_of_steps, min_size=1, max_size=3).filter(lambda traces: any(map(any, traces))))
def test_what_is_written_is_read_again(tmp_path_factory, traces):
    path = tmp_path_factory.mktemp("traces") / "trace.npy"
    path.write_bytes(as_array([[np.array(ids, dtype=np.int32) for ids in trace] for trace in traces]))
    assert as_lists(load_recording(path, 6).traces) == traces


LINES = [
    {"step": 8, "layer": 6, "ids": [4, 1, -1]},
    {"step": 7, "layer": 6, "ids": [3, 3]},
    {"step": 7, "layer": 2, "ids": [9, 0]},
    {"step": 8, "layer": 2, "ids": []},
]


def written(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_lines_in_any_order_give_a_trace_a_layer(tmp_path):
    found = load_recording(written(tmp_path / "dump.jsonl", [*LINES, ""]), 2048)
    assert found.layers == (2, 6)
    assert as_lists(found.traces) == [[[0, 9], []], [[3], [1, 4]]]


def test_a_dump_becomes_the_documented_array(tmp_path):
    (tmp_path / "trace.npy").write_bytes(as_array(load_recording(written(tmp_path / "dump.jsonl", LINES), 2048).traces))
    assert np.load(tmp_path / "trace.npy").tolist() == [[[0, 9], [3, -1]], [[-1, -1], [1, 4]]]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([*LINES, LINES[1]], r"dump\.jsonl:5: step 7 of layer 6 stands here a second time"),
        (LINES[:3], r"dump\.jsonl: layer 2 has no step 8"),
        ([*LINES, {"step": 10, "layer": 2, "ids": [1]}], r"layer 6 has no step 9"),
        ([*LINES, "{"], r"dump\.jsonl:5: "),
        (["\\udcff"], r"dump\.jsonl:1: "),
        ([{"step": 0, "layer": 1, "ids": [1], "request": 3}], r"dump\.jsonl:1: .*request"),
        ([{"step": 0, "ids": [1]}], r"dump\.jsonl:1: .*layer"),
        ([{"step": -1, "layer": 0, "ids": [1]}], r"dump\.jsonl:1: .*\$\.step"),
        ([{"step": 0, "layer": 0, "ids": [1, "2"]}], r"dump\.jsonl:1: .*\$\.ids"),
        ([{"step": 0, "layer": 0, "ids": [2**21]}], r"dump\.jsonl:1: .*\$\.ids"),
        ([{"step": 0, "layer": 0, "ids": [-1]}], "no step reads any token"),
        ([], "holds no line"),
    ],
)
def test_lines_that_are_no_trace_are_refused_by_their_number(tmp_path, lines, what):
    with pytest.raises(InputError, match=what):
        load_recording(written(tmp_path / "dump.jsonl", lines), 2048)


def reply(path, data, prompt=3, completion=3, **more):
    meta = {"prompt_tokens": prompt, "completion_tokens": completion, "id": "x", **more}
    if data is not None:
        meta["indexer_topk"] = base64.b64encode(np.array(data, dtype="<i4").tobytes()).decode()
    path.write_text(json.dumps({"text": "…", "meta_info": meta}))
    return path


# Rows of positions 0 to 4: a prompt of 3 tokens, and 2 of the 3 that followed; two layers, top-k 3.
ROWS = [
    [[0, -1, -1], [0, -1, -1]],
    [[1, 0, -1], [0, 1, -1]],
    [[2, 1, 0], [0, 1, 2]],
    [[3, 0, 1], [3, 2, 1]],
    [[4, 3, 1], [0, 2, 1]],
]


def test_of_a_reply_the_decode_steps_are_taken_without_their_newest_token(tmp_path):
    found = load_recording(reply(tmp_path / "reply.json", ROWS), 3)
    assert found.layers is None
    assert as_lists(found.traces) == [[[0, 1], [1, 3]], [[1, 2], [0, 1, 2]]]


@pytest.mark.parametrize(
    ("data", "counts", "what"),
    [
        (None, {}, "indexer_topk"),
        (ROWS, {"completion": 4}, "holds 30 ids, for 6 tokens and top-k 3"),
        (ROWS[:3], {"completion": 1}, "holds 18 ids, for 3 tokens"),
        ([], {}, "holds 0 ids"),
        (None, {"indexer_topk": "AAA"}, "reply.json: "),
        (None, {"indexer_topk": "AAAA"}, "reply.json: "),
        (None, {"indexer_topk": "ä"}, "reply.json: "),
    ],
)
def test_a_reply_without_the_indices_is_refused(tmp_path, data, counts, what):
    with pytest.raises(InputError, match=what):
        load_recording(reply(tmp_path / "reply.json", data, **counts), 3)


@pytest.mark.parametrize("text", ["", "[]", '{"text": "x"}', "[" * 100_000, '{"meta_info": ' + "[" * 100_000])
def test_a_file_that_is_no_reply_is_refused(tmp_path, text):
    (tmp_path / "reply.json").write_text(text)
    with pytest.raises(InputError, match="return_indexer_topk"):
        load_recording(tmp_path / "reply.json", 3)


@pytest.mark.parametrize("name", ["no.npy", "no.jsonl", "no.json"])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="No such file"):
        load_recording(tmp_path / name, 3)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_whatever_end_in_another_error(tmp_path_factory, data):
    for name in ("any.npy", "any.jsonl", "any.json"):
        path = tmp_path_factory.mktemp("any") / name
        path.write_bytes(data)
        with pytest.raises(InputError):
            load_recording(path, 3)


def test_lines_of_another_system_are_read(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"step": 0, "layer": 0, "ids": [1]}\r\n{"step": 1, "layer": 0, "ids": [2]}\r\n')
    assert as_lists(load_recording(path, 16).traces) == [[[1], [2]]]
