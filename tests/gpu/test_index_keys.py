"""Index keys of whole layers: what is wrong is counted, key by key, and every byte outside is noticed."""

import pytest
import torch

from hsplan.gpu.index_keys import POISON, IndexKeys

PAGES = (4, 0, 4)  # the layer in the middle is elided
TOKENS = (100, 7)
SLOTS = (0, 64 + 63)  # the first of a page, and the last of the next


def layers_of(pages, device):
    return [torch.zeros((count, 8448), dtype=torch.uint8, device=device) for count in pages]


@pytest.fixture
def ints(device):
    return lambda values: torch.tensor(values, dtype=torch.int32, device=device)


@pytest.fixture
def slots(device):
    return lambda values: torch.tensor(values, dtype=torch.int64, device=device)


@pytest.fixture
def keys(device, ints, slots):
    """Keys of a token of each of two requests, stored."""
    found = IndexKeys(layers_of(PAGES, device), 2)
    found.store(ints(TOKENS), slots(SLOTS))
    return found


def test_stored_keys_are_right_in_every_layer(keys, ints, slots):
    assert keys.wrong_keys(ints(TOKENS), slots(SLOTS)) == 0


def test_keys_in_each_others_slots_are_wrong(keys, ints, slots):
    assert keys.wrong_keys(ints(TOKENS), slots((127, 0))) == 4


def test_keys_of_another_token_are_wrong(keys, ints, slots):
    assert keys.wrong_keys(ints((100, 8)), slots(SLOTS)) == 2


def test_a_key_with_one_other_byte_is_wrong(keys, ints, slots):
    keys.layers[2][1, 63 * 128 + 127] ^= 1
    assert keys.wrong_keys(ints(TOKENS), slots(SLOTS)) == 1


def test_a_scale_with_one_other_bit_is_wrong(keys, ints, slots):
    keys.layers[0][0, 64 * 128] ^= 1
    assert keys.wrong_keys(ints(TOKENS), slots(SLOTS)) == 1


def test_the_keys_of_another_layer_are_wrong(keys, ints, slots):
    keys.layers[0].copy_(keys.layers[2])
    assert keys.wrong_keys(ints(TOKENS), slots(SLOTS)) == 2


def test_a_request_without_a_slot_is_not_looked_at(keys, ints, slots):
    assert keys.wrong_keys(ints((100, 9999)), slots((0, -1))) == 0


def test_moved_keys_lie_in_their_new_slots_and_still_in_the_old(keys, ints, slots):
    keys.move(slots(SLOTS), slots((200, 255)))
    assert keys.wrong_keys(ints(TOKENS), slots((200, 255))) == 0
    assert keys.wrong_keys(ints(TOKENS), slots(SLOTS)) == 0


def test_a_key_that_is_moved_nowhere_is_not_moved(keys, ints, slots):
    keys.move(slots(SLOTS), slots((200, -1)))
    assert keys.wrong_keys(ints(TOKENS), slots((200, -1))) == 0
    assert keys.wrong_keys(ints(TOKENS), slots((200, 255))) == 2


def test_nothing_but_the_keys_is_touched(keys, slots):
    keys.forget(slots(SLOTS))
    assert keys.touched_bytes() == 0


def test_what_was_not_forgotten_is_touched(keys, slots):
    before = keys.touched_bytes()
    assert 0.9 * 2 * 2 * 132 < before <= 2 * 2 * 132  # a byte of a key may be poison by chance
    keys.forget(slots((0, -1)))
    assert 0.8 * 2 * 132 < keys.touched_bytes() <= 2 * 132


@pytest.mark.parametrize(("layer", "page", "byte"), [(0, 3, 8447), (2, 0, 128), (2, 2, 8192)])
def test_a_byte_written_outside_of_the_keys_is_noticed(keys, slots, layer, page, byte):
    keys.layers[layer][page, byte] = POISON ^ 1
    keys.forget(slots(SLOTS))
    assert keys.touched_bytes() == 1


def test_an_elided_layer_stays_without_pages(keys):
    assert [tuple(layer.shape) for layer in keys.layers] == [(4, 8448), (0, 8448), (4, 8448)]


def test_an_elided_layer_that_is_written_spoils_the_keys_of_its_owner(device, ints, slots):
    keys = IndexKeys(layers_of(PAGES, device), 2, "elided-layer-written")
    wrong = 0
    for at in range(64):  # layer 1 writes into layer 0: on a GPU either may come last
        keys.store(ints(TOKENS), slots((at, 64 + at)))
        wrong += keys.wrong_keys(ints(TOKENS), slots((at, 64 + at)))
    assert 1 <= wrong <= 128
