"""The pattern of KV rows: kernels against plain torch, and that every part of the key changes the row."""

import pytest
import torch

from hsplan_kernels import pattern
from hsplan_kernels import reference_pattern as reference


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_the_first_words_of_a_row_are_those_worked_out_by_hand():
    # mix(0) = 0, so the row of layer 0, request 0, token 0 starts with mix(0) and mix(0x27D4EB2F) = 0xAA8B94BD.
    assert reference.row_of(0, 0, 0, 16)[:8].tolist() == [0, 0, 0, 0, 0xBD, 0x94, 0x8B, 0xAA]


@pytest.mark.parametrize("row_bytes", [16, 576, 656, 1152])
def test_rows_are_filled_as_the_reference_says_and_nothing_else_is(device, guarded, row_bytes):
    at = torch.tensor([[5, 0, 7], [3, -1, 10]])  # −1 and 10 are no rows
    tokens = ints(4, 9, -1, 70_000, 3, 5).view(2, 3)  # −1 is no token
    rows = guarded(10, row_bytes)
    expected = rows.view.cpu().clone()
    pattern.fill_rows(rows.view, at.to(device), tokens.to(device), ints(3, 1).to(device), 77)
    reference.fill_rows(expected, at, tokens, ints(3, 1), 77)
    assert torch.equal(rows.view.cpu(), expected)
    assert rows.intact()
    assert (expected[7] == 0xA5).all()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda rows: rows[9].add_(1), 0),  # row 9 belongs to no entry
        (lambda rows: rows[5, -1:].add_(1), 1),
        (lambda rows: rows[0, :1].add_(1), 1),
        (lambda rows: rows.copy_(rows.roll(1, 0)), 3),
    ],
)
def test_wrong_rows_are_counted_down_to_one_byte(device, change, wrong):
    at, tokens, requests = ints(5, 0, 3).view(1, 3).to(device), ints(8, 9, 11).view(1, 3).to(device), ints(2).to(device)
    rows = torch.zeros((10, 656), dtype=torch.uint8, device=device)
    pattern.fill_rows(rows, at, tokens, requests, 1)
    change(rows)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    pattern.count_wrong_rows(rows, at, tokens, requests, 1, count)
    assert count.tolist() == [wrong]
    plain = torch.zeros(1, dtype=torch.int32)
    reference.count_wrong_rows(rows.cpu(), at.cpu(), tokens.cpu(), requests.cpu(), 1, plain)
    assert plain.tolist() == [wrong]


def test_a_token_without_a_row_is_wrong_and_a_skipped_one_is_not(device):
    at, tokens = ints(-1, 10, 1).view(1, 3).to(device), ints(8, 9, 11).view(1, 3).to(device)
    rows = torch.zeros((10, 16), dtype=torch.uint8, device=device)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    pattern.count_wrong_rows(rows, at, tokens, ints(0).to(device), 0, count, skip=11)
    assert count.tolist() == [2]


@pytest.mark.parametrize("key", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2**20), (77, 127, 1_048_575)])
def test_layer_request_and_token_all_change_the_row(key):
    assert not torch.equal(reference.row_of(*key, 656), reference.row_of(0, 0, 0, 656))


def test_no_two_of_many_keys_share_a_row():
    rows = {
        bytes(reference.row_of(layer, request, token, 16).tolist())
        for layer in range(6)
        for request in range(6)
        for token in range(60)
    }
    assert len(rows) == 6 * 6 * 60


def test_shapes_that_do_not_fit_are_refused(device):
    rows = torch.zeros((4, 16), dtype=torch.uint8, device=device)
    one = torch.zeros((1, 2), dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="tokens"):
        pattern.fill_rows(rows, one, one[:, :1], one[0, :1], 0)
    with pytest.raises(ValueError, match="multiple of 16"):
        pattern.fill_rows(torch.zeros((4, 8), dtype=torch.uint8, device=device), one, one, one[0, :1], 0)
