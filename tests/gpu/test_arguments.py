"""Arguments that would move the wrong bytes: views with gaps, other types, sizes and starts are refused by name."""

import dataclasses

import pytest
import torch

from hsplan_kernels import backup, gather, index_k, pattern, swap_in
from hsplan_kernels.state import new_plan, new_state


def zeros(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


def int64(*shape):
    return zeros(*shape, dtype=torch.int64)


def uint8(*shape):
    return zeros(*shape, dtype=torch.uint8)


def bf16(*shape):
    return zeros(*shape, dtype=torch.bfloat16)


def every_second(n, dtype=torch.int32):
    return zeros(2 * n, dtype=dtype)[::2]


def eight_bytes_off(rows, row_bytes):
    return uint8(rows * row_bytes + 8)[8:].view(rows, row_bytes)


def resolve(**change):
    state = new_state(int64(2, 40), slots=8, page_tokens=1, host_limit=40, device="cpu")
    call = {
        "state": state, "plan": new_plan(2, 4, "cpu"), "top_k": zeros(2, 4), "request_rows": zeros(2),
        "seq_lens": zeros(2), "num_real": zeros(1), "step": zeros(1), "out": zeros(2, 4),
    }  # fmt: skip
    swap_in.resolve(**(call | change))


def copy_planned(**change):
    call = {"plan": new_plan(1, 4, "cpu"), "host": uint8(9, 32), "device": uint8(9, 32)}
    swap_in.copy_planned(**(call | change))


def gather_rows(**change):
    gather.gather_rows(**({"host": uint8(9, 32), "device": uint8(6, 32), "rows": int64(6)} | change))


def scatter_rows(**change):
    gather.scatter_rows(**({"host": uint8(9, 32), "device": uint8(6, 32), "rows": int64(6)} | change))


def backup_rows(**change):
    call = {
        "device_table": int64(2), "host_table": int64(2), "src_rows": int64(3), "dst_rows": int64(3), "count": zeros(1),
        "row_bytes": 32, "num_layers": 2, "device_rows": 9, "host_rows": 9,
    }  # fmt: skip
    backup.backup_rows(**(call | change))


def stage_pages(**change):
    call = {
        "device_layers": [uint8(8, 32)], "host_layers": [uint8(8, 32)], "device_page_ids": [0], "host_page_ids": [0],
        "page_tokens": 4, "row_bytes": 32, "stream": None,
    }  # fmt: skip
    backup.stage_pages(**(call | change))


def store_index_k(**change):
    call = {
        "table": int64(2), "page_counts": zeros(2), "slots": int64(3), "keys": uint8(2, 3, 128),
        "scales": torch.zeros(2, 3), "count": zeros(1), "num_layers": 2,
    }  # fmt: skip
    index_k.store_index_k(**(call | change))


def move_index_k(**change):
    call = {
        "table": int64(2), "page_counts": zeros(2), "src_slots": int64(3), "dst_slots": int64(3), "count": zeros(1),
        "num_layers": 2,
    }  # fmt: skip
    index_k.move_index_k(**(call | change))


def fill_rows(**change):
    call = {"rows": uint8(9, 32), "at": zeros(2, 3), "tokens": zeros(2, 3), "requests": zeros(2), "layer": 0}
    pattern.fill_rows(**(call | change))


def count_wrong_rows(**change):
    call = {"rows": uint8(9, 32), "at": zeros(2, 3), "tokens": zeros(2, 3), "requests": zeros(2), "layer": 0}
    pattern.count_wrong_rows(**({**call, "wrong": zeros(1)} | change))


REFUSED = [
    (resolve, "top_k", zeros(2, 8)[:, ::2], r"int32 \[2, 4\] with gaps: give contiguous int32 \[2, 4\]"),
    (resolve, "top_k", torch.zeros(2, 4), r"float32 \[2, 4\]: give contiguous int32"),
    (resolve, "top_k", int64(2, 4), r"int64 \[2, 4\]: give contiguous int32"),
    (resolve, "top_k", zeros(4), r"int32 \[4\]: give two dimensions"),
    (resolve, "out", zeros(2, 2), r"int32 \[2, 2\]: give contiguous int32 \[2, 4\]"),
    (resolve, "out", zeros(1, 4), r"int32 \[1, 4\]: give contiguous int32 \[2, 4\]"),
    (resolve, "out", zeros(4, 2).t(), "with gaps"),
    (resolve, "out", int64(2, 4), "give contiguous int32"),
    *[
        (resolve, name, values, r"give contiguous int32 \[2\]")
        for name in ("request_rows", "seq_lens")
        for values in (every_second(2), zeros(1), zeros(1).expand(2), int64(2), torch.zeros(2))
    ],
    *[
        (resolve, name, values, r"give contiguous int32 \[1\]")
        for name in ("num_real", "step")
        for values in (zeros(0), zeros(2), int64(1), torch.zeros(1))
    ],
    (copy_planned, "host", bf16(9, 16), r"bfloat16 \[9, 16\]: give uint8 \[rows, row bytes\]"),
    (copy_planned, "device", bf16(9, 16), r"bfloat16 \[9, 16\]: give uint8 \[rows, row bytes\]"),
    (copy_planned, "device", uint8(288), r"uint8 \[288\]: give uint8 \[rows, row bytes\]"),
    (copy_planned, "device", eight_bytes_off(9, 32), "starts at .*: give memory aligned to 16 bytes"),
    (copy_planned, "host", eight_bytes_off(9, 32), "starts at .*: give memory aligned to 16 bytes"),
    (copy_planned, "host", uint8(9, 64)[:, :32], "is not contiguous: give whole pools"),
    *[
        (call, name, values, message)
        for call in (gather_rows, scatter_rows)
        for name, values, message in (
            ("rows", every_second(6, torch.int64), r"int64 \[6\] with gaps: give contiguous int32 or int64 \[6\]"),
            ("rows", int64(1).expand(6), "with gaps"),
            ("rows", int64(3, 2).t(), "with gaps"),
            ("rows", int64(3, 2), r"int64 \[3, 2\]: give contiguous int32 or int64 \[6\]"),
            ("host", uint8(9, 2, 16), r"uint8 \[9, 2, 16\]: give uint8 \[rows, row bytes\]"),
        )
    ],
    *[(backup_rows, name, every_second(2, torch.int64), "with gaps") for name in ("device_table", "host_table")],
    *[(backup_rows, name, zeros(2), "give contiguous int64") for name in ("device_table", "host_table")],
    *[(backup_rows, name, every_second(3), "with gaps") for name in ("src_rows", "dst_rows")],
    *[(backup_rows, name, torch.zeros(3), "give contiguous int32 or int64") for name in ("src_rows", "dst_rows")],
    (stage_pages, "page_tokens", 0, "give a whole number from 1 on"),
    (stage_pages, "page_tokens", -4, "give a whole number from 1 on"),
    (stage_pages, "piece_rows", 0, "give a whole number from 1 on"),
    (stage_pages, "piece_rows", -5, "give a whole number from 1 on"),
    (store_index_k, "slots", every_second(3), r"int32 \[3\] with gaps: give contiguous int32 or int64 \[3\]"),
    (store_index_k, "slots", torch.zeros(3), "give contiguous int32 or int64"),
    (store_index_k, "keys", uint8(8 + 2 * 3 * 128)[8:].view(2, 3, 128), "starts at .*aligned to 16 bytes"),
    *[(move_index_k, name, every_second(3), "with gaps") for name in ("src_slots", "dst_slots")],
    *[(move_index_k, name, torch.zeros(3), "give contiguous int32 or int64") for name in ("src_slots", "dst_slots")],
    *[
        (call, name, values, message)
        for call in (store_index_k, move_index_k)
        for name, values, message in (
            ("page_counts", every_second(2), r"int32 \[2\] with gaps: give contiguous int32 or int64 \[2\]"),
            ("page_counts", torch.zeros(2), "give contiguous int32 or int64"),
            ("table", every_second(2, torch.int64), "with gaps"),
        )
    ],
    *[
        (call, name, values, message)
        for call in (fill_rows, count_wrong_rows)
        for name, values, message in (
            ("rows", bf16(9, 16), r"bfloat16 \[9, 16\]: give uint8 \[rows, row bytes\]"),
            ("rows", uint8(9, 64)[:, :32], "is not contiguous"),
            ("at", zeros(2, 6)[:, ::2], r"int32 \[2, 3\] with gaps: give contiguous int32 or int64 \[2, 3\]"),
            ("at", zeros(1, 3).expand(2, 3), "with gaps"),
            ("at", zeros(1).expand(2, 2**30), "2147483648 entries: give at most 2147483647 a call"),
            ("tokens", zeros(3, 2).t(), "with gaps"),
            ("tokens", torch.zeros(2, 3), "give contiguous int32 or int64"),
            ("requests", every_second(2), "with gaps"),
            ("requests", torch.zeros(2), "give contiguous int32"),
        )
    ],
    (count_wrong_rows, "wrong", int64(1), r"int64 \[1\]: give contiguous int32 \[1\]"),
    (count_wrong_rows, "wrong", zeros(0), r"int32 \[0\]: give contiguous int32 \[1\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name", "value", "message"), REFUSED, ids=[f"{call.__name__} {name}" for call, name, *_ in REFUSED]
)
def test_what_would_move_the_wrong_bytes_is_refused_by_its_name(call, name, value, message):
    with pytest.raises(ValueError, match=f"^{name}.*{message}"):
        call(**{name: value})


@pytest.mark.parametrize(
    ("call", "change", "row_bytes"),
    [
        (copy_planned, {"host": uint8(9, 0), "device": uint8(9, 0)}, 0),
        (copy_planned, {"host": uint8(9, 24), "device": uint8(9, 24)}, 24),
        (fill_rows, {"rows": uint8(9, 0)}, 0),
        (count_wrong_rows, {"rows": uint8(9, 24)}, 24),
        (backup_rows, {"row_bytes": 32.0}, 32.0),
    ],
)
def test_rows_that_are_no_pieces_of_16_bytes_are_refused(call, change, row_bytes):
    with pytest.raises(ValueError, match=f"rows of {row_bytes} bytes: give a multiple of 16"):
        call(**change)


def test_no_entries_in_the_top_k_are_refused():
    with pytest.raises(ValueError, match="top-k 0 with 8 slots: give a power of two"):
        resolve(top_k=zeros(2, 0), out=zeros(2, 0))


@pytest.mark.parametrize(("requests", "top_k"), [(0, 4), (-1, 4), (2, 0), (2, 4.0)])
def test_a_plan_without_entries_is_refused(requests, top_k):
    with pytest.raises(ValueError, match="give a whole number from 1 on"):
        new_plan(requests, top_k, "cpu")


@pytest.mark.parametrize("gaps", [lambda table: table[:, :40], lambda table: table[:40].t(), lambda table: table[::2]])
def test_host_rows_with_gaps_are_loaded_as_they_were_given(device, gaps):
    host_rows = gaps(torch.randperm(80 * 80, generator=torch.Generator().manual_seed(1)).view(80, 80))
    state = new_state(host_rows, slots=4, page_tokens=1, host_limit=6400, device=device)
    plan, out, one = new_plan(1, 4, device), zeros(1, 4).to(device), torch.ones(1, dtype=torch.int32, device=device)
    ids = torch.tensor([[9, 20, 30, 31]], dtype=torch.int32, device=device)
    swap_in.resolve(state, plan, ids, 7 * one, 40 * one, one, one, out)
    assert sorted(plan.src[0].tolist()) == sorted(host_rows[7, [9, 20, 30, 31]].tolist())


def test_host_rows_without_gaps_stay_the_callers():
    host_rows = int64(2, 40)
    state = new_state(host_rows, slots=4, page_tokens=1, host_limit=40, device="cpu")
    assert state.host_rows.data_ptr() == host_rows.data_ptr()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_tokens": 0}, "page_tokens 0: give a whole number from 1 on"),
        ({"page_tokens": -1}, "page_tokens -1: give a whole number from 1 on"),
        ({"page_tokens": 1.5}, r"page_tokens 1\.5: give a whole number from 1 on"),
        ({"slots": 8.0}, r"slots 8\.0: give a whole number from 1 on"),
        ({"page_tokens": 2**30 - 7}, r"2 requests of 8 \+ 1073741817 slots: give at most 2147483647"),
        ({"host_rows": zeros(2, 40)}, r"host_rows: int32 \[2, 40\]: give contiguous int64 \[2, 40\]"),
        ({"host_rows": int64(40)}, r"host_rows: int64 \[40\]: give two dimensions"),
    ],
)
def test_a_state_whose_device_rows_would_overlap_or_overflow_is_refused(change, message):
    call = {"host_rows": int64(2, 40), "slots": 8, "page_tokens": 1, "host_limit": 40, "device": "cpu"}
    with pytest.raises(ValueError, match=message):
        new_state(**(call | change))


@pytest.mark.parametrize("name", ["slot_tokens", "slot_steps", "token_slots", "host_rows"])
def test_a_state_of_tensors_with_gaps_is_refused(name):
    state = new_state(int64(2, 40), slots=8, page_tokens=1, host_limit=40, device="cpu")
    with pytest.raises(ValueError, match=f"{name}: .* with gaps"):
        dataclasses.replace(state, **{name: getattr(state, name).t().contiguous().t()})


@pytest.mark.parametrize("name", ["src", "dst", "scratch", "numbers"])
def test_a_plan_of_tensors_with_gaps_is_refused(name):
    plan = new_plan(2, 4, "cpu")
    with pytest.raises(ValueError, match=f"{name}: .* with gaps"):
        dataclasses.replace(plan, **{name: getattr(plan, name).t().contiguous().t()})
