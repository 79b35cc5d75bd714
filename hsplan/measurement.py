"""What a validation measured and proved, and its stable JSON form (`hsplan.measurement/1`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hsplan.version import __version__

SCHEMA = "hsplan.measurement/1"
LINE_SHARE = 1 / 1000  # a ledger line may be off by 0.1 %
LINE_BYTES = 2 * 2**20  # or by 2 MiB, the larger of the two
TOKEN_SHARE = 1 / 1000


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where it ran. `gpu` is "interpreter" without a card; figures that a machine does not tell are None.

    `link_generation`, `link_width`: PCIe as negotiated under load. `host_bytes`: what the host pool may take here.
    """

    gpu: str
    memory_bytes: int | None
    free_bytes: int | None
    driver: str | None
    torch: str
    triton: str
    link_generation: int | None
    link_width: int | None
    host_bytes: int | None
    warnings: tuple[str, ...] = ()


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """
    One ceiling of the host link: useful bytes per second, in GB (10^9 bytes).

    `driver`: who moves the bytes, the copy engine or a kernel. For a kernel: rows of `row_bytes` in `order` out of a
    pool of `pool_bytes`, `rows` a call.
    """

    driver: Literal["copy_engine", "gpu"]
    direction: Literal["h2d", "d2h"]
    gb_s: float
    row_bytes: int | None = None
    pool_bytes: int | None = None
    rows: int | None = None
    order: Literal["random", "sorted"] | None = None


class LineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger line against what the allocator took for its tensors, bytes."""

    name: str
    place: Literal["gpu", "host"]
    predicted_bytes: int
    measured_bytes: int

    @property
    def passed(self) -> bool:
        """Whether the two agree within 0.1 % or 2 MiB."""
        return abs(self.measured_bytes - self.predicted_bytes) <= max(LINE_BYTES, LINE_SHARE * self.predicted_bytes)


class TokenCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Device tokens of a scenario with `kv_budget_bytes`: by the engine's rule, and as many as the card took."""

    scenario: str
    kv_budget_bytes: int
    predicted_tokens: int
    confirmed_tokens: int

    @property
    def passed(self) -> bool:
        """Whether the two agree within 0.1 %."""
        return abs(self.confirmed_tokens - self.predicted_tokens) <= TOKEN_SHARE * self.predicted_tokens


class Percentiles(msgspec.Struct, frozen=True):
    """Microseconds."""

    p50: float
    p95: float
    p99: float


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """
    Swap-in of whole decode steps, all layers, in one mode.

    `step_us`: one step, `call_us`: a step over its layers. `gb_s`: useful bytes loaded, `ceiling_gb_s` what a plain
    gather of as many random rows a call out of as large a pool reaches in this run.
    """

    mode: Literal["eager", "graph", "graph, backup"]
    steps: int
    step_us: Percentiles
    call_us: Percentiles
    gb_s: float
    ceiling_gb_s: float

    @property
    def share(self) -> float:
        """`gb_s` of the ceiling."""
        return self.gb_s / self.ceiling_gb_s if self.ceiling_gb_s else 0.0


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of the plan or the kernels, and whether it held; `detail` says on how much, or what was wrong."""

    name: str
    claim: str
    passed: bool
    detail: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """
    The decode steps that were run: sizes as run, not as planned.

    `layers` and `owners` counted; `miss_share`: misses over top-k entries of all steps after the first tenth.
    """

    steps: int
    requests: int
    context: int
    layers: int
    owners: int
    row_bytes: int
    top_k: int
    slots: int
    host_bytes: int
    rows_checked: int
    rows_loaded: int
    miss_share: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """
    All that one validation found. `scaled` says what was made smaller than planned, and by how much.

    `injected`: the known fault that was put in, and `caught` whether the check that is there for it failed.
    """

    name: str
    scenario: str
    injected: str | None
    caught: bool | None
    machine: Machine
    scaled: tuple[str, ...]
    link: tuple[LinkRate, ...]
    lines: tuple[LineCheck, ...]
    tokens: tuple[TokenCheck, ...]
    run: Run
    timings: tuple[Timing, ...]
    checks: tuple[Check, ...]
    not_checked: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every claim held."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data under the contract `hsplan.measurement/1`."""
        head = {"schema": SCHEMA, "hsplan_version": __version__, "passed": self.passed}
        return {**head, **msgspec.to_builtins(self)}
