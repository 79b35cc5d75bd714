"""Reported bugs of other engines: which bytes of which layer, page or piece a row is (T12 to T19)."""

import mmap

import pytest
import torch

from hsplan_kernels import backup, host_pool, index_k, swap_in
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import pointer_table
from hsplan_kernels.state import new_plan, new_state

MAP_NORESERVE = 0x4000
ROW_BYTES = 576
GIB = 2**30
# Last row that starts below the edge: 2^31, 2^32 and, in words of 8 bytes, 2^31.
EDGES = (3_728_270, 7_456_540, 29_826_161)


def int32(*values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def replayable(pairs, device):
    """A plan of one request that loads (host row, device row)."""
    plan = new_plan(1, 8, device)
    for i, (src, dst) in enumerate(pairs):
        plan.src[0, i], plan.dst[0, i] = src, dst
    plan.counts[0] = len(pairs)
    return plan


@pytest.fixture
def vast(device, monkeypatch):
    """Make a host pool whose memory, without a GPU, is taken only where it is written."""
    if device == "cpu":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        monkeypatch.setattr(host_pool, "_map", lambda size: mmap.mmap(-1, size, flags=flags))
        monkeypatch.setattr(host_pool, "_touch", lambda _: None)
    return lambda rows: HostPool(1, rows, ROW_BYTES, huge_pages=False)


def test_rows_around_2_gib_4_gib_and_16_gib_are_told_apart_in_both_directions(device, settle, vast, noise):
    assert all(e * 576 < limit < (e + 1) * 576 for e, limit in zip(EDGES, (2**31, 2**32, 2**34), strict=True))
    rows = (65 if device == "cpu" else 17) * GIB // ROW_BYTES
    at = [0, *(edge + side for edge in EDGES for side in (0, 1)), rows - 1]
    truth = noise(8, ROW_BYTES, seed=1)
    with vast(rows) as pool, vast(rows if device == "cpu" else 1) as stand_in:
        host = pool.layers[0]
        rows_on_device = stand_in.layers[0]
        if device == "cuda":
            rows_on_device = torch.zeros(rows, ROW_BYTES, dtype=torch.uint8, device=device)
        host[at] = truth
        # Tokens 20 to 27 lie at these rows; their 8 slots, all of request 1, lie across each edge in turn.
        host_rows = torch.zeros(2, 64, dtype=torch.int64)
        host_rows[1, 20:28] = torch.tensor(at)
        for first in (*(edge - 3 for edge in EDGES), rows - 8):
            state = new_state(host_rows, slots=8, page_tokens=first - 8, host_limit=rows, device=device)
            plan, out = new_plan(1, 8, device), int32(*[0] * 8, device=device).view(1, 8)
            one = int32(1, device=device)
            ids = int32(*range(20, 28), device=device).view(1, 8)
            swap_in.resolve(state, plan, ids, one, int32(64, device=device), one, one, out)
            swap_in.copy_planned(plan, host, rows_on_device)
            assert sorted(out[0].tolist()) == list(range(first, first + 8))
            assert torch.equal(rows_on_device[out[0].long()].cpu(), truth)
        host[at] = 0
        rows_on_device[at] = truth.flip(0).to(device)
        tables = pointer_table([rows_on_device]), pointer_table([host], device)
        places = torch.tensor(at, device=device)
        sizes = {"row_bytes": ROW_BYTES, "num_layers": 1, "device_rows": rows, "host_rows": rows}
        backup.backup_rows(*tables, places, places.roll(1), int32(8, device=device), **sizes)
        settle()
        assert torch.equal(host[at].roll(1, 0), truth.flip(0))


@pytest.mark.parametrize("row_bytes", [576, 656, 1040, 1152])
def test_rows_arrive_whole_from_and_to_any_multiple_of_16(device, guarded, settle, row_bytes, noise):
    count, sizes = int32(3, device=device), {"row_bytes": row_bytes, "num_layers": 1, "device_rows": 9, "host_rows": 11}
    for shift in (0, 16, 32, 64):
        with HostPool(1, 13, row_bytes) as pool:
            host = pool.layers[0].view(-1)[shift : shift + 11 * row_bytes].view(11, row_bytes)
            band = guarded(shift + 9 * row_bytes)
            rows = band.view[shift:].view(9, row_bytes)
            assert (host.data_ptr() % 128, (rows.data_ptr() - band.view.data_ptr()) % 128) == (shift, shift)
            host.copy_(noise(11, row_bytes, seed=shift))
            swap_in.copy_planned(replayable([(10, 0), (0, 8), (5, 3)], device), host, rows)
            assert torch.equal(rows[[0, 8, 3]].cpu(), host[[10, 0, 5]])
            assert bool((rows[[1, 2, 4, 5, 6, 7]] == 0xA5).all())
            truth = noise(9, row_bytes, seed=99)
            rows.copy_(truth)
            before = host.clone()
            tables = pointer_table([rows]), pointer_table([host], device)
            backup.backup_rows(*tables, int32(0, 8, 3, device=device), int32(10, 1, 5, device=device), count, **sizes)
            settle()
            assert torch.equal(host[[10, 1, 5]], truth[[0, 8, 3]])
            rest = [0, 2, 3, 4, 6, 7, 8, 9]
            assert torch.equal(host[rest], before[rest])
            assert not pool.layers[0].view(-1)[:shift].any()
            assert not pool.layers[0].view(-1)[shift + 11 * row_bytes :].any()
            assert band.intact()
            assert bool((band.view[:shift] == 0xA5).all())


@pytest.mark.parametrize("row_bytes", [20, 584, 1028, 1032])
def test_rows_that_are_no_multiple_of_16_are_refused_everywhere(device, row_bytes):
    rows, one = torch.zeros(4, row_bytes, dtype=torch.uint8, device=device), int32(1, device=device)
    with pytest.raises(ValueError, match=f"rows of {row_bytes} bytes: give a multiple of 16"):
        swap_in.copy_planned(new_plan(1, 4, device), rows.cpu(), rows)
    with pytest.raises(ValueError, match=f"rows of {row_bytes} bytes: give a multiple of 16"):
        backup.backup_rows(one, one, one, one, one, row_bytes=row_bytes, num_layers=1, device_rows=4, host_rows=4)
    with pytest.raises(ValueError, match=f"rows of {row_bytes} bytes: give a multiple of 16"):
        HostPool(1, 4, row_bytes)


def test_layers_that_share_a_plan_each_load_their_own_bytes(pair, guarded, device, noise):
    requests = pair()
    found = requests.step([[20, 21, 5, 63]])[0][:2]
    layers = []
    for layer in range(4):
        host, rows = noise(64, 48, seed=100 + layer), guarded(24, 48)
        swap_in.copy_planned(requests.plan, host.pin_memory() if device == "cuda" else host, rows.view)
        layers.append(rows.view[found].cpu())
        assert torch.equal(layers[-1], host[[20, 21]])
        assert rows.intact()
        assert int((rows.view != 0xA5).any(1).sum()) == 2
    assert len({bytes(layer.flatten().tolist()) for layer in layers}) == 4


def test_a_pipeline_stage_writes_the_layers_of_its_table_and_no_others(device, settle, noise):
    layers = [torch.zeros(5, 48, dtype=torch.uint8, device=device) for _ in range(6)]
    contents = [noise(5, 48, seed=layer).to(device) for layer in range(6)]
    pages = [torch.zeros(1, 8448, dtype=torch.uint8, device=device) for _ in range(6)]
    tables = pointer_table(contents), pointer_table(layers)
    slots, count = int32(0, 4, device=device), int32(2, device=device)
    sizes = {"row_bytes": 48, "num_layers": 3, "device_rows": 5, "host_rows": 5}
    backup.backup_rows(*(table[3:6] for table in tables), slots, slots, count, **sizes)
    keys, scales = noise(3, 2, 128, seed=7).to(device), torch.ones(3, 2, device=device)
    counts = int32(0, 0, 0, 1, 0, 1, device=device)
    index_k.store_index_k(pointer_table(pages)[3:6], counts[3:6], slots, keys, scales, count, 3)
    settle()
    assert [bool(layer.any()) for layer in layers] == [False, False, False, True, True, True]
    assert all(torch.equal(got[[0, 4]], want[[0, 4]]) for got, want in zip(layers[3:], contents[3:], strict=True))
    assert [bool(page.any()) for page in pages] == [False, False, False, True, False, True]
    assert torch.equal(pages[5][0, : 5 * 128].view(5, 128)[[0, 4]], keys[2])


@pytest.mark.parametrize("host_page", [1, 16, 64])
@pytest.mark.parametrize("device_page", [1, 64])
def test_pages_of_host_and_device_may_differ(pair, device_page, host_page):
    pages = torch.randperm(128 // host_page, generator=torch.Generator().manual_seed(host_page))
    host_rows = (pages[:, None] * host_page + torch.arange(host_page)).view(2, 64)
    requests = pair(host_rows=host_rows, page_tokens=device_page)
    found = requests.step([[63, 15, 16, 31, 32, 47, 48, 0], [63, 0, 62, -1, 17]])
    assert found[0][:2] == [16, 15]
    assert found[1][:2] == [16 + device_page + 16, 16 + device_page]


def test_the_last_token_of_a_page_and_the_first_of_the_next_keep_their_scales(device, settle, noise):
    layer = torch.zeros(3, 8448, dtype=torch.uint8, device=device)
    keys, scales = noise(1, 4, 128, seed=1).to(device), torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=device)
    table, counts = pointer_table([layer]), int32(3, device=device)
    index_k.store_index_k(
        table, counts, int32(63, 64, 127, 128, device=device), keys, scales, int32(4, device=device), 1
    )
    settle()
    pages = layer.cpu()
    assert [pages[page, 8192:].view(torch.float32).nonzero().flatten().tolist() for page in range(3)] == [
        [63],
        [0, 63],
        [0],
    ]
    assert pages[1, 8192:].view(torch.float32)[[0, 63]].tolist() == [2.0, 3.0]
    assert torch.equal(pages[1, 63 * 128 : 64 * 128], keys[0, 2].cpu())
    assert torch.equal(pages[2, :128], keys[0, 3].cpu())


@pytest.mark.parametrize("pages", [1, 100_000])
def test_one_page_and_very_many_scattered_pages_are_staged(device, settle, pages, noise):
    source = noise(pages, 16, seed=pages)
    with HostPool(1, pages, 16) as pool:
        backups = backup.BackupStream(device)
        order = list(range(pages - 1, -1, -1))
        on_device = source.to(device)
        with backups.after(None, on_device):
            backup.stage_pages(
                [on_device], pool.layers, range(pages), order, page_tokens=1, row_bytes=16, stream=backups.stream
            )
        settle()
        assert torch.equal(pool.layers[0], source.flip(0))


def test_rows_on_both_sides_of_a_registered_piece_are_copied_in_both_directions(device, settle, noise):
    source = noise(600, 656, seed=2).to(device)
    with HostPool(1, 600, 656, piece_bytes=41 * 4096) as pool:
        assert pool.piece_rows == 256
        (host,) = pool.layers
        backups = backup.BackupStream(device)
        with backups.after(None, source):
            # Pages of 48 rows: page 5 is rows 240 to 287, page 10 rows 480 to 527.
            backup.stage_pages(
                [source], pool.layers, range(12), range(12),
                page_tokens=48, row_bytes=656, stream=backups.stream, piece_rows=pool.piece_rows,
            )  # fmt: skip
        settle()
        assert torch.equal(host[:576], source[:576].cpu())
        rows = torch.zeros(8, 656, dtype=torch.uint8, device=device)
        swap_in.copy_planned(replayable([(255, 0), (256, 1), (511, 2), (512, 3)], device), host, rows)
        assert torch.equal(rows[:4], source[[255, 256, 511, 512]])
        tables = pointer_table([source]), pointer_table([host], device)
        sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": 600, "host_rows": 600}
        edge = int32(255, 256, 511, 512, device=device)
        backup.backup_rows(*tables, int32(1, 2, 3, 4, device=device), edge, int32(4, device=device), **sizes)
        settle()
        assert torch.equal(host[[255, 256, 511, 512]], source[1:5].cpu())
