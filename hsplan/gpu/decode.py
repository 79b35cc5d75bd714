"""
Decode steps on real pools: backup, newest tokens, swap-in of every layer, and checks of all that they leave.

Layers that compute top-k resolve it and load; the layers that share it replay the miss plan on their own pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hsplan.gpu.expected import ExpectedOrder, in_order
from hsplan.gpu.faults import Fault
from hsplan.gpu.place import Place
from hsplan.gpu.trace import GLM_51_LONGBENCH, Trace
from hsplan_kernels import backup, pattern, swap_in
from hsplan_kernels.memory import pointer_table
from hsplan_kernels.state import SwapState, new_plan, new_state

STAGE_TOKENS = 4096
BACKUP_DELAY_US = 500  # a load that does not wait for the backup of its row then reads it too early
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """
    What is run. `owners`: one flag a layer, the first is true. Rows in bytes, `slots` of one hot buffer, `context`
    tokens of the longest request at the last step.
    """

    owners: tuple[bool, ...]
    row_bytes: int
    top_k: int
    slots: int
    page_tokens: int
    requests: int
    context: int
    steps: int

    @property
    def groups(self) -> int:
        """Layers that compute top-k."""
        return sum(self.owners)

    @property
    def owner_of(self) -> list[int]:
        """For each layer the number of the group whose top-k it reads."""
        return [sum(self.owners[: layer + 1]) - 1 for layer in range(len(self.owners))]

    @property
    def hot_rows(self) -> int:
        """Device rows of all hot buffers, with a page behind each."""
        return self.requests * (self.slots + self.page_tokens)

    @property
    def request_pages(self) -> int:
        """Host pages of one request."""
        return -(-self.context // self.page_tokens)


class Decode:
    """
    Requests in the middle of decoding, on pools given as one tensor uint8 [rows, row bytes] a layer.

    `kv` on the device, at least `sizes.hot_rows` rows; `host` pinned, at least requests × request_pages pages.
    `wrong`: int32 [layers], rows that top-k named and that were not their token's; `wrong_slots`, `wrong_counts`:
    int64 [1], slots and miss counts that the eviction rule does not give.
    """

    def __init__(
        self,
        sizes: Sizes,
        kv: list[torch.Tensor],
        host: list[torch.Tensor],
        place: Place,
        *,
        fault: Fault | None = None,
        seed: int = 0,
    ) -> None:
        self.sizes, self.kv, self.host, self.place, self.fault = sizes, kv, host, place, fault
        n, context, device = sizes.requests, sizes.context, place.device
        dice = torch.Generator().manual_seed(seed)
        self.host_pages = torch.randperm(host[0].shape[0] // sizes.page_tokens, generator=dice)
        self.host_pages = self.host_pages[: n * sizes.request_pages].view(n, -1)
        in_page = torch.arange(sizes.page_tokens)
        host_rows = (self.host_pages[:, :, None] * sizes.page_tokens + in_page).view(n, -1)[:, :context].contiguous()
        self.host_rows = host_rows.to(device)
        self.states = [self._cold_state() for _ in range(sizes.groups)]
        self.plans = [new_plan(n, sizes.top_k, device, pool_rows=host[0].shape[0]) for _ in range(sizes.groups)]
        self.ids = torch.zeros((sizes.groups, n, sizes.top_k), dtype=torch.int32, device=device)
        self.out = torch.zeros_like(self.ids)
        self.rows = torch.arange(n, dtype=torch.int32, device=device)
        # Ragged: up to a sixteenth shorter than the longest.
        shorter = torch.arange(n, dtype=torch.int32, device=device) * (context // 16) // max(n, 2)
        self.lens = (context - sizes.steps - shorter).to(torch.int32)
        self.now = torch.zeros(1, dtype=torch.int32, device=device)
        self.real = torch.full((1,), n, dtype=torch.int32, device=device)
        self.backed_up = torch.zeros(1, dtype=torch.int32, device=device)
        self._newest_slots = self.rows * (sizes.slots + sizes.page_tokens) + sizes.slots
        self._backup_rows = torch.zeros(n, dtype=torch.int64, device=device)
        self._replay: Callable[[], None] | None = None
        self.tables = pointer_table(kv), pointer_table(host, device)
        self.backups = backup.BackupStream(device)
        self.trace = Trace(GLM_51_LONGBENCH, sizes.groups, n, context, sizes.top_k, device, seed)
        self.expected = ExpectedOrder(sizes.groups, n, sizes.slots, context, device)
        self.wrong = torch.zeros(len(kv), dtype=torch.int32, device=device)
        self.wrong_slots, self.wrong_counts = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.steps_done = 0

    def stage_prompts(self, progress: Progress) -> None:
        """Write every prompt to the device and copy it out: the first request page by page, the others by rows."""
        for request, length in enumerate(self.lens.tolist()):
            for start in range(0, length, STAGE_TOKENS):
                self._stage(request, start, min(STAGE_TOKENS, length - start, self.kv[0].shape[0]))
            progress(request + 1, self.sizes.requests)

    def advance(self) -> None:
        """Inputs of the next step: one more token a request and its top-k."""
        self.lens += 1
        self.advance_ids()

    def advance_ids(self) -> None:
        """The next step's top-k alone."""
        self.steps_done += 1
        self.now.fill_(self.steps_done)
        self.ids.copy_(self.trace.step(self.lens))

    def step(self) -> None:
        """Backup, newest rows and swap-in of one step, each row checked; on a GPU as a graph, from the second on."""
        if self._replay is not None:
            self._replay()
            return
        self._step()
        if self.place.is_gpu:
            self.place.settle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            self._replay = graph.replay

    def _step(self) -> None:
        late = self.fault == "missing-wait"
        if not late or self.place.is_gpu:
            self._back_up()
        if not late:
            self.backups.hold()
        self._write_newest()
        self.swap_in(check=True)
        if late:
            if not self.place.is_gpu:
                self._back_up()
            self.backups.hold()
        self.backed_up.copy_(self.real)

    def swap_in(self, *, check: bool = False) -> None:
        """Resolve and load in every layer."""
        for layer, group in enumerate(self.sizes.owner_of):
            if self.sizes.owners[layer]:
                self._resolve(group)
            swap_in.copy_planned(self.plans[group], self.host[layer], self.kv[layer])
            if check:
                self._truncate(layer)
                wrong = self.wrong[layer : layer + 1]
                pattern.count_wrong_rows(self.kv[layer], self.out[group], self.ids[group], self.rows, layer, wrong)

    def compare(self) -> torch.Tensor:
        """Compare slots and miss counts with the eviction rule; misses of the step, int64 [groups, requests]."""
        missed = self.expected.step(self.ids, self.lens, self.steps_done)
        self.wrong_slots += self.expected.wrong_slots(self.order())
        self.wrong_counts += (torch.stack([plan.counts for plan in self.plans]) != missed).sum()
        return missed

    def order(self) -> torch.Tensor:
        """What the hot buffers hold, int64 [groups, requests, slots], by `in_order`."""
        tokens = torch.stack([state.slot_tokens for state in self.states])
        return in_order(tokens, torch.stack([state.slot_steps for state in self.states]))

    def wrong_host_rows(self, progress: Progress) -> int:
        """Rows in host memory that are not their token's, over all tokens that were backed up."""
        wrong = torch.zeros(1, dtype=torch.int32, device=self.place.device)
        tokens = torch.arange(self.sizes.context, dtype=torch.int32, device=self.place.device)
        tokens = torch.where(tokens < self.lens[:, None] - 1, tokens, -1)
        for layer, rows in enumerate(self.host):
            pattern.count_wrong_rows(rows, self.host_rows, tokens, self.rows, layer, wrong)
            progress(layer + 1, len(self.host))
        return int(wrong)

    def _cold_state(self) -> SwapState:
        sizes = self.sizes
        state = new_state(
            self.host_rows,
            slots=sizes.slots,
            page_tokens=sizes.page_tokens,
            host_limit=self.host[0].shape[0],
            device=self.place.device,
        )
        state.slot_tokens.fill_(-1)
        state.token_slots.fill_(-1)
        return state

    def _stage(self, request: int, start: int, count: int) -> None:
        tokens = torch.arange(start, start + count, dtype=torch.int32, device=self.place.device)
        at = tokens - start
        for layer, rows in enumerate(self.kv):
            pattern.fill_rows(rows, at[None], tokens[None], self.rows[request : request + 1], layer)
        page = self.sizes.page_tokens
        whole = count // page if request == 0 else 0
        if whole:
            pages = self.host_pages[request, start // page : start // page + whole].tolist()
            backup.stage_pages(
                self.kv, self.host, list(range(whole)), pages,
                page_tokens=page, row_bytes=self.sizes.row_bytes, stream=None,
            )  # fmt: skip
        rest = at[whole * page :]
        if rest.numel():
            self._copy_out(rest, self.host_rows[request, start + whole * page : start + count], rest.numel())

    def _copy_out(self, src: torch.Tensor, dst: torch.Tensor, count: int | torch.Tensor) -> None:
        if isinstance(count, int):
            count = torch.full((1,), count, dtype=torch.int32, device=self.place.device)
        backup.backup_rows(
            *self.tables, src, dst, count,
            row_bytes=self.sizes.row_bytes, num_layers=len(self.kv),
            device_rows=self.kv[0].shape[0], host_rows=self.host[0].shape[0],
        )  # fmt: skip

    def _back_up(self) -> None:
        """The row of the token before the newest, to host memory; before the first step there is none."""
        at = self.lens.to(torch.int64)[:, None] - 2
        torch.gather(self.host_rows, 1, at, out=self._backup_rows[:, None])
        with self.backups.after(None):
            self.place.sleep(BACKUP_DELAY_US)
            self._copy_out(self._newest_slots, self._backup_rows, self.backed_up)

    def _write_newest(self) -> None:
        """The newest token's row in its slot of every layer, as the forward pass leaves it."""
        at, tokens = self._newest_slots[:, None], self.lens[:, None] - 1
        for layer, rows in enumerate(self.kv):
            pattern.fill_rows(rows, at, tokens, self.rows, layer)

    def _resolve(self, group: int) -> None:
        state = self.states[group]
        if self.fault == "eviction-order" and group == 0:
            # An empty slot would not show: it holds no token whose place in the order is wrong.
            taken = torch.where(state.slot_tokens[:1] >= 0, state.slot_steps[:1], self.now)
            oldest = taken.argmin(1, keepdim=True)
            state.slot_steps[:1].scatter_(1, oldest, self.now[None] - 1)
        swap_in.resolve(
            state, self.plans[group], self.ids[group], self.rows, self.lens, self.real, self.now, self.out[group]
        )

    def _truncate(self, layer: int) -> None:
        """The fault `truncated-row`: the end of the first loaded row is not that of the token."""
        if self.fault == "truncated-row" and layer == len(self.kv) - 1:
            first = self.plans[-1].dst[0, :1].to(torch.int64)
            self.kv[layer][:, -16:].index_fill_(0, first, 0)
