"""Plain gather and scatter of rows: every byte that must move, and none that must not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan_kernels import gather, host_pool
from hsplan_kernels import reference_moves as reference
from hsplan_kernels.host_pool import HostPool

POISON = 0x5A  # not that of the guard bands: a row read from there shows
ROW_BYTES = (16, 576, 656, 1152)
HOST_ROWS = 130


def noise(*shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def drawn(n, rows, seed):
    return torch.randint(0, rows, (n,), generator=torch.Generator().manual_seed(seed))


def distinct(n, rows, seed):
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:n]


@pytest.fixture(scope="session")
def gathered(guarded, settle):
    """Gather with the kernel, then with the reference; compare every byte, those that must not change too."""

    def run(rows, row_bytes, *, host_rows=HOST_ROWS, spare=3):
        contents = noise(host_rows, row_bytes, seed=1)
        target = guarded(values=torch.full((len(rows) + spare, row_bytes), POISON, dtype=torch.uint8))
        ids = guarded(values=torch.cat([rows, torch.zeros(40, dtype=rows.dtype)]))  # past the end: rows that exist
        with HostPool(1, host_rows, row_bytes) as pool:
            pool.layers[0].copy_(contents)
            gather.gather_rows(pool.layers[0], target.view, ids.view[: len(rows)])
            settle()
            assert torch.equal(pool.layers[0], contents), "the host was written"
        wanted = torch.full((len(rows) + spare, row_bytes), POISON, dtype=torch.uint8)
        reference.gather_rows(contents, wanted, rows)
        got = target.view.cpu()
        assert torch.equal(got, wanted)
        assert target.intact()
        assert ids.intact()
        return got

    return run


@pytest.fixture(scope="session")
def scattered(guarded, settle):
    """Scatter with the kernel, then with the reference; compare every byte of the host, and around the device's."""

    def run(rows, row_bytes, *, host_rows=HOST_ROWS):
        contents = noise(len(rows) + 3, row_bytes, seed=2)
        source = guarded(values=contents)
        ids = guarded(values=torch.cat([rows, torch.zeros(40, dtype=rows.dtype)]))
        with HostPool(3, host_rows, row_bytes) as pool:  # the layers on either side are guard bands
            for layer in pool.layers:
                layer.fill_(POISON)
            gather.scatter_rows(source.view, pool.layers[1], ids.view[: len(rows)])
            settle()
            before, got, after = (layer.clone() for layer in pool.layers)
        wanted = torch.full((host_rows, row_bytes), POISON, dtype=torch.uint8)
        reference.scatter_rows(contents, wanted, rows)
        assert torch.equal(got, wanted)
        assert bool((before == POISON).all())
        assert bool((after == POISON).all())
        assert torch.equal(source.view.cpu(), contents), "the device was written"
        assert source.intact()
        assert ids.intact()
        return got

    return run


@pytest.mark.parametrize("row_bytes", ROW_BYTES, ids="{} B".format)
@pytest.mark.parametrize("n", [1, 63, 65, 100], ids="{} rows".format)
def test_rows_arrive_in_the_order_of_their_ids(gathered, n, row_bytes):
    gathered(drawn(n, HOST_ROWS, 3), row_bytes)


@pytest.mark.parametrize("row_bytes", ROW_BYTES, ids="{} B".format)
@pytest.mark.parametrize("n", [1, 63, 65, 100], ids="{} rows".format)
def test_rows_leave_to_where_their_ids_say(scattered, n, row_bytes):
    scattered(distinct(n, HOST_ROWS, 4), row_bytes)


@pytest.mark.parametrize("move", ["gathered", "scattered"])
def test_more_rows_than_one_round_of_all_programs(request, move):
    # 32 programs of 512 units, 36 of them a row: a round is 455.1 rows
    request.getfixturevalue(move)(distinct(500, 600, 5), 576, host_rows=600)


def test_ids_outside_the_host_leave_their_rows_alone(gathered):
    rows = torch.tensor([-1, 0, 129, 130, -2, 2**31, 2**40, -(2**31), -(2**63), 7, 2**63 - 1, 7])
    got = gathered(rows, 656)
    assert [i for i in range(12) if not (got[i] == POISON).all()] == [1, 2, 9, 11]
    assert torch.equal(got[9], got[11])


def test_ids_outside_the_host_write_nothing(scattered):
    rows = torch.tensor([-1, 0, 129, 130, -2, 2**31, 2**40, -(2**31), -(2**63), 7, 2**63 - 1])
    got = scattered(rows, 656)
    assert [i for i in range(130) if not (got[i] == POISON).all()] == [0, 7, 129]


def test_a_row_that_is_written_twice_gets_no_third_bytes(device, settle):
    source = torch.tensor([[1] * 656, [2] * 656], dtype=torch.uint8, device=device)
    with HostPool(1, 3, 656) as pool:
        gather.scatter_rows(source, pool.layers[0], torch.tensor([1, 1], device=device))
        settle()
        assert set(pool.layers[0][1].tolist()) <= {1, 2}
        assert not pool.layers[0][[0, 2]].any()


@pytest.mark.parametrize("move", ["gathered", "scattered"])
def test_int32_rows_do_as_well(request, move):
    request.getfixturevalue(move)(torch.tensor([5, 0, -1, 129, 130, 64], dtype=torch.int32), 656)


@pytest.mark.parametrize("move", ["gathered", "scattered"])
def test_no_rows_move_nothing(request, move):
    got = request.getfixturevalue(move)(torch.empty(0, dtype=torch.int64), 656)
    assert bool((got == POISON).all())


def test_a_device_array_of_exactly_n_rows_and_a_host_of_one_are_enough(gathered):
    gathered(torch.tensor([0, 0, 1]), 16, host_rows=1, spare=0)


@settings(max_examples=25)
@given(data=st.data())
def test_drawn_rows_agree_with_the_reference(gathered, scattered, data):
    ids = st.one_of(st.integers(-3, 60), st.sampled_from([-(2**63), 2**31 - 1, 2**32, 2**63 - 1]))
    row_bytes = 16 * data.draw(st.integers(1, 90))
    host_rows = data.draw(st.integers(1, 50))
    gathered(torch.tensor(data.draw(st.lists(ids, min_size=1, max_size=70))), row_bytes, host_rows=host_rows)
    once = data.draw(st.lists(ids, min_size=1, max_size=60, unique=True))
    scattered(torch.tensor(once), row_bytes, host_rows=host_rows)


def test_rows_on_either_side_of_2_gib_are_told_apart(device, settle, monkeypatch):
    monkeypatch.setattr(host_pool, "_touch", lambda _: None)
    rows, edge = 3_273_700, 3_273_603  # 3,273,603 · 656 < 2^31 < 3,273,604 · 656
    ids = torch.tensor([0, edge, edge + 1, rows - 1])
    contents = noise(4, 656, seed=8)
    with HostPool(1, rows, 656, huge_pages=False) as pool:
        gather.scatter_rows(contents.to(device), pool.layers[0], ids.to(device))
        settle()
        assert torch.equal(pool.layers[0][ids], contents)
        back = torch.zeros(4, 656, dtype=torch.uint8, device=device)
        gather.gather_rows(pool.layers[0], back, ids.flip(0).to(device))
        assert torch.equal(back.cpu().flip(0), contents)


def test_a_replay_takes_ids_and_bytes_as_they_are_then(device, settle, captured):
    target = torch.zeros(4, 656, dtype=torch.uint8, device=device)
    rows = torch.full((4,), -1, dtype=torch.int64, device=device)
    with HostPool(1, 9, 656) as pool:
        replay = captured(lambda: gather.gather_rows(pool.layers[0], target, rows))
        settle()
        assert not target.any()
        contents = noise(9, 656, seed=9)
        pool.layers[0].copy_(contents)
        rows.copy_(torch.tensor([8, 3, 3, -1]))
        replay()
        settle()
        assert torch.equal(target[:3].cpu(), contents[[8, 3, 3]])
        assert not target[3].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"host": torch.zeros(9, 20, dtype=torch.uint8)}, "rows of 20 bytes: give a multiple of 16"),
        ({"host": torch.zeros(9, 0, dtype=torch.uint8)}, "rows of 0 bytes: give a multiple of 16"),
        ({"device": torch.zeros(2, 32, dtype=torch.uint8)}, r"3 rows of 32 bytes do not fit .* of \[2, 32\]"),
        ({"device": torch.zeros(3, 48, dtype=torch.uint8)}, r"3 rows of 32 bytes do not fit .* of \[3, 48\]"),
        ({"rows": torch.zeros(3)}, r"rows: float32 \[3\]: give contiguous int32 or int64 \[3\]"),
        ({"host": torch.zeros(9, 32, dtype=torch.int8)}, r"host: int8 \[9, 32\]: give uint8"),
        ({"host": torch.zeros(9, 64, dtype=torch.uint8)[:, :32]}, "host is not contiguous"),
        ({"device": torch.zeros(104, dtype=torch.uint8)[8:].view(3, 32)}, "device starts at .*aligned to 16 bytes"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    call = {
        "host": torch.zeros(9, 32, dtype=torch.uint8),
        "device": torch.zeros(3, 32, dtype=torch.uint8),
        "rows": torch.zeros(3, dtype=torch.int64),
    } | change
    for move in (gather.gather_rows, gather.scatter_rows):
        with pytest.raises(ValueError, match=message):
            move(**call)
