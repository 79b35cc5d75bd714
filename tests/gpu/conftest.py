"""
What the kernel tests share: the GPU when there is one, Triton's interpreter when not, arrays between guard bands,
swap-in side by side with its reference.

Without torch and triton the folder is passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import os

import pytest

POISON = 0xA5
BAND_BYTES = 4096

if importlib.util.find_spec("torch") and importlib.util.find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, that is, when it is imported

    from hsplan_kernels import reference, swap_in
    from hsplan_kernels.state import new_plan, new_state
else:
    collect_ignore_glob = ["test_*.py"]


class Guarded:
    """A poisoned tensor `view` with a poisoned band on either side."""

    def __init__(self, *shape, device, dtype=None):
        dtype = dtype or torch.uint8
        size = math.prod(shape) * dtype.itemsize
        self._whole = torch.full((2 * BAND_BYTES + size,), POISON, dtype=torch.uint8, device=device)
        self.view = self._whole[BAND_BYTES : BAND_BYTES + size].view(dtype).view(shape)
        self._after = BAND_BYTES + size

    def intact(self):
        return bool((self._whole[:BAND_BYTES] == POISON).all() and (self._whole[self._after :] == POISON).all())


class Pair:
    """
    Swap-in by the kernels, every array between guard bands, and by the reference on a state that starts equal.

    Host rows are random bytes; rows of resident tokens have theirs, all else of the device pool is poison.
    `given` puts an array between guard bands (the fixture `guarded`). `empty`: no token is resident at the start.
    """

    def __init__(
        self, given, *, requests=1, tokens=64, slots=16, top_k=8, page_tokens=8, row_bytes=48, batch=None,
        host_rows=None, host_limit=None, empty=False,
    ):  # fmt: skip
        device = given(1).view.device
        if host_rows is None:
            host_rows = torch.arange(requests * tokens).view(requests, tokens)
        self.host = random_bytes(host_rows.numel(), row_bytes, seed=requests)
        self.host = self.host.pin_memory() if device.type == "cuda" else self.host
        limit = len(self.host) if host_limit is None else host_limit
        state = new_state(host_rows, slots=slots, page_tokens=page_tokens, host_limit=limit, device=device)
        if empty:
            state.slot_tokens.fill_(-1)
            state.token_slots.fill_(-1)
        self.host_rows, self.batch, self.now = host_rows, batch or host_rows.shape[0], 0
        self.bands = []
        self.state = self._fenced(state, given)
        self.plan = self._fenced(new_plan(self.batch, top_k, device), given)
        self.wanted, self.wanted_plan = self.copy(), new_plan(self.batch, top_k, "cpu")
        self.rows = given(host_rows.shape[0] * state.slots_and_page, row_bytes)
        self.out = given(self.batch, top_k, dtype=torch.int32)
        self.bands += [self.rows, self.out]
        for row, resident in enumerate(state.slot_tokens.tolist()):
            for slot, token in enumerate(resident):
                self.put(row, token, row * state.slots_and_page + slot)

    def _fenced(self, record, given):
        arrays = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        bands = {name: given(values=array) for name, array in arrays.items() if torch.is_tensor(array)}
        self.bands += bands.values()
        return dataclasses.replace(record, **{name: band.view for name, band in bands.items()})

    def copy(self):
        """The kernels' state on the CPU, independent of it."""
        fields = {field.name: getattr(self.state, field.name) for field in dataclasses.fields(self.state)}
        return type(self.state)(**{k: v.cpu().clone() if torch.is_tensor(v) else v for k, v in fields.items()})

    def backed(self, row, token):
        return token >= 0 and 0 <= int(self.host_rows[row, token]) < len(self.host)

    def put(self, row, token, device_row):
        """Write the bytes of a token to a device row, as a forward pass would."""
        if self.backed(row, token):
            self.rows.view[device_row] = self.host[self.host_rows[row, token]].to(self.rows.view.device)

    def resolve(self, ids, *, rows=None, lengths=None, real=None, now=None):
        """Device rows of `ids` (lists, filled up with −1), [n][K], by the kernel alone."""
        self.now = self.now + 1 if now is None else now
        n, k, to = len(ids), self.out.view.shape[1], self.out.view.device
        ids = [[*request, *[-1] * (k - len(request))] for request in ids]
        rows = list(range(n)) if rows is None else rows
        lengths = [self.state.max_tokens] * n if lengths is None else lengths
        self.call = [int32(values) for values in (ids, rows, lengths, [n if real is None else real], [self.now])]
        inputs = [values.to(to) for values in self.call]
        swap_in.resolve(self.state, self.plan, *inputs, self.out.view[:n])
        assert all(band.intact() for band in self.bands)
        assert all(torch.equal(values.cpu(), given) for values, given in zip(inputs, self.call, strict=True))
        return self.out.view[:n].tolist()

    def load(self):
        swap_in.copy_planned(self.plan, self.host, self.rows.view)
        assert all(band.intact() for band in self.bands)

    def step(self, ids, *, load=True, **call):
        """Resolve by both, load, compare states, counts, rows and bytes; the device rows of `ids`, [n][K]."""
        found = self.resolve(ids, **call)
        expected = torch.full((len(ids), self.out.view.shape[1]), 77, dtype=torch.int32)
        reference.resolve(self.wanted, self.wanted_plan, *self.call, expected)
        assert self.plan.counts.tolist() == self.wanted_plan.counts.tolist()
        assert in_order(self.state) == in_order(self.wanted)
        assert_one_slot_each(self.state)
        if load:
            self.load()
        padded, rows, lengths, real, _ = (values.tolist() for values in self.call)
        pool = self.rows.view.cpu() if load else None
        tokens = self.state.slot_tokens.tolist()
        for i in range(len(ids)):
            base = rows[i] * self.state.slots_and_page
            for token, device_row, wanted in zip(padded[i], found[i], expected[i].tolist(), strict=True):
                assert (device_row < 0) == (wanted < 0), f"token {token} of request {i}"
                if device_row < 0:
                    assert device_row == -1
                elif lengths[i] <= self.state.slots or token == lengths[i] - 1:
                    assert device_row == wanted
                else:
                    assert tokens[rows[i]][device_row - base] == token
                    if load and self.backed(rows[i], token):
                        assert torch.equal(pool[device_row], self.host[self.host_rows[rows[i], token]])
        assert all(row == [-1] * len(row) for row in found[max(real[0], 0) :])
        return found


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def random_bytes(*shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def in_order(state):
    """Each request's tokens in the order in which they will be evicted."""
    pairs = torch.stack([state.slot_steps, state.slot_tokens], -1).cpu().tolist()
    return [sorted(row) for row in pairs]


def assert_one_slot_each(state):
    """Tokens in slots and slots of tokens say the same, and no token has two slots."""
    for tokens, slots in zip(state.slot_tokens.tolist(), state.token_slots.tolist(), strict=True):
        there = {token: slot for slot, token in enumerate(tokens) if token >= 0}
        assert len(there) == sum(token >= 0 for token in tokens)
        assert there == {token: slot for token, slot in enumerate(slots) if slot >= 0}


@pytest.fixture(scope="session")
def noise():
    """Make a tensor of random bytes, the same for a seed."""
    return random_bytes


@pytest.fixture(scope="session")
def pair(guarded):
    """Make a `Pair` on the device."""
    return functools.partial(Pair, guarded)


@pytest.fixture(scope="session")
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def guarded(device):
    """Make a `Guarded` tensor on the device, of `values` given or of poison."""

    def make(*shape, values=None, dtype=None):
        if values is None:
            return Guarded(*shape, device=device, dtype=dtype)
        array = Guarded(*values.shape, device=device, dtype=values.dtype)
        array.view.copy_(values)
        return array

    return make


@pytest.fixture(scope="session")
def settle(device):
    """Wait for the GPU."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


@pytest.fixture(scope="session")
def captured(device):
    """Run a call once and make it repeatable: by CUDA-graph replay on a GPU, as it is on the CPU."""

    def capture(call):
        call()
        if device == "cpu":
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    return capture
