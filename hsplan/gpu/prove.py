"""The functional part of a validation: pools in; decode steps, checks of every byte, and verdicts out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hsplan.engines import Pools
from hsplan.gpu.decode import Decode, Sizes
from hsplan.gpu.faults import Fault
from hsplan.gpu.group import Report
from hsplan.gpu.index_keys import IndexKeys
from hsplan.gpu.offsets import wrong_far_rows
from hsplan.gpu.place import Place
from hsplan.gpu.pools import RankPools, index_layers
from hsplan.measurement import Check, Run
from hsplan_kernels import pattern

Stored = list[tuple[torch.Tensor, torch.Tensor]]
SYNC_STEPS = 25
WARM_SHARE = 10  # the first tenth of the steps starts cold and does not count in the miss share


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the steps proved, and the requests as they are after the last one."""

    checks: tuple[Check, ...]
    run: Run
    decode: Decode


def prove(
    pools: RankPools,
    planned: Pools,
    sizes: Sizes,
    place: Place,
    fault: Fault | None,
    report: Report,
    *,
    seed: int = 0,
) -> Proof:
    """
    Run `sizes.steps` decode steps on the pools and check all that they leave.

    `planned`: the tokens that the plan promises, which the pools must hold. `report(what, done, total)` is called
    as the work goes on; `seed` draws the traces.
    """
    kv, host = pools.rows(), pools.host_layers()
    checks = [_last_pages(pools, planned, place), _far_rows(sizes.row_bytes, place, fault)]
    decode = Decode(sizes, kv, host, place, fault=fault, seed=seed)
    decode.stage_prompts(lambda done, total: report("prompts to host memory", done, total))
    keys = IndexKeys(index_layers(pools, sizes.owners), sizes.requests, fault)
    stored, misses = _run_steps(decode, keys, report)
    loaded = sum(int(misses[:, group].sum()) for group in sizes.owner_of)
    run = Run(
        steps=sizes.steps,
        requests=sizes.requests,
        context=sizes.context,
        layers=len(kv),
        owners=sizes.groups,
        row_bytes=sizes.row_bytes,
        top_k=sizes.top_k,
        slots=sizes.slots,
        host_bytes=sizes.requests * sizes.request_pages * sizes.page_tokens * sizes.row_bytes * len(kv),
        rows_checked=sizes.steps * sizes.requests * sizes.top_k * len(kv),
        rows_loaded=loaded,
        miss_share=_miss_share(misses, sizes),
    )
    checks += [
        _rows(decode, run),
        _order(decode),
        _misses(decode, loaded),
        _host_rows(decode, report),
        _index_keys(keys, stored, planned),
    ]
    return Proof(checks=tuple(checks), run=run, decode=decode)


def _run_steps(decode: Decode, keys: IndexKeys, report: Report) -> tuple[Stored, torch.Tensor]:
    """Tokens and slots of the index keys stored at each step, and misses, int64 [steps, groups, requests]."""
    stored: Stored = []
    misses = []
    total = decode.sizes.steps
    for done in range(1, total + 1):
        decode.advance()
        decode.step()
        misses.append(decode.compare())
        tokens = decode.lens - 1
        slots = decode.host_rows.gather(1, tokens.to(torch.int64)[:, None]).view(-1)
        keys.store(tokens, slots)
        stored.append((tokens, slots))
        if done % SYNC_STEPS == 0 or done == total:
            decode.place.settle()
            report("decode steps, every row checked", done, total)
    return stored, torch.stack(misses).cpu()


def _miss_share(misses: torch.Tensor, sizes: Sizes) -> float:
    warm = misses[sizes.steps // WARM_SHARE :]
    return float(warm.sum()) / (warm.numel() * sizes.top_k)


def _last_pages(pools: RankPools, planned: Pools, place: Place) -> Check:
    """Write and read the last planned page of every layer, on both sides: a pool that is too short lacks it."""
    wrong = torch.zeros(1, dtype=torch.int32, device=place.device)
    request = torch.zeros(1, dtype=torch.int32, device=place.device)
    page = torch.arange(planned.page_tokens, dtype=torch.int64, device=place.device)[None]
    ends = (
        (pools.rows(), planned.tokens.best + planned.page_tokens),
        (pools.host_layers(), planned.host_tokens),
    )
    for layers, end in ends:
        for layer, rows in enumerate(layers):
            at = page + end - planned.page_tokens
            pattern.fill_rows(rows, at, page, request, layer)
            pattern.count_wrong_rows(rows, at, page, request, layer, wrong)
    return Check(
        name="pool rows",
        claim="every layer holds the last page that is planned, on the GPU and in host memory",
        passed=not int(wrong),
        detail=f"{int(wrong):,} rows are missing" if int(wrong) else f"{sum(len(a) for a, _ in ends):,} pools",
    )


def _far_rows(row_bytes: int, place: Place, fault: Fault | None) -> Check:
    wrong = wrong_far_rows(row_bytes, place, fault)
    return Check(
        name="64-bit offsets",
        claim="rows around 2^31 bytes of a pool are loaded and backed up",
        passed=not wrong,
        detail=f"{wrong} of 10 rows are wrong" if wrong else "10 rows",
    )


def _rows(decode: Decode, run: Run) -> Check:
    wrong = {layer: count for layer, count in enumerate(decode.wrong.tolist()) if count}
    text = f"{run.rows_checked:,} rows of {run.row_bytes:,} B in {run.steps:,} steps and {run.layers} layers"
    if wrong:
        layers = ", ".join(map(str, list(wrong)[:5])) + (" …" if len(wrong) > 5 else "")
        text = f"{sum(wrong.values()):,} of {text} are wrong, in layers {layers}"
    claim = "every row that top-k names is on the GPU, bit for bit"
    return Check(name="rows", claim=claim, passed=not wrong, detail=text)


def _order(decode: Decode) -> Check:
    wrong, sizes = int(decode.wrong_slots), decode.sizes
    text = f"{sizes.steps * sizes.groups * sizes.requests * sizes.slots:,} slots over all steps"
    return Check(
        name="eviction order",
        claim="hot buffers keep the tokens that the rule keeps: step of last use, then token id",
        passed=not wrong,
        detail=f"{wrong:,} of {text} differ" if wrong else text,
    )


def _misses(decode: Decode, loaded: int) -> Check:
    wrong = int(decode.wrong_counts)
    return Check(
        name="misses",
        claim="as many rows are loaded as the rule says, in owner layers and in those that replay their plan",
        passed=not wrong,
        detail=f"{wrong:,} miss counts differ" if wrong else f"{loaded:,} rows loaded",
    )


def _host_rows(decode: Decode, report: Report) -> Check:
    wrong = decode.wrong_host_rows(lambda done, total: report("host memory read back", done, total))
    tokens = int((decode.lens - 1).sum()) * len(decode.host)
    return Check(
        name="host rows",
        claim="host memory holds every token of prompt and output, bit for bit",
        passed=not wrong,
        detail=f"{wrong:,} of {tokens:,} rows are wrong" if wrong else f"{tokens:,} rows",
    )


def _index_keys(keys: IndexKeys, stored: Stored, planned: Pools) -> Check:
    """All stored keys, then those of the first token moved to the spare page, then that nothing else was written."""
    wrong = sum(keys.wrong_keys(tokens, slots) for tokens, slots in stored)
    tokens, slots = stored[0]
    in_page = torch.arange(keys.requests, dtype=torch.int64, device=slots.device)
    spare = torch.where(in_page < planned.page_tokens, in_page + planned.logical_tokens, -1)
    keys.move(slots, spare)
    wrong += keys.wrong_keys(tokens, spare)
    for _, at in stored:
        keys.forget(at)
    keys.forget(spare)
    touched = keys.touched_bytes()
    owners = sum(layer.numel() > 0 for layer in keys.layers)
    text = f"{len(stored) * keys.requests * owners:,} keys in {owners} of {len(keys.layers)} layers"
    return Check(
        name="index-K",
        claim="index keys lie in the layers that compute top-k and nowhere else",
        passed=not wrong and not touched,
        detail=f"{wrong:,} of {text} are wrong, {touched:,} bytes written elsewhere" if wrong or touched else text,
    )
