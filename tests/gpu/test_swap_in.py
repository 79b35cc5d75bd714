"""Swap-in against its plain reference, step by step, and against outcomes written out by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsplan_kernels import address_order, reference, state, swap_in
from hsplan_kernels.state import new_plan, new_state

ROW_BYTES = 48
PAGE = 8


def on_cpu(state):
    """An independent copy, all tensors on the CPU."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return type(state)(**{k: v.cpu().clone() if torch.is_tensor(v) else v for k, v in fields.items()})


def ints(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Requests:
    """Requests with a host pool of random rows, a poisoned device pool, and one call for a whole step."""

    def __init__(self, device, guarded, host_rows, *, slots, top_k, batch, row_bytes=ROW_BYTES, host_limit=None):
        self.device, self.host_rows = device, host_rows
        pool = int(host_rows.max()) + 1
        dice = torch.Generator().manual_seed(5)
        self.host = torch.randint(0, 256, (pool, row_bytes), dtype=torch.uint8, generator=dice)
        if device == "cuda":
            self.host = self.host.pin_memory()
        self.state = new_state(host_rows, slots=slots, page_tokens=PAGE, host_limit=host_limit or pool, device=device)
        self.plan = new_plan(batch, top_k, device, pool_rows=pool)
        self.rows = guarded(host_rows.shape[0] * (slots + PAGE), row_bytes)
        self.out = guarded(batch, top_k, dtype=torch.int32)

    def step(self, now, top_k, request_rows, seq_lens, num_real):
        """Device rows of the ids."""
        to = self.device
        swap_in.resolve(
            self.state, self.plan, top_k.to(to), request_rows.to(to), seq_lens.to(to),
            ints(num_real, device=to), ints(now, device=to), self.out.view,
        )  # fmt: skip
        swap_in.copy_planned(self.plan, self.host, self.rows.view)
        assert self.rows.intact()
        assert self.out.intact()
        return self.out.view.cpu().clone()

    def holds(self, device_row, request_row, token):
        """Whether a device row has the bytes of the token."""
        return torch.equal(self.rows.view[device_row].cpu(), self.host[self.host_rows[request_row, token]])


def identity(requests, tokens):
    """Host row of token t of request r: r · tokens + t."""
    return torch.arange(requests * tokens, dtype=torch.int64).view(requests, tokens)


@pytest.fixture
def four_slots(device, guarded):
    """One request with 4 LRU slots, top-k of 4, 40 tokens of which 0 to 3 are resident."""
    return Requests(device, guarded, identity(1, 40), slots=4, top_k=4, batch=1)


def test_the_least_recently_used_make_room(four_slots):
    requests = four_slots

    def call(now, *ids):
        return requests.step(now, ints(*ids).view(1, 4), ints(0), ints(40), 1)[0].tolist()

    assert call(1, 0, 1, -1, -1) == [0, 1, -1, -1]
    # Tokens 2 and 3 have not been used: they go first, and leave slots 2 and 3.
    assert sorted(call(2, 20, 21, -1, -1)[:2]) == [2, 3]
    # Now 0 and 1 are the oldest; 0, the smaller, goes for one miss.
    assert call(3, 30, -1, -1, -1) == [0, -1, -1, -1]
    assert requests.holds(0, 0, 30)
    assert call(4, 1, 0, -1, -1)[0] == 1
    assert requests.plan.counts.tolist() == [1]
    # Of 20 and 21, used at the same step, the smaller token went.
    assert sorted(requests.state.slot_tokens[0].tolist()) == [0, 1, 21, 30]


@pytest.mark.parametrize(
    ("ids", "counts"),
    [
        ((-1, -1, -1, -1), 0),
        ((-2, -(2**31), 2**31 - 1, 40), 0),  # outside of the request
        ((7, 7, 7, 7), 1),  # loads once
        ((39, 39, 2, 2), 0),  # the newest has its own slot
        ((9, 8, 7, 6), 4),  # all of the slots
    ],
)
def test_adversarial_ids(device, guarded, ids, counts):
    requests = Requests(device, guarded, identity(1, 40), slots=4, top_k=4, batch=1)
    found = requests.step(1, ints(*ids).view(1, 4), ints(0), ints(40), 1)[0].tolist()
    assert requests.plan.counts.tolist() == [counts]
    for token, device_row in zip(ids, found, strict=True):
        if not 0 <= token < 40:
            assert device_row == -1
        elif token == 39:
            assert device_row == 4
        elif token >= 4:
            assert requests.holds(device_row, 0, token)
        else:
            assert device_row == token


def test_a_token_that_is_on_neither_side_takes_no_slot(device, guarded):
    host_rows = identity(1, 40)
    host_rows[0, 10] = -1
    requests = Requests(device, guarded, host_rows, slots=4, top_k=4, batch=1, host_limit=30)
    found = requests.step(1, ints(10, 35, 11, -1).view(1, 4), ints(0), ints(40), 1)[0].tolist()
    assert found[:2] == [-1, -1]
    assert requests.holds(found[2], 0, 11)
    assert requests.plan.counts.tolist() == [1]


def test_a_request_without_tokens_gives_nothing(device, guarded):
    requests = Requests(device, guarded, identity(1, 40), slots=4, top_k=4, batch=1)
    assert requests.step(1, ints(-1, 0, -2, 3).view(1, 4), ints(0), ints(0), 1)[0].tolist() == [-1, -1, -1, -1]


def test_a_batch_smaller_than_the_plan_leaves_nothing_of_the_last_one(device, guarded):
    requests = Requests(device, guarded, identity(2, 40), slots=4, top_k=4, batch=2)
    requests.step(1, ints(10, 11, 12, 13, 20, 21, 22, 23).view(2, 4), ints(0, 1), ints(40, 40), 2)
    assert requests.plan.counts.tolist() == [4, 4]
    requests.out = guarded(1, 4, dtype=torch.int32)
    requests.step(2, ints(30, -1, -1, -1).view(1, 4), ints(1), ints(40), 1)
    assert requests.plan.counts.tolist() == [1, 0]


def test_requests_that_begin_with_empty_slots_fill_them(device, guarded):
    requests = Requests(device, guarded, identity(1, 40), slots=8, top_k=4, batch=1)
    requests.state.slot_tokens[0, 3:] = -1
    requests.state.token_slots[0, 3:] = -1
    found = requests.step(1, ints(0, 10, 11, 12).view(1, 4), ints(0), ints(40), 1)[0].tolist()
    # The empty ones of slots 3 to 7 serve, whatever three of them; tokens 1 and 2 stay.
    assert found[0] == 0
    assert set(found[1:]) < set(range(3, 8))
    assert sorted(requests.state.slot_tokens[0].tolist()) == [-1, -1, 0, 1, 2, 10, 11, 12]
    assert [requests.holds(row, 0, token) for row, token in zip(found[1:], (10, 11, 12), strict=True)] == [True] * 3


def test_more_empty_slots_than_misses_stay_inside_the_plan(device, guarded):
    requests = Requests(device, guarded, identity(1, 40), slots=16, top_k=4, batch=1)
    requests.state.slot_tokens[0] = -1
    requests.state.token_slots[0] = -1
    scratch = guarded(1, 4, dtype=torch.int64)
    requests.plan = dataclasses.replace(requests.plan, scratch=scratch.view)
    found = requests.step(1, ints(30, 31, -1, -1).view(1, 4), ints(0), ints(40), 1)[0].tolist()
    assert [requests.holds(row, 0, token) for row, token in zip(found[:2], (30, 31), strict=True)] == [True] * 2
    assert scratch.intact()


@pytest.mark.parametrize("in_order", [False, True])
def test_a_program_copies_row_after_row(device, guarded, monkeypatch, in_order):
    monkeypatch.setattr(swap_in, "COPY_PROGRAMS", 2)
    monkeypatch.setattr(address_order, "copy_programs", lambda _: 2)
    monkeypatch.setattr(address_order, "COPY_UNITS", 32)
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", 1 if in_order else 2**40)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    requests = Requests(device, guarded, identity(3, 40), slots=16, top_k=16, batch=3)
    ids = torch.arange(16, 32, dtype=torch.int32).repeat(3, 1)
    ids[1, 5:] = -1
    found = requests.step(1, ids, ints(0, 1, 2), ints(40, 40, 40), 3)
    assert requests.plan.counts.tolist() == [16, 5, 16]
    check_rows(requests, ids, ints(0, 1, 2), ints(40, 40, 40), found)


def test_a_short_request_is_all_resident_and_padding_gives_nothing(device, guarded):
    requests = Requests(device, guarded, identity(3, 40), slots=8, top_k=4, batch=3)
    top_k = ints(5, 0, 8, 2, 1, 2, 3, 4, 1, 2, 3, 4).view(3, 4)
    found = requests.step(1, top_k, ints(2, 0, 1), ints(8, 5, 40), 2).tolist()
    # Request row 2 begins at device row 2 × (8 + 8) = 32.
    assert found == [[37, 32, -1, 34], [1, 2, 3, 4], [-1, -1, -1, -1]]
    assert requests.plan.counts.tolist() == [0, 0, 0]


def lockstep(device, guarded, *, tokens, slots, top_k, row_bytes, steps, seed):
    """Random, duplicated, hostile ids in both; equal sets of (step, token), equal counts, right bytes."""
    dice = torch.Generator().manual_seed(seed)
    host_rows = torch.randperm(4 * tokens, generator=dice).view(4, tokens)
    host_rows[0, tokens // 2 : tokens // 2 + 20] = -1
    requests = Requests(device, guarded, host_rows, slots=slots, top_k=top_k, batch=3, row_bytes=row_bytes)
    expected, plan = on_cpu(requests.state), new_plan(3, top_k, "cpu")
    out, rows, now = torch.zeros((3, top_k), dtype=torch.int32), ints(2, 0, 3), 0
    for step in range(1, steps + 1):
        now += 1500 if step % 11 == 0 else 1
        seq_lens = ints(min(slots - 2 + step, tokens), tokens, tokens - 3)
        highest = tokens + 5 if step % 3 else slots + 3 * step
        ids = torch.randint(-2, highest, (3, top_k), dtype=torch.int32, generator=dice)
        if step % 7 == 0:
            ids[2] = ids[2, 0]
        num_real = 2 if step % 5 == 0 else 3
        found = requests.step(now, ids, rows, seq_lens, num_real)
        reference.resolve(expected, plan, ids, rows, seq_lens, ints(num_real), ints(now), out)
        assert requests.plan.counts.tolist() == plan.counts.tolist()
        assert torch.equal(found < 0, out < 0)
        assert in_order(requests.state) == in_order(expected)
        check_rows(requests, ids, rows, seq_lens, found[:num_real])


def in_order(state):
    pairs = torch.stack([state.slot_steps, state.slot_tokens], -1).cpu().tolist()
    return [sorted(row) for row in pairs]


def check_rows(requests, ids, rows, seq_lens, found):
    """Every device row that was given belongs to the slot of its token; loaded tokens have their bytes."""
    slots = requests.state.slots
    tokens_of = requests.state.slot_tokens.cpu()
    for i, device_rows in enumerate(found):
        row = int(rows[i])
        if int(seq_lens[i]) <= slots:
            continue
        given = (device_rows >= 0) & (ids[i] != seq_lens[i] - 1)
        tokens, slot_rows = ids[i][given].long(), device_rows[given].long()
        assert torch.equal(tokens_of[row][slot_rows - row * (slots + PAGE)].long(), tokens)
        loaded = tokens >= slots
        bytes_given = requests.rows.view.cpu()[slot_rows[loaded]]
        assert torch.equal(bytes_given, requests.host[requests.host_rows[row][tokens[loaded]]])


@pytest.mark.parametrize(
    ("tokens", "slots", "top_k", "row_bytes"),
    [(300, 48, 16, 48), (300, 17, 16, 16), (64, 33, 1, 656), (1000, 128, 128, 1152)],
)
def test_many_steps_equal_the_reference(device, guarded, tokens, slots, top_k, row_bytes):
    lockstep(device, guarded, tokens=tokens, slots=slots, top_k=top_k, row_bytes=row_bytes, steps=12, seed=slots)


@pytest.mark.parametrize(
    ("tokens", "slots", "top_k", "row_bytes", "sorted_from"),
    [(70_000, 4096, 2048, 656, 2**22), (20_000, 8192, 1024, 1152, 2**22), (70_000, 4096, 2048, 656, 1)],
)
def test_production_sizes_equal_the_reference(
    device, guarded, monkeypatch, tokens, slots, top_k, row_bytes, sorted_from
):
    if device == "cpu":
        pytest.skip("hours on the interpreter")
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", sorted_from)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    lockstep(device, guarded, tokens=tokens, slots=slots, top_k=top_k, row_bytes=row_bytes, steps=25, seed=slots)


def test_misses_from_a_large_pool_are_read_in_address_order(device, guarded, monkeypatch):
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", 1)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    dice = torch.Generator().manual_seed(7)
    host_rows = torch.randperm(3 * 2000, generator=dice).view(3, 2000)
    requests = Requests(device, guarded, host_rows, slots=64, top_k=64, batch=3)
    for now in range(1, 4):
        ids = torch.randint(64, 1990, (3, 64), dtype=torch.int32, generator=dice)
        rows, lens = ints(0, 1, 2), ints(2000, 2000, 2000)
        found = requests.step(now, ids, rows, lens, 3)
        check_rows(requests, ids, rows, lens, found)
        plan, counts = requests.plan, requests.plan.counts.tolist()
        pairs = [(plan.src[i, j], plan.dst[i, j]) for i in range(3) for j in range(counts[i])]
        in_order = list(zip(plan.sorted_src.tolist(), plan.sorted_dst.tolist(), strict=True))[: len(pairs)]
        assert sorted(in_order) == sorted((int(src), int(dst)) for src, dst in pairs)
        buckets = [src >> plan.bucket_bits for src, _ in in_order]
        assert buckets == sorted(buckets)
        assert max(buckets) > 700
        assert not requests.plan.buckets[: state.BUCKETS].any()


CALL = st.tuples(
    st.sampled_from([1, 1, 1, 2, 9, 1000, 10**8]),  # steps since the last call
    st.lists(st.integers(-3, 63), min_size=16, max_size=16),
    st.lists(st.sampled_from([0, 1, 12, 13, 40, 60, 61, 2**31 - 1]), min_size=2, max_size=2),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALL, min_size=1, max_size=8), slots=st.sampled_from([8, 9, 12, 31]))
def test_any_calls_equal_the_reference(device, guarded, calls, slots):
    host_rows = torch.randperm(120, generator=torch.Generator().manual_seed(3)).view(2, 60)
    host_rows[1, 20:24] = -1
    requests = Requests(device, guarded, host_rows, slots=slots, top_k=8, batch=2, host_limit=110)
    expected, plan = on_cpu(requests.state), new_plan(2, 8, "cpu")
    out, rows, now = torch.zeros((2, 8), dtype=torch.int32), ints(1, 0), 0
    for step, ids, lens, num_real in calls:
        now += step
        top_k, seq_lens = ints(*ids).view(2, 8), ints(*lens)
        found = requests.step(now, top_k, rows, seq_lens, num_real)
        reference.resolve(expected, plan, top_k, rows, seq_lens, ints(num_real), ints(now), out)
        assert requests.plan.counts.tolist() == plan.counts.tolist()
        assert torch.equal(found < 0, out < 0)
        assert in_order(requests.state) == in_order(expected)
        check_rows(requests, top_k, rows, seq_lens, found[:num_real])


def test_a_layer_that_shares_the_top_k_replays_the_plan(device, guarded):
    requests = Requests(device, guarded, identity(1, 40), slots=4, top_k=4, batch=1)
    found = requests.step(1, ints(9, 8, -1, -1).view(1, 4), ints(0), ints(40), 1)[0].tolist()
    host, rows = requests.host.flip(1).contiguous(), guarded(4 + PAGE, ROW_BYTES)
    swap_in.copy_planned(requests.plan, host.pin_memory() if device == "cuda" else host, rows.view)
    assert torch.equal(rows.view[found[:2]].cpu(), host[[9, 8]])
    assert rows.intact()


def test_a_layer_that_shares_replays_the_address_order(device, guarded, monkeypatch):
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", 1)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    requests = Requests(device, guarded, identity(2, 40), slots=4, top_k=4, batch=2)
    ids = ints(9, 8, 30, -1, 20, 8, -1, -1).view(2, 4)
    found = requests.step(1, ids, ints(0, 1), ints(40, 40), 2)
    host, rows = requests.host.flip(1).contiguous(), guarded(2 * (4 + PAGE), ROW_BYTES)
    swap_in.copy_planned(requests.plan, host.pin_memory() if device == "cuda" else host, rows.view)
    assert torch.equal(rows.view[found[ids >= 0]].cpu(), host[[9, 8, 30, 60, 48]])
    assert rows.intact()


def test_calls_can_be_captured_and_replayed(device, guarded, captured):
    requests = Requests(device, guarded, identity(1, 40), slots=4, top_k=4, batch=1)
    state_, plan, out = requests.state, requests.plan, requests.out.view
    ids, now = ints(9, 8, -1, -1, device=device).view(1, 4), ints(1, device=device)
    fixed = [ints(0, device=device), ints(40, device=device), ints(1, device=device)]

    def call():
        swap_in.resolve(state_, plan, ids, *fixed, now, out)
        swap_in.copy_planned(plan, requests.host, requests.rows.view)

    replay = captured(call)
    for step, tokens in enumerate([(20, 9, -1, -1), (21, 22, 23, 24), (9, 8, 20, 21)], start=2):
        ids.copy_(ints(*tokens).view(1, 4))
        now.fill_(step)
        replay()
        found = out[0].cpu().tolist()
        assert all(requests.holds(row, 0, t) for row, t in zip(found, tokens, strict=True) if t >= 0)


@pytest.mark.parametrize("sorted_from", [1, 2**22])
def test_calls_without_a_pause_between_them_equal_the_reference(device, guarded, captured, monkeypatch, sorted_from):
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", sorted_from)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    dice = torch.Generator().manual_seed(11)
    calls, (top_k, slots, tokens) = 4, (16, 48, 400)
    requests = Requests(device, guarded, identity(2, tokens), slots=slots, top_k=top_k, batch=2)
    expected, plan = on_cpu(requests.state), new_plan(2, top_k, "cpu")
    out, fixed = torch.zeros((2, top_k), dtype=torch.int32), [ints(0, 1), ints(tokens, tokens), ints(2)]
    ids = torch.zeros((calls, 2, top_k), dtype=torch.int32, device=device)
    steps = torch.arange(calls, dtype=torch.int32, device=device)
    on_device = [tensor.to(device) for tensor in fixed]

    def step_on():
        for call in range(calls):
            swap_in.resolve(
                requests.state, requests.plan, ids[call], *on_device, steps[call : call + 1], requests.out.view
            )
            swap_in.copy_planned(requests.plan, requests.host, requests.rows.view)

    replay = captured(step_on)  # runs once, with ids that are all 0
    for call in range(calls):
        reference.resolve(expected, plan, torch.zeros_like(out), *fixed, ints(call), out)
    for _ in range(3):
        new = torch.randint(0, tokens, ids.shape, dtype=torch.int32, generator=dice)
        ids.copy_(new)
        steps += calls
        replay()
        for call in range(calls):
            reference.resolve(expected, plan, new[call], *fixed, steps[call : call + 1].cpu(), out)
        assert in_order(requests.state) == in_order(expected)
        check_rows(requests, new[-1], *fixed[:2], requests.out.view.cpu())


@pytest.mark.parametrize("top_k", [3, 8])
def test_a_top_k_that_the_kernel_cannot_take_is_refused(device, top_k):
    state = new_state(identity(1, 40), slots=4, page_tokens=PAGE, host_limit=40, device=device)
    ids = torch.zeros((1, top_k), dtype=torch.int32, device=device)
    one = ints(1, device=device)
    with pytest.raises(ValueError, match=f"top-k {top_k} with 4 slots"):
        swap_in.resolve(state, new_plan(1, top_k, device), ids, one, one, one, one, ids)


def test_a_plan_for_a_smaller_pool_is_refused(device, monkeypatch):
    monkeypatch.setattr(state, "SORTED_POOL_ROWS", 1)
    monkeypatch.setattr(state, "SORTED_ENTRIES", 1)
    big = new_state(identity(1, 40), slots=4, page_tokens=PAGE, host_limit=5000, device=device)
    ids = torch.zeros((1, 4), dtype=torch.int32, device=device)
    one = ints(1, device=device)
    with pytest.raises(ValueError, match="fewer than 5000 host rows"):
        swap_in.resolve(big, new_plan(1, 4, device, pool_rows=40), ids, one, one, one, one, ids)


@pytest.mark.parametrize(
    ("host_bytes", "device_bytes", "message"),
    [(40, 40, "rows of 40 bytes: give a multiple of 16"), (48, 32, "rows of 48 and 32 bytes: give equal ones")],
)
def test_rows_that_the_copy_cannot_move_are_refused(device, host_bytes, device_bytes, message):
    host = torch.zeros((4, host_bytes), dtype=torch.uint8)
    rows = torch.zeros((4, device_bytes), dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match=message):
        swap_in.copy_planned(new_plan(1, 4, device), host, rows)


@pytest.mark.parametrize(("slots", "tokens"), [(0, 40), (2**15 + 1, 40), (4, 2**21)])
def test_sizes_that_the_numbers_cannot_hold_are_refused(slots, tokens):
    host_rows = torch.zeros((1, 1), dtype=torch.int64).expand(1, tokens)
    with pytest.raises(ValueError, match="give"):
        new_state(host_rows, slots=slots, page_tokens=PAGE, host_limit=1, device="cpu")


def test_a_plan_of_another_size_is_refused(device):
    state = new_state(identity(2, 40), slots=8, page_tokens=PAGE, host_limit=80, device=device)
    ids, two, one = (
        torch.zeros((2, 4), dtype=torch.int32, device=device),
        ints(1, 1, device=device),
        ints(1, device=device),
    )
    for plan in (new_plan(1, 4, device), new_plan(2, 8, device)):
        with pytest.raises(ValueError, match="give new_plan those"):
            swap_in.resolve(state, plan, ids, two, two, one, one, ids)


def test_views_with_gaps_are_refused(device):
    state = new_state(identity(1, 40), slots=8, page_tokens=PAGE, host_limit=40, device=device)
    gaps = torch.zeros((2, 8), dtype=torch.int32, device=device)[:, ::2]
    one = ints(1, device=device)
    for top_k, out in ((gaps, gaps.contiguous()), (gaps.contiguous(), gaps)):
        with pytest.raises(ValueError, match="contiguous"):
            swap_in.resolve(state, new_plan(2, 4, device), top_k, one, one, one, one, out)
    rows = torch.zeros((4, 96), dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match="gaps"):
        swap_in.copy_planned(new_plan(1, 4, device), rows[:, :48], rows.view(8, 48))
