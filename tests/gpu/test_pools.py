"""Tensors from shapes, the ledger beside what they took, and the two faults that are sizes."""

import pytest
import torch

from hsplan.engines import Buffer, Line
from hsplan.gpu.place import Place
from hsplan.gpu.pools import (
    RankPools,
    allocated,
    by_shape,
    compared,
    index_layers,
    one_layer_less,
    one_page_short,
    placeholder,
)
from hsplan_kernels.host_pool import HostPool

BUFFERS = (
    Buffer(line="KV rows", shape=(128, 1, 656), count=3),
    Buffer(line="index-K", shape=(3, 8448), count=2),
    Buffer(line="index-K", shape=(0, 8448), count=1),
    Buffer(line="tables", shape=(2, 100), dtype="int64"),
    Buffer(line="tables", shape=(7,), dtype="int16"),
    Buffer(line="host KV pool", shape=(192, 656), count=3, place="host"),
)


def line(name, n_bytes):
    return Line(name=name, bytes=n_bytes, formula="", evidence="derived")


def test_every_tensor_has_the_shape_and_type_of_its_buffer():
    with allocated(BUFFERS, Place("cpu")) as pools:
        shapes = {name: [tuple(tensor.shape) for tensor in tensors] for name, tensors in pools.gpu.items()}
        assert shapes == {
            "KV rows": [(128, 1, 656)] * 3,
            "index-K": [(3, 8448), (3, 8448), (0, 8448)],
            "tables": [(2, 100), (7,)],
        }
        assert [tensor.dtype for tensor in pools.gpu["tables"]] == [torch.int64, torch.int16]
        assert [tuple(layer.shape) for layer in pools.host_layers()] == [(192, 656)] * 3


def test_rows_are_seen_flat_and_not_copied():
    with allocated(BUFFERS, Place("cpu")) as pools:
        assert [tuple(rows.shape) for rows in pools.rows()] == [(128, 656)] * 3
        assert pools.rows()[1].data_ptr() == pools.gpu["KV rows"][1].data_ptr()


def test_what_lines_take_is_the_sum_of_their_tensors():
    taken = {
        "KV rows": 128 * 656 * 3,
        "index-K": 3 * 8448 * 2,
        "tables": 2 * 100 * 8 + 7 * 2,
        "host KV pool": 192 * 656 * 3,
    }
    assert by_shape(BUFFERS) == taken
    with allocated(BUFFERS, Place("cpu")) as pools:
        assert pools.taken_bytes == taken


def test_at_the_end_all_is_free_again():
    with allocated(BUFFERS, Place("cpu")) as pools:
        host = pools.host
    assert (pools.gpu, pools.host_layers(), host.layers) == ({}, [], [])


def test_all_is_free_again_after_an_error_in_the_block():
    with pytest.raises(RuntimeError, match="mine"), allocated(BUFFERS, Place("cpu")) as pools:
        raise RuntimeError("mine")
    assert (pools.gpu, pools.host_layers()) == ({}, [])


def test_a_host_pool_is_closed_when_a_later_tensor_cannot_be_had(monkeypatch):
    closed = []

    def close(pool):
        closed.append(pool)

    monkeypatch.setattr(HostPool, "close", close)
    impossible = Buffer(line="tables", shape=(2**60,))
    with pytest.raises(RuntimeError), allocated([BUFFERS[-1], impossible], Place("cpu")):
        pytest.fail("allocated an exbibyte")
    assert len(closed) == 1


def test_pools_without_offload_have_no_host_layers():
    with allocated(BUFFERS[:1], Place("cpu")) as pools:
        assert (pools.host, pools.host_layers()) == (None, [])


def test_a_placeholder_is_taken_in_pieces_of_a_gib(monkeypatch):
    pieces = []
    monkeypatch.setattr(torch, "empty", lambda size, **_: pieces.append(size))
    with placeholder(2 * 2**30 + 5, Place("cpu")):
        assert pieces == [2**30, 2**30, 5]


def test_lines_with_tensors_are_compared_and_estimates_are_not():
    lines = [line("weights", 7), line("KV rows", 1000), line("index-K", 50)]
    found = compared(lines, {"KV rows": 1001, "index-K": 50})
    assert [(check.name, check.predicted_bytes, check.measured_bytes) for check in found] == [
        ("KV rows", 1000, 1001),
        ("index-K", 50, 50),
    ]


def test_index_keys_come_in_the_order_of_the_layers():
    pools = RankPools()
    first, second, third = (torch.empty((2, 8448), dtype=torch.uint8) for _ in range(3))
    elided, other = (torch.empty((0, 8448), dtype=torch.uint8) for _ in range(2))
    pools.gpu["index-K"] = [first, second, third, elided, other]
    found = index_layers(pools, (True, False, True, False, True))
    assert [id(layer) for layer in found] == [id(layer) for layer in (first, elided, second, other, third)]


def test_the_pools_stay_as_they_are_when_their_index_keys_are_ordered():
    with allocated(BUFFERS, Place("cpu")) as pools:
        index_layers(pools, (True, False, True))
        assert len(pools.gpu["index-K"]) == 3


def test_pools_that_are_a_page_short_are_those_of_rows():
    short = one_page_short(BUFFERS, 64)
    assert [buffer.shape for buffer in short] == [(64, 1, 656), (3, 8448), (0, 8448), (2, 100), (7,), (128, 656)]
    assert [buffer.count for buffer in short] == [3, 2, 1, 1, 1, 3]


def test_a_ledger_of_one_layer_less_is_so_in_its_rows_alone():
    lines = one_layer_less([line("KV rows", 780), line("index-K", 780)], 78)
    assert [(entry.name, entry.bytes) for entry in lines] == [("KV rows", 770), ("index-K", 780)]
