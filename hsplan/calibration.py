"""
What the logs of a server pin, the file that keeps it, and the budget of the same server with something changed.

The budget of a server grows with its memory fraction f along a line: B(f) = B(f₀) + (f − f₀) × S, where S is the memory
that the fraction multiplies (SGLang: free before weights; vLLM: visible memory). A run pins B at its own f to the bytes
that give exactly the tokens it printed, its lines pin S; together they bound B at every other f. What else changes
moves the line by as much as the engine's own rule says.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hsplan.engines import Budget, Engine, Interval, Launch, Line
from hsplan.errors import InputError, Problem, shown
from hsplan.families import Model
from hsplan.files import check_regular, reason_of
from hsplan.spec import Deployment, Loaded, Offload
from hsplan.units import gib
from hsplan.version import __version__

SCHEMA = "hsplan.calibration/1"
MAX_FILE_BYTES = 2**20
# Keys that make another server: nothing of a log then holds.
SAME = (
    "engine", "preset", "gpu", "gpus", "nodes", "tp", "pp", "dp", "dp_attention", "ep", "cp", "pcp", "moe_a2a_backend",
    "enable_dp_lm_head", "layer_range",
)  # fmt: skip
WEIGHTS = ("weights", "draft weights")
# A weight difference from the inventory, against what the two logs of sglang #30531 show.
WEIGHT_DIFFERENCE_UNCERTAINTY = 0.03

Bytes = Annotated[int, Meta(ge=-(2**60), le=2**60)]


class Window(msgspec.Struct, frozen=True, array_like=True):
    """Bytes from `low` to `high`, both included."""

    low: Bytes
    high: Bytes


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server: its memory fraction, the budgets that its log allows, and the tokens it printed."""

    fraction: Annotated[float, Meta(gt=0, le=1)]
    budget_bytes: Window
    tokens: Annotated[int, Meta(ge=1)] | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One printed figure beside the plan's: `predicted` is [low, best, high]; `residual` is logged − best."""

    line: str
    unit: str
    predicted: Annotated[list[float], Meta(min_length=3, max_length=3)]
    logged: float
    residual: float
    cause: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a server's logs pin. `model_sha256` names model and weights, `deployment` and `offload` how it was launched.

    `fraction_of_bytes` is what the fraction multiplies; `weights_bytes` and `outside_bytes` (beyond the fraction) are
    for a reader, None where no line pins them; `compared` is every figure of the last log beside the plan's.
    """

    schema: str
    hsplan_version: str
    name: str
    model_sha256: str
    deployment: Deployment
    offload: Offload | None
    runs: Annotated[tuple[Run, ...], Meta(min_length=1, max_length=100)]
    fraction_of_bytes: Window
    weights_bytes: Window | None
    outside_bytes: Window | None
    compared: tuple[Compared, ...]

    def budget(self, fraction: float) -> Interval:
        """The budgets at `fraction` that all runs allow; raises InputError when they lie on no one line."""
        slopes = self._slopes()
        low, high = (_bound([side(run) for run in self.runs], slopes, fraction, highest=highest)
                     for side, highest in ((_lower, False), (_upper, True)))  # fmt: skip
        return Interval(low, (low + high) // 2, high)

    def _slopes(self) -> tuple[Fraction, Fraction]:
        """The slopes with which a line passes the windows of all runs."""
        low, high = Fraction(self.fraction_of_bytes.low), Fraction(self.fraction_of_bytes.high)
        for a, b in permutations(self.runs, 2):
            step = _exact(b.fraction) - _exact(a.fraction)
            if step > 0:
                low = max(low, (b.budget_bytes.low - a.budget_bytes.high) / step)
                high = min(high, (b.budget_bytes.high - a.budget_bytes.low) / step)
            elif step == 0 and a.budget_bytes.high < b.budget_bytes.low:
                raise _disagree(a, b)
        if low > high:
            what = f"no one server gives the budgets of these {len(self.runs)} runs"
            raise InputError(Problem(what=what, remedy="calibrate with logs of one server, changed in nothing else"))
        return low, high


def _bound(
    points: list[tuple[Fraction, int]], slopes: tuple[Fraction, Fraction], fraction: float, *, highest: bool
) -> int:
    """The highest or lowest budget at `fraction` on a line below, or above, all `points`, over all slopes."""
    at = _exact(fraction)
    corners = {(y - z) / (x - u) for (x, y), (u, z) in product(points, points) if x != u}
    tried = [*slopes, *(slope for slope in corners if slopes[0] <= slope <= slopes[1])]
    within, beyond = (min, max) if highest else (max, min)
    return int(beyond(within(y + slope * (at - x) for x, y in points) for slope in tried))


def _lower(run: Run) -> tuple[Fraction, int]:
    return _exact(run.fraction), run.budget_bytes.low


def _upper(run: Run) -> tuple[Fraction, int]:
    return _exact(run.fraction), run.budget_bytes.high


def _exact(fraction: float) -> Fraction:
    """The fraction as it was written: 0.7, not the double nearest to it."""
    return Fraction(str(fraction))


def _disagree(a: Run, b: Run) -> InputError:
    what = f"two logs disagree at memory fraction {a.fraction:g}: {_tokens(a)} and {_tokens(b)}"
    return InputError(Problem(what=what, remedy="calibrate with the logs of one server"))


def _tokens(run: Run) -> str:
    return f"{run.tokens:,} tokens" if run.tokens is not None else f"at most {gib(run.budget_bytes.high)}"


def digest(loaded: Loaded) -> str:
    """SHA-256 of the model's fields and of where its weights come from."""
    content = [loaded.spec.model, msgspec.to_builtins(loaded.spec.weights)]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def launched_as(loaded: Loaded, release: str) -> dict[str, Any]:
    """How a spec is launched, for a `Calibration`; `release` is what its own resolves to."""
    head = {"schema": SCHEMA, "hsplan_version": __version__, "model_sha256": digest(loaded)}
    deployment = msgspec.structs.replace(loaded.spec.deployment, release=release)
    return {**head, "deployment": deployment, "offload": loaded.spec.offload}


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file; raises InputError for anything else."""
    where, remedy = str(path), "write one with `hsplan calibrate SPEC --log FILE -o FILE`"
    try:
        check_regular(path)
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise InputError(Problem(where=where, what="is larger than 1 MiB; no calibration is", remedy=remedy))
        head = msgspec.json.decode(text, type=dict[str, Any]).get("schema")
        if head != SCHEMA:
            what = f"is no {SCHEMA}, but {shown(head)}" if head else "is no calibration"
            raise InputError(Problem(where=where, what=what, remedy=remedy))
        return msgspec.json.decode(text, type=Calibration)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(Problem(where=where, what=f"is no calibration: {shown(str(error))}", remedy=remedy)) from None
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise InputError(Problem(where=where, what=f"cannot be read: {shown(reason)}")) from None


def check_same_server(calibration: Calibration, loaded: Loaded) -> None:
    """Raise InputError, which names what differs, when the logs are of another server than `loaded`."""
    deployment, problems = loaded.spec.deployment, []
    if deployment.kv_budget != "auto":
        what = "a calibration and a given kv_budget say the same thing twice"
        problems.append(Problem(where=loaded.where("deployment.kv_budget"), what=what, remedy="leave out one of them"))
    if digest(loaded) != calibration.model_sha256:
        what = f"the calibration is of another model or other weights: {shown(calibration.name)}"
        problems.append(Problem(where=loaded.where("model"), what=what, remedy="calibrate again with this spec"))
    for key in SAME:
        there, here = getattr(calibration.deployment, key), getattr(deployment, key)
        if there != here:
            what = f"the calibration is of {key} {shown(there)}, this is {shown(here)}"
            problems.append(Problem(where=loaded.where(f"deployment.{key}"), what=what, remedy="calibrate again"))
    if problems:
        raise InputError(problems)


class Reference(msgspec.Struct, frozen=True):
    """The calibrated server as the plan sees it: its launch, and the budget of the scenario that it ran."""

    calibration: Calibration
    launch: Launch
    budget: Budget


def reference_of(calibration: Calibration, engine: Engine, loaded: Loaded, model: Model) -> Reference:
    """Plan the server whose logs were read; raises what planning it raises, or InputError for another server."""
    check_same_server(calibration, loaded)
    spec = msgspec.structs.replace(loaded.spec, deployment=calibration.deployment, offload=calibration.offload)
    launch = engine.resolve(msgspec.structs.replace(loaded, spec=spec), model)
    return Reference(calibration, launch, engine.budget(launch, engine.as_launched(launch)))


def calibrated(reference: Reference, launch: Launch, budget: Budget) -> Budget:
    """`budget` as the logs pin it: their line at this fraction, moved by what the rule gives for all other changes."""
    then = reference.launch
    line = reference.calibration.budget(launch.fraction)
    step = launch.fraction - then.fraction
    edges = [
        getattr(budget.kv_bytes, edge) - getattr(reference.budget.kv_bytes, edge) - round(step * getattr(of, edge))
        for of in [then.fraction_of]
        for edge in ("low", "best", "high")
    ]
    moved = Interval(min(edges), edges[1], max(edges))
    weights = abs(_weights(budget) - _weights(reference.budget))
    doubt = int(weights * WEIGHT_DIFFERENCE_UNCERTAINTY)
    kv = line + moved + Interval(-doubt, 0, doubt)
    more = kv.best - budget.kv_bytes.best
    formula = (
        f"{kv.best:,} B by {len(reference.calibration.runs)} logged run(s), {budget.kv_bytes.best:,} B by the rule"
    )
    correction = Line(name="correction by the log", bytes=-more, formula=formula, evidence="engine_log")
    return msgspec.structs.replace(
        budget, kv_bytes=kv, lines=(*budget.lines, correction), free_bytes=budget.free_bytes + more
    )


def _weights(budget: Budget) -> int:
    return sum(line.bytes for line in budget.lines if line.name in WEIGHTS)
