"""
The swap-in in plain Python: slow, obviously right, and the definition of what the kernels must do.

Same signatures as `hsplan_kernels.swap_in`; tensors may lie anywhere, the work is done on the CPU.
"""

from __future__ import annotations

import torch

from hsplan_kernels.state import MissPlan, SwapState


def resolve(
    state: SwapState,
    plan: MissPlan,
    top_k: torch.Tensor,
    request_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    num_real: torch.Tensor,
    step: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See `hsplan_kernels.swap_in.resolve`."""
    for i in range(top_k.shape[0]):
        if i >= int(num_real):
            out[i] = -1
            plan.counts[i] = 0
            continue
        slots, missed = _resolve_one(
            state, [int(t) for t in top_k[i]], int(request_rows[i]), int(seq_lens[i]), int(step)
        )
        out[i] = torch.tensor(slots, dtype=torch.int32)
        plan.counts[i] = len(missed)
        for j, (host_row, device_row) in enumerate(sorted(missed.items())):
            plan.src[i, j], plan.dst[i, j] = host_row, device_row


def _resolve_one(
    state: SwapState, ids: list[int], row: int, seq_len: int, now: int
) -> tuple[list[int], dict[int, int]]:
    """Device rows for one request's ids, and the rows to load (host row -> device row)."""
    slots, base = state.slots, row * state.slots_and_page
    limit = min(seq_len, state.max_tokens)
    if seq_len <= slots:
        return [base + t if 0 <= t < limit else -1 for t in ids], {}
    tokens, steps, where = state.slot_tokens[row], state.slot_steps[row], state.token_slots[row]
    newest = seq_len - 1
    wanted = [t for t in dict.fromkeys(ids) if 0 <= t < limit and t != newest]
    hits = [t for t in wanted if 0 <= int(where[t]) < slots]
    for t in hits:
        steps[int(where[t])] = now
    misses = [t for t in wanted if t not in set(hits) and 0 <= int(state.host_rows[row, t]) < state.host_limit]
    order = sorted((int(steps[s]), int(tokens[s]), s) for s in range(slots) if int(steps[s]) < now)
    missed = {}
    for t, (_, old, slot) in zip(misses, order, strict=False):
        if old >= 0:
            where[old] = -1
        tokens[slot], steps[slot], where[t] = t, now, slot
        missed[int(state.host_rows[row, t])] = base + slot
    found = {t: base + int(where[t]) for t in (*hits, *misses)} | {newest: base + slots}
    return [found.get(t, -1) if 0 <= t < limit else -1 for t in ids], missed


def copy_planned(plan: MissPlan, host: torch.Tensor, device: torch.Tensor) -> None:
    """See `hsplan_kernels.swap_in.copy_planned`."""
    for i, count in enumerate(plan.counts.tolist()):
        for j in range(count):
            device[int(plan.dst[i, j])] = host[int(plan.src[i, j])].to(device.device)
