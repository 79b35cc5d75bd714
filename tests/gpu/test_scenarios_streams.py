"""Reported bugs of other engines: streams that do not wait, graphs that replay what was true once (T1 to T9)."""

import contextlib

import pytest
import torch

from hsplan_kernels import backup, index_k, swap_in
from hsplan_kernels.host_pool import HostPool
from hsplan_kernels.memory import pointer_table
from hsplan_kernels.state import new_plan, new_state

BUSY_CYCLES = 1_000_000  # 0.5 ms of an H200
VERY_BUSY_CYCLES = 40_000_000  # longer than Python takes to launch the calls of a round


class TwoStreams:
    """A forward pass writes 8 rows, they are backed up, a consumer swaps in the same 8 host rows, again and again."""

    def __init__(self, device, pool, *, cycles):
        self.pool, self.cycles = pool, cycles
        self.layer = torch.zeros(8, 656, dtype=torch.uint8, device=device)
        self.hot = torch.zeros(16, 656, dtype=torch.uint8, device=device)
        # Both halves of the tokens lie in the same host rows, so that each round misses all of them.
        host_rows = torch.arange(8).repeat(4).view(1, 32)
        self.state = new_state(host_rows, slots=8, page_tokens=8, host_limit=8, device=device)
        self.plan, self.out = new_plan(1, 8, device), torch.zeros((1, 8), dtype=torch.int32, device=device)
        self.ids = [torch.arange(first, first + 8, dtype=torch.int32, device=device).view(1, 8) for first in (8, 16)]
        self.places = torch.arange(8, device=device)
        self.zero, self.one, self.length, self.now, self.eight = (
            torch.tensor([value], dtype=torch.int32, device=device) for value in (0, 1, 32, 0, 8)
        )
        self.tables = pointer_table([self.layer]), pointer_table(pool.layers, device)
        self.backups = backup.BackupStream(device)
        self.producer, self.consumer = (torch.cuda.Stream() if device == "cuda" else None for _ in range(2))
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)

    def on(self, stream):
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)

    def forward(self, value):
        with self.on(self.producer):
            if self.producer:
                self.producer.wait_stream(self.consumer)
                torch.cuda._sleep(self.cycles)
            self.layer.fill_(value)
        with self.backups.after(self.producer, self.layer, self.places):
            sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": 8, "host_rows": 8}
            backup.backup_rows(*self.tables, self.places, self.places, self.eight, **sizes)

    def consume(self, value, *, wait):
        if wait:
            self.backups.hold(self.consumer)
        with self.on(self.consumer):
            self.now.add_(1)
            swap_in.resolve(
                self.state, self.plan, self.ids[value % 2], self.zero, self.length, self.one, self.now, self.out
            )
            swap_in.copy_planned(self.plan, self.pool.layers[0], self.hot)
            self.wrong += (self.hot[self.out[0].long()] != value).sum()


def test_rows_are_swapped_in_as_the_last_backup_left_them(device, settle):
    with HostPool(1, 8, 656) as pool:
        streams = TwoStreams(device, pool, cycles=BUSY_CYCLES)
        for i in range(2000 if device == "cuda" else 10):
            streams.forward(i % 250)
            streams.consume(i % 250, wait=True)
        settle()
        assert int(streams.wrong) == 0
        assert streams.plan.counts.tolist() == [8]


def test_without_the_wait_stale_rows_are_swapped_in(device, settle):
    with HostPool(1, 8, 656) as pool:
        streams = TwoStreams(device, pool, cycles=VERY_BUSY_CYCLES)
        streams.forward(0)
        streams.consume(0, wait=True)
        settle()
        assert int(streams.wrong) == 0
        for value in range(1, 6):
            if device == "cpu":  # nothing overlaps: what does not wait is called too early
                streams.consume(value, wait=False)
            streams.forward(value)
            if device == "cuda":
                streams.consume(value, wait=False)
            settle()
        assert int(streams.wrong) == 5 * 8 * 656


def test_a_replay_follows_batch_ids_host_rows_and_bytes_as_they_are_then(device, guarded, settle, captured, noise):
    batch, tokens, stride = 5, 64, 16
    dice = torch.Generator().manual_seed(7)
    host = [noise(batch * tokens, 656, seed=layer) for layer in range(2)]
    host = [layer.pin_memory() if device == "cuda" else layer for layer in host]
    host_rows = torch.randperm(batch * tokens, generator=dice).view(batch, tokens)
    state = new_state(host_rows, slots=8, page_tokens=8, host_limit=batch * tokens, device=device)
    plan, out = new_plan(batch, 8, device), guarded(batch, 8, dtype=torch.int32)
    ids, rows, lengths, real, now = (
        torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((batch, 8), batch, batch, 1, 1)
    )
    hot = [guarded(batch * stride, 656) for _ in range(2)]

    def step():
        swap_in.resolve(state, plan, ids, rows, lengths, real, now, out.view)
        for source, target in zip(host, hot, strict=True):
            swap_in.copy_planned(plan, source, target.view)

    replay = captured(step)
    for round_, count in enumerate((1, 5, 3, 0, 5, 2, 4, 1), 1):
        # Stale poison in all that is padding; other rows, other bytes and other places of them each time.
        ids.fill_(2**31 - 1)
        rows.fill_(-7 if round_ % 2 else 2**31 - 1)
        lengths.fill_(2**31 - 1)
        out.view.fill_(0x5A5A5A5A)
        order = torch.randperm(batch, generator=dice)[:count]
        wanted = 8 * round_ % 56 + torch.randperm(8, generator=dice)
        ids[:count], rows[:count], lengths[:count] = wanted.int().to(device), order.int().to(device), tokens
        real.fill_(count)
        now.fill_(round_)
        host_rows = torch.randperm(batch * tokens, generator=dice).view(batch, tokens)
        state.host_rows.copy_(host_rows)
        for layer, source in enumerate(host):
            source.copy_(noise(batch * tokens, 656, seed=10 * round_ + layer))
        stale = [torch.full((2**18,), 0xA5, dtype=torch.uint8, device=device) for _ in range(16)]
        del stale  # what a call had allocated and freed would now be poison
        replay()
        settle()
        found = out.view.cpu()
        assert bool((found[count:] == -1).all())
        assert plan.counts.tolist() == [8] * count + [0] * (batch - count)
        for i, row in enumerate(order.tolist()):
            assert sorted(found[i].tolist()) == list(range(row * stride, row * stride + 8))
            for source, target in zip(host, hot, strict=True):
                assert torch.equal(target.view.cpu()[found[i].long()], source[host_rows[row, wanted]])
        assert out.intact()
        assert all(layer.intact() for layer in hot)


def test_calls_allocate_nothing_on_the_gpu(device):
    if device == "cpu":
        pytest.skip("the interpreter allocates as it likes")
    with HostPool(1, 64, 656) as pool:
        state = new_state(torch.arange(64).view(1, 64), slots=8, page_tokens=8, host_limit=64, device=device)
        plan, out = new_plan(1, 8, device), torch.zeros((1, 8), dtype=torch.int32, device=device)
        ids = torch.arange(20, 28, dtype=torch.int32, device=device).view(1, 8)
        zero, one, length = (torch.tensor([value], dtype=torch.int32, device=device) for value in (0, 1, 64))
        hot, pages = (torch.zeros(size, dtype=torch.uint8, device=device) for size in ((16, 656), (1, 8448)))
        tables, page_table = (pointer_table([hot]), pointer_table(pool.layers, device)), pointer_table([pages])
        keys, scales = torch.zeros(1, 1, 128, dtype=torch.uint8, device=device), torch.zeros(1, 1, device=device)

        def calls():
            swap_in.resolve(state, plan, ids, zero, length, one, one, out)
            swap_in.copy_planned(plan, pool.layers[0], hot)
            sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": 16, "host_rows": 64}
            backup.backup_rows(*tables, zero, zero, one, **sizes)
            index_k.store_index_k(page_table, one, zero, keys, scales, one, 1)
            index_k.move_index_k(page_table, one, zero, one, one, 1)

        calls()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        calls()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_the_end_of_a_captured_backup_cannot_be_waited_for_outside_of_its_graph(device, captured):
    layer = torch.zeros(8, 656, dtype=torch.uint8, device=device)
    ids, count = torch.arange(8, device=device), torch.tensor([8], dtype=torch.int32, device=device)
    backups = backup.BackupStream(device)
    with HostPool(1, 8, 656) as pool:
        tables = pointer_table([layer]), pointer_table(pool.layers, device)
        sizes = {"row_bytes": 656, "num_layers": 1, "device_rows": 8, "host_rows": 8}

        def step():
            with backups.after(None, layer, ids, count):
                backup.backup_rows(*tables, ids, ids, count, **sizes)
            backups.hold()

        replay = captured(step)
        if device == "cuda":
            with pytest.raises(RuntimeError, match="invalid argument"):
                backups.hold()
        layer.fill_(3)
        replay()
        if device == "cuda":
            torch.cuda.synchronize()
        assert bool((pool.layers[0] == 3).all())
        step()
        backups.hold()
