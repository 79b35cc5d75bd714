"""Reported bugs of other engines' swap-in: which ids, lengths, states and plans went wrong there (T20 to T32)."""

import pytest
import torch

from hsplan_kernels import backup, swap_in
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import pointer_table


@pytest.mark.parametrize(
    "ids",
    [[3, 5, -1, -1, -1, -1, -1, -1], [3, -1, 5, -1, -1, 9, -1, 0], [-1, -1, -1, -1, -1, -1, -1, 15], [-1] * 8],
    ids=["tail", "middle", "head", "whole row"],
)
def test_minus_one_gives_minus_one_wherever_it_stands(pair, ids):
    requests = pair(requests=2)
    second = [24 + token if token >= 0 else -1 for token in ids]  # behind the 16 slots and the page of 8 of the first
    assert requests.step([ids, ids], lengths=[16, 40]) == [ids, second]
    assert requests.plan.counts.tolist() == [0, 0]


def test_minus_one_between_misses_is_not_counted_as_one(pair):
    requests = pair()
    found = requests.step([[-1, 30, -1, 31, 63, -1, 2, -1]])[0]
    assert requests.plan.counts.tolist() == [2]
    assert [found[i] for i in (0, 2, 5, 7)] == [-1, -1, -1, -1]
    assert found[4] == 16
    assert found[6] == 2


@pytest.mark.parametrize(
    ("ids", "misses"),
    [
        ([30, 30, 31, 2], 2),
        ([30] * 8, 1),
        ([2] * 8, 0),
        ([63, 63, 63, 30, 30, 2, 2, -1], 1),
        ([62, 63, 62, 63, 62, 63, 62, 63], 1),
    ],
    ids=["pair", "all equal", "all equal and resident", "newest", "newest and the one before"],
)
def test_duplicates_share_one_row_and_load_once(pair, ids, misses):
    requests = pair()
    found = requests.step([ids])[0][: len(ids)]
    assert requests.plan.counts.tolist() == [misses]
    assert len(set(found)) == len(set(ids))
    assert [dict(zip(ids, found, strict=True))[token] for token in ids] == found
    assert requests.step([ids])[0][: len(ids)] == found
    assert requests.plan.counts.tolist() == [0]
    assert sum(token >= 16 for token in requests.state.slot_tokens[0].tolist()) == misses


def test_four_speculative_steps_are_one_working_set(pair):
    requests = pair(slots=32, top_k=32)
    first, second = [40, 41, 42, 43, 44, 45, 46, 1], [40, 41, 42, 43, 44, 45, 47, 2]
    third, fourth = [40, 41, 42, 48, 49, 45, 47, 63], [40] * 8
    found = requests.step([[*first, *second, *third, *fourth]])[0]
    assert requests.plan.counts.tolist() == [10]
    assert found[0] == found[8] == found[16] == found[24] == found[31]
    assert found[23] == 32
    assert requests.step([[*first, *second, *third, *fourth]])[0] == found


def test_a_working_set_above_the_slots_is_refused(pair):
    with pytest.raises(ValueError, match="top-k 32 with 16 slots"):
        pair(slots=16, top_k=32).resolve([[0]])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 15, 16, 17, 18, 64, 65])
def test_every_length_around_top_k_and_slots_equals_the_reference(pair, length):
    requests = pair()
    edges = [0, 1, 6, 7, 8, 14, 15, 16, 17, 18, 62, 63, 64, 65, -1, 2]
    for ids in (edges[:8], edges[8:], edges[:8]):
        found = requests.step([ids], lengths=[length])[0]
        for token, row in zip(ids, found, strict=True):
            assert (row >= 0) == (0 <= token < length and token < 64)


def test_a_request_that_outgrows_its_slots_keeps_every_row(pair, device):
    slots, newest_row = 8, 8
    requests = pair(tokens=24, slots=slots, top_k=4)
    requests.rows.view.fill_(0xEE)
    rows, host = requests.rows.view, requests.host
    truth = host.clone()
    host.fill_(0xDD)
    tables = pointer_table([rows]), pointer_table([host], device)
    sizes = {"row_bytes": 48, "num_layers": 1, "device_rows": len(rows), "host_rows": len(host)}
    one = torch.ones(1, dtype=torch.int32, device=device)
    dice = torch.Generator().manual_seed(3)
    loads = 0
    for length in range(1, 25):
        newest = length - 1
        device_row = newest if length <= slots else newest_row
        rows[device_row] = truth[newest].to(device)
        ids = [*torch.randperm(length, generator=dice)[:3].tolist(), newest]
        found = requests.resolve([ids], lengths=[length])[0][: len(ids)]
        swap_in.copy_planned(requests.plan, host, rows)
        loads += int(requests.plan.counts)
        assert torch.equal(rows.cpu()[found], truth[ids]), f"length {length}"
        taken = (torch.tensor([row], device=device) for row in (device_row, newest))
        backup.backup_rows(*tables, *taken, one, **sizes)
    assert loads > 10
    assert requests.rows.intact()


def test_the_newest_token_neither_loads_nor_evicts(pair):
    requests = pair()
    before = requests.copy()
    assert requests.step([[63]])[0] == [16, -1, -1, -1, -1, -1, -1, -1]
    assert torch.equal(requests.state.slot_steps.cpu(), before.slot_steps)
    assert torch.equal(requests.state.slot_tokens.cpu(), before.slot_tokens)


def test_a_token_that_was_the_newest_is_loaded_once_it_is_not(pair):
    requests = pair()
    assert requests.step([[40, 3]], lengths=[41])[0][:2] == [16, 3]
    assert requests.plan.counts.tolist() == [0]
    found = requests.step([[40, 41]], lengths=[42])[0]
    assert requests.plan.counts.tolist() == [1]
    assert found[0] != 16
    assert found[1] == 16


def resize_launches(monkeypatch, module, value):
    names = [name for name in vars(module) if name.endswith(("PROGRAMS", "ROWS", "WARPS", "UNITS_PER_TILE"))]
    assert names
    for name in names:
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("value", [1, 2, 8])
def test_swap_in_does_the_same_at_other_launch_sizes(pair, monkeypatch, value):
    resize_launches(monkeypatch, swap_in, value)
    requests = pair(requests=2)
    for first in (20, 28, 24):
        requests.step([list(range(first, first + 8)), [first, 5, 63]])


@pytest.mark.parametrize("value", [1, 2, 8])
def test_backup_does_the_same_at_other_launch_sizes(device, guarded, settle, monkeypatch, value, noise):
    resize_launches(monkeypatch, backup, value)
    layers = [noise(9, 48, seed=layer) for layer in (1, 2)]
    sources = [layer.to(device) for layer in layers]
    with HostPool(2, 9, 48) as pool:
        tables = pointer_table(sources), pointer_table(pool.layers, device)
        src, dst = guarded(values=torch.tensor([0, 8, 3])), guarded(values=torch.tensor([8, 0, 5]))
        count = torch.tensor([3], dtype=torch.int32, device=device)
        sizes = {"row_bytes": 48, "num_layers": 2, "device_rows": 9, "host_rows": 9}
        backup.backup_rows(*tables, src.view, dst.view, count, **sizes)
        settle()
        for host, layer in zip(pool.layers, layers, strict=True):
            assert torch.equal(host[[8, 0, 5]], layer[[0, 8, 3]])
            assert not host[[1, 2, 3, 4, 6, 7]].any()


def test_ids_that_are_equal_modulo_a_power_of_two_are_told_apart(pair):
    requests = pair(tokens=140_000, row_bytes=16)
    far = [5, 5 + 4096, 5 + 32_768, 5 + 65_536, 5 + 131_072, 15 + 65_536, 139_998, 139_999]
    for _ in range(2):
        found = requests.step([far])[0]
        assert len(set(found)) == 8
        assert found[0] == 5
        assert found[7] == 16
    assert requests.plan.counts.tolist() == [0]


def test_ids_near_2_to_the_31_are_outside_of_every_request(pair):
    edges = [2**31 - 1, 2**31 - 2, 2**31 - 16, -(2**31), -(2**31) + 1, 2**30, 2**16 + 3, 2**24 + 3]
    requests = pair(requests=2)
    assert requests.step([edges, edges], lengths=[2**31 - 1, 16]) == [[-1] * 8, [-1] * 8]
    assert requests.plan.counts.tolist() == [0, 0]


def test_a_token_without_a_host_row_gives_minus_one_and_takes_no_slot(pair):
    host_rows = torch.arange(64).view(1, 64)
    host_rows[0, 20:28] = torch.tensor([-1, -2, -(2**31), -(2**63), 50, 2**31, 2**32 + 1, 2**63 - 1])
    requests = pair(host_rows=host_rows.clamp(-1, 64), host_limit=50)
    requests.state.host_rows.copy_(host_rows)
    requests.wanted.host_rows.copy_(host_rows)
    before = requests.copy()
    assert requests.resolve([[20, 21, 22, 23, 24, 25, 26, 27]])[0] == [-1] * 8
    assert requests.plan.counts.tolist() == [0]
    for name in ("slot_tokens", "slot_steps", "token_slots"):
        assert torch.equal(getattr(requests.state, name).cpu(), getattr(before, name)), name
    found = requests.step([[20, 49, 50, 27, 51, 28, 0, 48]])[0]
    assert [row >= 0 for row in found] == [False, True, False, False, False, True, True, True]


def test_a_warm_up_batch_of_padding_alone_changes_nothing(pair):
    requests = pair(requests=40)
    before = requests.copy()
    assert requests.step([list(range(20, 28))] * 40, real=0) == [[-1] * 8] * 40
    assert requests.plan.counts.tolist() == [0] * 40
    assert torch.equal(requests.state.slot_tokens.cpu(), before.slot_tokens)
