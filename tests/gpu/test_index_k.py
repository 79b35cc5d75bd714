"""Index-K: keys and scales in their pages, in the layers that have any, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan_kernels import index_k
from hsplan_kernels import reference_moves as reference
from hsplan_kernels.memory import pointer_table

POISON = 0xA5
PAGES = (3, 0, 2, 0, 4)  # layers 1 and 3 are elided
GARBAGE = (0, 0x10, -1, 2**62)  # what a table may hold for an elided layer


def noise(*shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def distinct(n, slots, seed):
    return torch.randperm(slots, generator=torch.Generator().manual_seed(seed))[:n]


def entries(layers, n):
    """Keys and scales; the scales any 32 bits, NaNs with a payload included."""
    return noise(layers, n, 128, seed=1), noise(layers, n, 4, seed=2).view(torch.float32).view(layers, n)


@pytest.fixture(scope="session")
def check(device, guarded, settle):
    """Call kernel and reference on equal poisoned or filled layers, compare every byte and the guard bands."""

    def run(name, arrays, count, *, pages=PAGES, garbage=0, filled=False):
        contents = [
            noise(n, 8448, seed=layer) if filled else torch.full((n, 8448), POISON, dtype=torch.uint8)
            for layer, n in enumerate(pages)
        ]
        layers = [guarded(values=values) for values in contents]
        ids = sum(not array.is_floating_point() and array.dtype != torch.uint8 for array in arrays)
        tail = torch.zeros(40, dtype=arrays[0].dtype)  # past the end lie slots that would be written
        inputs = [guarded(values=torch.cat([slots, tail])) for slots in arrays[:ids]]
        inputs += [guarded(values=values) for values in (*arrays[ids:], int32(count))]
        views = [array.view[: len(arrays[0])] for array in inputs[:ids]] + [array.view for array in inputs[ids:]]
        table = pointer_table([layer.view for layer in layers], device)
        assert not table[torch.tensor(pages, device=device) == 0].any()
        table[torch.tensor(pages, device=device) == 0] = garbage
        getattr(index_k, name)(table, int32(*pages).to(device), *views, num_layers=len(pages))
        settle()
        getattr(reference, name)(pointer_table(contents), int32(*pages), *arrays, int32(count), num_layers=len(pages))
        for layer, want in enumerate(contents):
            assert torch.equal(layers[layer].view.cpu(), want), f"layer {layer}"
        for view, values in zip(views, arrays, strict=False):
            assert torch.equal(view.cpu().view(torch.uint8), values.view(torch.uint8))
        assert all(array.intact() for array in [*layers, *inputs])
        return contents

    return run


@pytest.mark.parametrize("garbage", GARBAGE, ids=hex)
@pytest.mark.parametrize("n", [1, 63, 65, 100])
def test_keys_and_scales_are_stored_in_layers_with_pages_only(check, n, garbage):
    check("store_index_k", (distinct(n, 128, 3), *entries(len(PAGES), n)), n, garbage=garbage)


def test_a_page_holds_64_keys_and_then_64_scales(check):
    keys, scales = entries(1, 1)
    (layer,) = check("store_index_k", (torch.tensor([65]), keys, scales), 1, pages=(2,))
    assert 64 * 128 + 64 * 4 == 8448
    assert torch.equal(layer[1, 128:256], keys[0, 0])
    assert torch.equal(layer[1, 8192 + 4 : 8192 + 8], scales[0].view(torch.uint8))
    assert int((layer != POISON).sum()) <= 128 + 4


def test_each_layer_skips_the_slots_past_its_own_pages(check):
    slots = torch.tensor([-1, 0, 127, 128, 191, 192, 255, 256, -(2**63), 2**31, 2**32, 2**63 - 1])
    contents = check("store_index_k", (slots, *entries(len(PAGES), len(slots))), len(slots))
    written = [int((layer.view(-1)[: n * 8448] != POISON).any()) for layer, n in zip(contents, PAGES, strict=True)]
    assert written == [1, 0, 1, 0, 1]
    assert bool((contents[2][1, :8064] == POISON).all()), "slot 127 only, in page 1 of a layer of two pages"


@pytest.mark.parametrize("count", [0, 1, 32, 33, 64, 65, 66, 2**31 - 1, -1])
def test_entries_past_the_count_are_padding(check, count):
    check("store_index_k", (distinct(65, 128, 4), *entries(len(PAGES), 65)), count)
    slots = distinct(128, 128, 5)
    check("move_index_k", (slots[:64], slots[64:]), count, filled=True)


@pytest.mark.parametrize("garbage", GARBAGE, ids=hex)
@pytest.mark.parametrize("n", [1, 31, 33, 63])
def test_keys_and_scales_move_together_in_layers_with_pages_only(check, n, garbage):
    slots = distinct(2 * n, 128, 6)
    check("move_index_k", (slots[:n], slots[n:]), n, garbage=garbage, filled=True)


def test_a_move_with_either_end_outside_a_layer_is_skipped_there(check):
    src = torch.tensor([-1, 0, 1, 130, 200, 2, 256, 3, -(2**63), 4])
    dst = torch.tensor([5, -1, 131, 6, 7, 201, 8, 256, 9, 2**63 - 1])
    check("move_index_k", (src, dst), len(src), filled=True)


def test_int32_slots_do_as_well(check):
    check("store_index_k", (distinct(40, 128, 7).int(), *entries(len(PAGES), 40)), 40)
    slots = distinct(66, 128, 8).int()
    check("move_index_k", (slots[:33], slots[33:]), 33, filled=True)


def test_no_slots_and_no_owner_layers_change_nothing(check):
    empty = torch.empty(0, dtype=torch.int64)
    check("store_index_k", (empty, *entries(len(PAGES), 0)), 0)
    check("move_index_k", (empty, empty), 0)
    check("store_index_k", (torch.arange(5), *entries(2, 5)), 5, pages=(0, 0), garbage=0x10)


@settings(max_examples=25)
@given(data=st.data())
def test_drawn_slots_agree_with_the_reference(check, data):
    pages = tuple(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5)))
    ids = st.one_of(st.integers(-2, 200), st.sampled_from([-(2**63), 2**31 - 1, 2**32, 2**63 - 1]))
    slots = torch.tensor(data.draw(st.lists(ids, min_size=2, max_size=80, unique=True)))
    count, garbage = data.draw(st.integers(-1, 82)), data.draw(st.sampled_from(GARBAGE))
    check("store_index_k", (slots, *entries(len(pages), len(slots))), count, pages=pages, garbage=garbage)
    half = len(slots) // 2
    check("move_index_k", (slots[:half], slots[half : 2 * half]), count, pages=pages, garbage=garbage, filled=True)


def test_slots_on_either_side_of_2_gib_are_told_apart(device, settle):
    pages = 254_201  # 254,200 · 8448 < 2^31 < 254,201 · 8448
    layer = torch.empty(pages, 8448, dtype=torch.uint8, device=device)
    slots = torch.tensor([0, 254_200 * 64 - 1, 254_200 * 64, 254_201 * 64 - 1])
    keys, scales = (array.to(device) for array in entries(1, 4))
    table, counts = pointer_table([layer]), int32(pages).to(device)
    index_k.store_index_k(table, counts, slots.to(device), keys, scales, int32(4).to(device), 1)
    moved = slots + torch.tensor([1, -1, 1, -1])
    index_k.move_index_k(table, counts, slots.to(device), moved.to(device), int32(4).to(device), 1)
    settle()
    for place in (slots, moved):
        for i, slot in enumerate(place.tolist()):
            page, token = layer[slot // 64].cpu(), slot % 64
            assert torch.equal(page[token * 128 :][:128], keys[0, i].cpu())
            assert torch.equal(page[8192 + token * 4 :][:4], scales[0, i : i + 1].cpu().view(torch.uint8))


def test_a_replay_takes_slots_and_count_as_they_are_then(device, settle, captured):
    layer = torch.zeros(1, 8448, dtype=torch.uint8, device=device)
    keys, scales = (array.to(device) for array in entries(1, 3))
    slots, count = torch.zeros(3, dtype=torch.int64, device=device), int32(0).to(device)
    table, counts = pointer_table([layer]), int32(1).to(device)
    replay = captured(lambda: index_k.store_index_k(table, counts, slots, keys, scales, count, 1))
    settle()
    assert not layer.any()
    slots.copy_(torch.tensor([9, 63, 2]))
    count.fill_(2)
    replay()
    settle()
    wanted = torch.zeros(1, 8448, dtype=torch.uint8)
    arguments = torch.tensor([9, 63, 2]), keys.cpu(), scales.cpu(), int32(2)
    reference.store_index_k(pointer_table([wanted]), int32(1), *arguments, 1)
    assert torch.equal(layer.cpu(), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(2, 5, 128, dtype=torch.uint8)}, r"contiguous uint8 \[2, 4, 128\]"),
        ({"keys": torch.zeros(2, 4, 128)}, r"contiguous uint8 \[2, 4, 128\]"),
        ({"keys": torch.zeros(2, 4, 256, dtype=torch.uint8)[..., ::2]}, r"contiguous uint8 \[2, 4, 128\]"),
        ({"scales": torch.zeros(2, 4, dtype=torch.float16)}, r"contiguous float32 \[2, 4\]"),
        ({"scales": torch.zeros(4, 2)}, r"contiguous float32 \[2, 4\]"),
        ({"page_counts": int32(1)}, r"page_counts: int32 \[1\]: give contiguous int32 or int64 \[2\]"),
        ({"table": int32(1, 2)}, r"table: int32 \[2\]: give contiguous int64 \[2\]"),
        ({"count": int32(1, 1)}, r"count: int32 \[2\]: give contiguous int32 \[1\]"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    call = {
        "table": torch.zeros(2, dtype=torch.int64),
        "page_counts": int32(0, 0),
        "slots": torch.zeros(4, dtype=torch.int64),
        "keys": torch.zeros(2, 4, 128, dtype=torch.uint8),
        "scales": torch.zeros(2, 4),
        "count": int32(4),
        "num_layers": 2,
    }
    with pytest.raises(ValueError, match=message):
        index_k.store_index_k(**(call | change))


def test_moves_need_as_many_targets_as_sources():
    table, slots = torch.zeros(1, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"dst_slots: int64 \[2\]: give .* \[3\]"):
        index_k.move_index_k(table, int32(0), slots, slots[:2], int32(0), 1)
