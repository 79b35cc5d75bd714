"""The way of a validation on a card, with a stand-in for the card; the kernels are interpreted."""

from types import SimpleNamespace

import msgspec
import pytest
import torch
from stand_in import GIB, HOST_POOL, MACHINE, RATE, TIMING, StandIn, confirmed, tiny

import hsplan
from hsplan.errors import CannotRunError, InputError
from hsplan.gpu import validate as whole
from hsplan.gpu import verdicts
from hsplan.measurement import LineCheck, TokenCheck
from hsplan_kernels.memory import HostMemoryError

FUNCTIONAL = ["pool rows", "64-bit offsets", "rows", "eviction order", "misses", "host rows", "index-K"]
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")


class Card:
    """What the parts that need a real card are asked, and what they answer."""

    def __init__(self, patch):
        self.machine = MACHINE
        self.asked = {}
        patch.setattr(whole, "Place", lambda _: StandIn("cpu"))
        patch.setattr(whole, "preflight", self.preflight)
        patch.setattr(whole, "confirm_tokens", confirmed)
        patch.setattr(whole, "measure_link", self.measure_link)
        patch.setattr(whole, "time_steps", self.time_steps)

    def preflight(self, *, host_memory, needed_host_bytes, progress, group):
        del group
        self.asked["preflight"] = (host_memory, needed_host_bytes)
        progress(1, 2)
        return self.machine

    def measure_link(self, *, row_bytes, pool_bytes, rows_per_call, progress, group):
        del group
        self.asked["link"] = (row_bytes, pool_bytes, rows_per_call)
        progress(1, 1)
        return (RATE,), (RATE,)

    def time_steps(self, decode, alone, together, report, group):
        del group
        self.asked["timing"] = (decode.steps_done, alone, together)
        report("timing", 1, 1)
        return (), (TIMING,)

    def validate(self, report=lambda *_: None, **options):
        return whole.validate(hsplan.plan(tiny()), gpu=True, report=report, **options)


@pytest.fixture
def card(monkeypatch):
    return Card(monkeypatch)


@pytest.fixture(scope="module")
def done():
    """The card after a whole validation of two steps, what was found, and the stages that were told."""
    told = []
    with pytest.MonkeyPatch.context() as patch:
        card = Card(patch)
        found = card.validate(steps=2, report=lambda what, *_: told.append(what))
    return card, found, list(dict.fromkeys(told))


@interpreted
def test_every_claim_of_a_card_is_checked_and_holds(done):
    names = ["plan", "ledger", "tokens, elided", "tokens, offload", "room", *FUNCTIONAL]
    assert [(check.name, check.passed) for check in done[1].checks] == [(name, True) for name in names]


@interpreted
def test_the_stages_come_in_this_order(done):
    assert done[2] == [
        "host memory touched, GiB",
        "pools grown to the limit",
        "link",
        "pools",
        "prompts to host memory",
        "decode steps, every row checked",
        "host memory read back",
        "timing",
    ]


@interpreted
def test_the_run_has_the_sizes_of_the_plan(done):
    run = done[1].run
    assert (run.steps, run.requests, run.context, run.layers, run.owners) == (2, 2, 192, 2, 1)
    assert (run.top_k, run.slots, run.row_bytes, run.host_bytes) == (16, 64, 656, 2 * 192 * 656 * 2)
    assert done[1].scaled == ()


@interpreted
def test_the_preflight_is_asked_for_the_host_pool_of_the_plan(done):
    assert done[0].asked["preflight"] == (None, 2 * (2 * 640 + 64) * 656)


@interpreted
def test_the_link_is_measured_on_pools_that_the_host_memory_holds(done):
    # Of one layer: 2 requests × 192 tokens × 656 B; pools of 1 GiB and more do not fit into the host memory.
    assert done[0].asked["link"] == (656, (251_904,), (256, 4096, 16384))


@interpreted
def test_times_are_taken_after_the_checked_steps_and_with_the_link_of_this_run(done):
    assert done[0].asked["timing"] == (2, (RATE,), (RATE,))
    assert (done[1].link, done[1].timings) == ((RATE,), (TIMING,))


@interpreted
def test_room_is_left_for_graphs_and_activations(done):
    (room,) = [check for check in done[1].checks if check.name == "room"]
    # 2 × 5,725,224 + 2,080 of graphs and 2 GiB of activations are 2,158,936,176 B.
    assert room.detail == (
        "20.00 GiB are free beside weights and pools, 2.01 GiB of graphs and activations are planned"
    )


@interpreted
def test_a_fault_is_looked_for_without_link_tokens_and_times(card):
    found = card.validate(steps=4, fault="short-pool")
    assert [check.name for check in found.checks] == ["plan", "ledger", "room", *FUNCTIONAL]
    # A page of either layer is less than the 2 MiB that a ledger line may be off.
    assert [check.name for check in found.checks if not check.passed] == ["pool rows"]
    assert (found.link, found.tokens, found.timings) == ((), (), ())
    assert (found.injected, found.caught) == ("short-pool", True)
    assert set(card.asked) == {"preflight"}


@interpreted
def test_a_machine_with_less_host_memory_runs_fewer_tokens_and_says_so(card):
    card.machine = msgspec.structs.replace(MACHINE, host_bytes=HOST_POOL - 1)
    found = card.validate(steps=1)
    # 640 × 0.97 in whole pages
    assert found.scaled == ("pools of 576 device tokens instead of 640: host memory is smaller than planned",)
    assert all(check.passed for check in found.checks)


def test_a_fault_of_elided_layers_is_refused_before_anything_is_done(card):
    plan = hsplan.plan(tiny(indexer_types=("full", "full")))
    with pytest.raises(InputError, match="needs a layer that shares top-k"):
        whole.validate(plan, gpu=True, fault="elided-layer-written", report=lambda *_: None)
    assert card.asked == {}


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 1000), ({"fault": "missing-wait"}, 40), ({"steps": 7}, 7), ({"steps": 7, "fault": "missing-wait"}, 7)],
)
def test_a_card_takes_1000_steps_and_40_for_a_fault_unless_told_otherwise(monkeypatch, options, steps):
    monkeypatch.setattr(whole, "_on_gpu", lambda _plan, steps, *_: SimpleNamespace(measurement=steps))
    assert whole.validate(hsplan.plan(tiny()), gpu=True, report=lambda *_: None, **options) == steps


def raising(error):
    def call(*_):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (HostMemoryError("cannot pin", "raise memlock"), "cannot pin", "raise memlock"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nSee documentation"),
            "the GPU failed: CUDA out of memory. Tried 2 GiB",
            "see what nvidia-smi says; stop other processes there",
        ),
    ],
)
def test_memory_that_cannot_be_had_is_a_machine_that_cannot_run_it(monkeypatch, error, what, remedy):
    monkeypatch.setattr(whole, "_on_gpu", raising(error))
    with pytest.raises(CannotRunError) as caught:
        whole.validate(hsplan.plan(tiny()), gpu=True, report=lambda *_: None)
    (problem,) = caught.value.problems
    assert (problem.what, problem.remedy) == (what, remedy)


def test_an_error_that_is_not_the_cards_is_not_blamed_on_it(monkeypatch):
    monkeypatch.setattr(whole, "_on_gpu", raising(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        whole.validate(hsplan.plan(tiny()), gpu=True, report=lambda *_: None)


@pytest.mark.parametrize(
    ("types", "names"),
    [(["full", "shared"], ["elided", "offload"]), (["full", "full"], ["baseline", "offload"])],
)
@pytest.mark.usefixtures("card")
def test_tokens_are_confirmed_once_for_each_cache_that_the_engine_runs(types, names):
    plan = hsplan.plan(tiny(indexer_types=types))
    assert [check.scenario for check in whole._tokens(plan, StandIn("cpu"), lambda *_: None)] == names


def test_a_line_that_is_off_is_named_with_both_figures():
    lines = (
        LineCheck(name="KV rows", place="gpu", predicted_bytes=40_000_000, measured_bytes=37_000_000),
        LineCheck(name="index-K", place="gpu", predicted_bytes=5, measured_bytes=5),
    )
    check = verdicts.ledger_check(lines)
    assert (check.passed, check.detail) == (False, "KV rows: 37,000,000 B, not 40,000,000 B")


def test_tokens_that_are_off_are_told_with_both_figures():
    check = verdicts.token_check(
        TokenCheck(scenario="elided", kv_budget_bytes=GIB, predicted_tokens=64_000, confirmed_tokens=32_000)
    )
    assert (check.name, check.passed) == ("tokens, elided", False)
    assert check.detail == "32,000 confirmed, 64,000 predicted"


@pytest.mark.parametrize(("free", "passed"), [(2_158_936_176, True), (2_158_936_175, False)])
def test_room_must_hold_graphs_and_activations_to_the_byte(free, passed):
    plan = hsplan.plan(tiny())
    fit = verdicts.Fitted(plan=plan, entry=plan.scenarios["elided+offload"], weight_bytes=0, notes=())
    assert verdicts.room_check(fit, free).passed is passed
