"""Backup: single rows by the kernel, whole pages by the copy engine, in order on a side stream."""

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan_kernels import backup, host_pool
from hsplan_kernels import reference_moves as reference
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import pointer_table

POISON = 0x5A  # not that of the guard bands: a row read from there shows
ROW_BYTES = (16, 576, 656, 1040, 1152)


def noise(*shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def distinct(n, rows, seed):
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:n]


@pytest.fixture(scope="session")
def check(device, guarded, settle):
    """Back up with the kernel, then with the reference; compare every byte, those that must not change too."""

    def run(src, dst, count, *, row_bytes, num_layers=3, device_rows=110, host_rows=130):
        contents = [noise(device_rows, row_bytes, seed=layer) for layer in range(num_layers)]
        layers = [guarded(values=values) for values in contents]
        tail = torch.zeros(40, dtype=src.dtype)  # past the end lie entries that would be copied
        counts = torch.tensor([count], dtype=torch.int32)
        ids = [guarded(values=values) for values in (torch.cat([src, tail]), torch.cat([dst, tail]), counts)]
        sizes = {
            "row_bytes": row_bytes,
            "num_layers": num_layers,
            "device_rows": device_rows,
            "host_rows": host_rows,
        }
        with HostPool(num_layers, host_rows, row_bytes) as pool:
            for layer in pool.layers:
                layer.fill_(POISON)
            device_table = pointer_table([layer.view for layer in layers])
            host_table = pointer_table(pool.layers, device)
            src_rows, dst_rows, taken = (array.view for array in ids)
            backup.backup_rows(device_table, host_table, src_rows[: len(src)], dst_rows[: len(src)], taken, **sizes)
            settle()
            padding = pool.bytes // num_layers - host_rows * row_bytes
            assert all(
                ctypes.string_at(layer.data_ptr() + layer.numel(), padding) == bytes(padding) for layer in pool.layers
            )
            got = [layer.clone() for layer in pool.layers]
        wanted = [torch.full((host_rows, row_bytes), POISON, dtype=torch.uint8) for _ in range(num_layers)]
        tables = pointer_table(contents), pointer_table(wanted)
        reference.backup_rows(*tables, src, dst, counts, **sizes)
        for layer in range(num_layers):
            assert torch.equal(got[layer], wanted[layer]), f"layer {layer}"
            assert torch.equal(layers[layer].view.cpu(), contents[layer]), f"layer {layer} of the device was written"
        assert all(array.intact() for array in [*layers, *ids])
        return got

    return run


@pytest.mark.parametrize("row_bytes", ROW_BYTES, ids="{} B".format)
@pytest.mark.parametrize("n", [1, 63, 65, 100], ids="{} rows".format)
def test_every_layer_gets_its_own_rows_bit_for_bit(check, n, row_bytes):
    check(distinct(n, 110, 1), distinct(n, 130, 2), n, row_bytes=row_bytes)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 66, 2**31 - 1, -1])
def test_entries_past_the_count_are_padding(check, count):
    got = check(distinct(65, 110, 3), distinct(65, 130, 4), count, row_bytes=656)
    untouched = sum(bool((row == POISON).all()) for row in got[0])
    assert untouched == 130 - min(max(count, 0), 65)


def test_rows_outside_either_pool_are_skipped(check):
    src = torch.tensor([-1, 109, 110, 0, 0, 0, 0, 2**31, 2**40, -(2**31), -(2**63), 7, 7, 2**63 - 1])
    dst = torch.tensor([0, 1, 2, -1, 129, 130, -2, 3, 4, 5, 6, 7, 8, 9])
    got = check(src, dst, len(src), row_bytes=576)
    assert [i for i in range(130) if not (got[2][i] == POISON).all()] == [1, 7, 8, 129]


def test_int32_rows_do_as_well(check):
    check(distinct(33, 110, 5).int(), distinct(33, 130, 6).int(), 33, row_bytes=1040)


def test_one_layer_and_one_row_pools_work(check):
    check(torch.tensor([0]), torch.tensor([0]), 1, row_bytes=16, num_layers=1, device_rows=1, host_rows=1)


def test_no_entries_copy_nothing(check):
    got = check(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 0, row_bytes=656)
    assert all(bool((layer == POISON).all()) for layer in got)


@settings(max_examples=25)
@given(data=st.data())
def test_drawn_rows_agree_with_the_reference(check, data):
    n = data.draw(st.integers(1, 70))
    ids = st.one_of(st.integers(-3, 60), st.sampled_from([-(2**63), 2**31 - 1, 2**32, 2**63 - 1]))
    src = torch.tensor(data.draw(st.lists(ids, min_size=n, max_size=n)))
    dst = torch.tensor(data.draw(st.lists(ids, min_size=n, max_size=n, unique=True)))
    rows = st.integers(1, 50)
    check(
        src,
        dst,
        data.draw(st.integers(-1, n + 2)),
        row_bytes=16 * data.draw(st.integers(1, 90)),
        num_layers=data.draw(st.integers(1, 5)),
        device_rows=data.draw(rows),
        host_rows=data.draw(rows),
    )


def test_rows_on_either_side_of_2_gib_are_told_apart(device, settle, monkeypatch):
    monkeypatch.setattr(host_pool, "_touch", lambda _: None)
    rows, edge = 3_273_700, 3_273_603  # 3,273,603 · 656 < 2^31 < 3,273,604 · 656
    layer = torch.empty(rows, 656, dtype=torch.uint8, device=device)
    src, dst = torch.tensor([0, edge, edge + 1, rows - 1]), torch.tensor([rows - 1, edge + 1, edge, 0])
    layer[src.to(device)] = noise(4, 656, seed=8).to(device)
    with HostPool(1, rows, 656, huge_pages=False) as pool:
        tables = pointer_table([layer]), pointer_table(pool.layers, device)
        count = torch.tensor([4], dtype=torch.int32, device=device)
        sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": rows, "host_rows": rows}
        backup.backup_rows(*tables, src.to(device), dst.to(device), count, **sizes)
        settle()
        assert torch.equal(pool.layers[0][dst], noise(4, 656, seed=8))


def test_a_replay_takes_ids_and_count_as_they_are_then(device, settle, captured):
    layers = [noise(20, 656, seed=layer).to(device) for layer in range(2)]
    src = torch.zeros(4, dtype=torch.int64, device=device)
    dst = torch.arange(4, device=device)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    with HostPool(2, 9, 656) as pool:
        tables = pointer_table(layers), pointer_table(pool.layers, device)
        sizes = {"row_bytes": 656, "num_layers": 2, "device_rows": 20, "host_rows": 9}
        replay = captured(lambda: backup.backup_rows(*tables, src, dst, count, **sizes))
        settle()
        assert not any(layer.any() for layer in pool.layers)
        src.copy_(torch.tensor([19, 3, 5, 7]))
        dst.copy_(torch.tensor([8, 0, 4, 2]))
        count.fill_(3)
        replay()
        settle()
        for host, layer in zip(pool.layers, layers, strict=True):
            assert torch.equal(host[[8, 0, 4]], layer[[19, 3, 5]].cpu())
            assert not host[[1, 2, 3, 5, 6, 7]].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_bytes": 20}, "rows of 20 bytes: give a multiple of 16"),
        ({"row_bytes": 0}, "rows of 0 bytes: give a multiple of 16"),
        ({"dst_rows": torch.zeros(2, dtype=torch.int64)}, r"dst_rows: int64 \[2\]: give .* \[3\]"),
        ({"count": torch.zeros(1, dtype=torch.int64)}, r"count: int64 \[1\]: give contiguous int32 \[1\]"),
        ({"num_layers": 3}, r"device_table: int64 \[2\]: give contiguous int64 \[3\]"),
        ({"src_rows": torch.zeros(1).expand(2**30), "dst_rows": torch.zeros(1).expand(2**30)}, "at most 2147483647"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    call = {
        "device_table": torch.zeros(2, dtype=torch.int64),
        "host_table": torch.zeros(2, dtype=torch.int64),
        "src_rows": torch.zeros(3, dtype=torch.int64),
        "dst_rows": torch.zeros(3, dtype=torch.int64),
        "count": torch.zeros(1, dtype=torch.int32),
        "row_bytes": 656,
        "num_layers": 2,
        "device_rows": 1,
        "host_rows": 1,
    }
    with pytest.raises(ValueError, match=message):
        backup.backup_rows(**(call | change))


@pytest.fixture(scope="session")
def stage(device, guarded, settle):
    def run(device_pages, host_pages, *, row_bytes=656, page_tokens=64, piece_rows=None):
        contents = [noise(5 * page_tokens, row_bytes, seed=layer) for layer in range(2)]
        layers = [guarded(values=values) for values in contents]
        wanted = [torch.full((7 * page_tokens, row_bytes), POISON, dtype=torch.uint8) for _ in range(2)]
        sizes = {"page_tokens": page_tokens, "row_bytes": row_bytes, "piece_rows": piece_rows}
        backups = backup.BackupStream(device)
        with HostPool(2, 7 * page_tokens, row_bytes) as pool:
            for layer in pool.layers:
                layer.fill_(POISON)
            views = [layer.view for layer in layers]
            with backups.after(None, *views):
                event = backup.stage_pages(views, pool.layers, device_pages, host_pages, stream=backups.stream, **sizes)
            assert (event is None) == (device == "cpu")
            if event is not None:
                event.synchronize()
            reference.stage_pages(contents, wanted, device_pages, host_pages, **sizes)
            assert all(torch.equal(got, want) for got, want in zip(pool.layers, wanted, strict=True))
        settle()
        assert all(layer.intact() for layer in layers)

    return run


@pytest.mark.parametrize("row_bytes", ROW_BYTES, ids="{} B".format)
def test_pages_of_a_prompt_arrive_where_they_should(stage, row_bytes):
    stage([0, 1, 2, 4], [3, 4, 6, 0], row_bytes=row_bytes)


def test_no_pages_stage_nothing(stage):
    stage([], [])


@settings(max_examples=25)
@given(data=st.data())
def test_drawn_pages_agree_with_the_reference(stage, data):
    pages = data.draw(st.integers(0, 5))
    device_pages = data.draw(st.lists(st.integers(0, 4), min_size=pages, max_size=pages))
    host_pages = data.draw(st.lists(st.integers(0, 6), min_size=pages, max_size=pages, unique=True))
    piece_rows = data.draw(st.one_of(st.none(), st.integers(1, 40)))
    stage(
        device_pages, host_pages, row_bytes=16, page_tokens=data.draw(st.sampled_from([1, 16])), piece_rows=piece_rows
    )


def test_consecutive_pages_are_one_copy():
    assert list(backup._runs([4, 5, 6, 8, 9], [10, 11, 12, 13, 14], 64, None)) == [(256, 640, 192), (512, 832, 128)]
    assert list(backup._runs([1, 2], [2, 1], 64, None)) == [(64, 128, 64), (128, 64, 64)]
    assert list(backup._runs([3, 3], [0, 1], 64, None)) == [(192, 0, 64), (192, 64, 64)]


def test_no_copy_crosses_a_registered_piece():
    assert list(backup._runs([0, 1], [1, 2], 64, 100)) == [(0, 64, 36), (36, 100, 92)]
    assert list(backup._runs([0], [0], 64, 25)) == [(0, 0, 25), (25, 25, 25), (50, 50, 14)]


@pytest.mark.parametrize(
    ("device_pages", "host_pages", "message"),
    [
        ([0, 5], [0, 1], "device page 5 of 5"),
        ([0, 1], [0, 7], "host page 7 of 7"),
        ([0, -1], [0, 1], "device page -1 of 5"),
        ([0, 1], [0], "unequal numbers of pages"),
    ],
)
def test_a_page_outside_its_pool_stops_before_the_first_copy(device_pages, host_pages, message):
    host = torch.full((7 * 64, 16), POISON, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        backup.stage_pages(
            [torch.zeros(5 * 64 + 63, 16, dtype=torch.uint8)],
            [host],
            device_pages,
            host_pages,
            page_tokens=64,
            row_bytes=16,
            stream=None,
        )
    assert bool((host == POISON).all())


def test_layers_of_another_row_are_refused():
    with pytest.raises(ValueError, match=r"host layers are not uint8 \[rows, 32\]"):
        backup.stage_pages(
            [torch.zeros(64, 32, dtype=torch.uint8)],
            [torch.zeros(64, 16, dtype=torch.uint8)],
            [0],
            [0],
            page_tokens=64,
            row_bytes=32,
            stream=None,
        )


def test_a_backup_sees_the_producers_rows_and_the_next_forward_waits_for_it(device, settle):
    rows, rounds = 4096, 5
    layer = torch.zeros(rows, 1152, dtype=torch.uint8, device=device)
    ids = torch.arange(0, rows, 1 if device == "cuda" else 64, device=device)
    count = torch.tensor([len(ids)], dtype=torch.int32, device=device)
    backups = backup.BackupStream(device)
    main = torch.cuda.current_stream() if device == "cuda" else None
    with HostPool(1, rows, 1152) as pool:
        tables = pointer_table([layer]), pointer_table(pool.layers, device)
        sizes = {"row_bytes": 1152, "num_layers": 1, "device_rows": rows, "host_rows": rows}
        for value in range(1, rounds + 1):
            backups.hold(main)
            layer.fill_(255)
            layer.fill_(value)
            with backups.after(main, layer, ids, count):
                backup.backup_rows(*tables, ids, ids, count, **sizes)
            backups.hold(main)
            layer.fill_(254)
            settle()
            assert bool((pool.layers[0][ids.cpu()] == value).all())


def test_a_backup_forked_inside_a_graph_is_joined_there(device, settle, captured):
    layer = torch.zeros(64, 656, dtype=torch.uint8, device=device)
    ids, count = torch.arange(64, device=device), torch.tensor([64], dtype=torch.int32, device=device)
    value = torch.tensor(3, dtype=torch.uint8, device=device)
    backups = backup.BackupStream(device)
    with HostPool(1, 64, 656) as pool:
        tables = pointer_table([layer]), pointer_table(pool.layers, device)
        sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": 64, "host_rows": 64}

        def step():
            layer.copy_(value.expand(64, 656))
            with backups.after(None, layer, ids, count):
                backup.backup_rows(*tables, ids, ids, count, **sizes)
            backups.hold()
            layer.zero_()

        replay = captured(step)
        value.fill_(9)
        replay()
        settle()
        assert bool((pool.layers[0] == 9).all())
        assert not layer.any()


def test_a_backup_that_fails_halfway_is_still_waited_for(device):
    backups = backup.BackupStream(device)
    main = torch.cuda.current_stream() if device == "cuda" else None
    with pytest.raises(RuntimeError, match="halfway"), backups.after(main):
        raise RuntimeError("halfway")
    assert (backups.event is None) == (device == "cpu")
    backups.hold(main)
