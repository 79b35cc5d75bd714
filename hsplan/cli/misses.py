"""What `hsplan simulate` prints: misses by hot-buffer size, by layer where layers differ, and the best split."""

from __future__ import annotations

from hsplan.cli.figures import number
from hsplan.cli.modelview import ranges
from hsplan.cli.output import wrapped
from hsplan.cli.tables import table
from hsplan.workload.model import ModelTraces
from hsplan.workload.simulate import Simulated, Split

TITLES = {"fifo": "FIFO", "random": "random", "clock": "CLOCK", "belady": "Bélády"}
FEW_GROUPS = 3
SIZE = "hot buffer, slots"


def misses(found: Simulated, traces: ModelTraces, per_call: int) -> str:
    """The tables of a simulation; a call is a step, or `per_call` steps whose drafts are verified at once."""
    head = [f"tokens 0 to {found.highest_token:,}", *_read(found, per_call), traces.source]
    lines = [wrapped("misses: ", ", ".join(head))]
    lines += [wrapped("note: ", _part(found.layers, traces.of_layers))] if found.layers != traces.of_layers else []
    parts = ["\n".join(lines)]
    heads = [SIZE, "LRU", *(TITLES[name] for name in found.policies)]
    columns = [found.lru, *found.policies.values()]
    if found.layers > 1:
        heads.append("rows a step" if per_call == 1 else "rows a call")
    rows = [[number(size), *(_percent(column[i]) for column in columns)] for i, size in enumerate(found.slots)]
    if found.layers > 1:
        for row, share in zip(rows, found.lru, strict=True):
            row.append(number(round(share * found.mean_ids * found.layers)))
    parts.append(table(heads, rows))
    if found.split:
        parts += [_by_layer(found), *_best_split(found)]
    return "\n\n".join(parts)


def _part(recorded: int, of_layers: int) -> str:
    """What shares and rows are of, where it is not the model."""
    if recorded < of_layers:
        these = "this one" if recorded == 1 else f"these {recorded}"
        return f"{recorded} of {of_layers} layers that read a top-k are recorded; shares and rows are of {these} alone"
    return f"{recorded} layers are recorded, and the model has {of_layers} that read a top-k: is it the model served?"


def _read(found: Simulated, per_call: int) -> list[str]:
    if per_call == 1:
        unit, ids = "steps", f"{found.most_ids:,} ids a step"
    else:
        unit, ids = (
            "calls",
            f"{found.mean_ids:,.0f} different ids a call of {per_call} steps ({found.most_ids:,} at most)",
        )
    after = f"after {found.warm_up:,} to warm up" if found.warm_up else "from an empty buffer on"
    layers = [f"mean of {found.layers} layers"] if found.layers > 1 else []
    return [ids, *layers, f"{found.calls:,} {unit} counted {after}"]


def _by_layer(found: Simulated) -> str:
    heads = ["LRU by layer", "layers", *map(number, found.slots)]
    return table(heads, [[ranges(one.layers), str(one.count), *map(_percent, one.lru)] for one in found.groups])


def _best_split(found: Simulated) -> list[str]:
    heads = [SIZE, "LRU, equal", "best split", "fewer rows", "slots by layer"]
    rows = []
    for size, equal, split in zip(found.slots, found.lru, found.split, strict=True):
        fewer = 1 - split.lru / equal if equal else 0.0
        rows.append([number(size), _percent(equal), _percent(split.lru), _percent(fewer), _sizes(found, split)])
    note = "what if layers had hot buffers of their own size, in the memory of equal ones; no engine has that"
    return [wrapped("best split: ", note), table(heads, rows, left=(0, 4))]


def _sizes(found: Simulated, split: Split) -> str:
    if len(found.groups) > FEW_GROUPS:
        return f"{min(split.slots):,} to {max(split.slots):,}"
    return "; ".join(f"{ranges(group.layers)}: {own:,}" for group, own in zip(found.groups, split.slots, strict=True))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
