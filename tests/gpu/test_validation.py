"""A whole validation on Triton's interpreter: every claim holds, and every known fault fails the claims listed here."""

import msgspec
import pytest
import torch

import hsplan
from hsplan.errors import InputError, UnsupportedError
from hsplan.gpu import small
from hsplan.gpu.faults import CAUGHT_BY, FAULTS
from hsplan.gpu.validate import validate

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")

MODEL = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}
TYPES = {"F": "full", "S": "shared"}


def plan_of(layers, *, engine="sglang", **deployment):
    """A plan of a model with a layer for each letter of `layers`: F computes top-k, S shares it."""
    model = {**MODEL, "num_hidden_layers": len(layers), "indexer_types": [TYPES[letter] for letter in layers]}
    given = {"gpu": "h200", "tp": 1, "kv_budget": "64GiB", "kv_cache_dtype": "fp8_e4m3", **deployment}
    return hsplan.plan({"name": "tiny", "model": model, "deployment": given}, engine=engine)


def quiet(what, done, total):
    del what, done, total


@pytest.fixture
def short(monkeypatch):
    """Requests of 80 tokens: enough for hot buffers of 32 to be too small."""
    monkeypatch.setattr(small, "CONTEXT", 80)


def interpreted(plan, **options):
    return validate(plan, **{"gpu": False, "report": quiet, **options})


def failing(found):
    return {check.name for check in found.checks if not check.passed}


@pytest.fixture(scope="module")
def whole():
    """A validation at the sizes that a user gets, and what it told of its way."""
    told = []
    plan = plan_of("FFSFSS")
    return plan, validate(plan, gpu=False, report=lambda *step: told.append(step)), told


def test_every_claim_is_checked_and_holds(whole):
    found = whole[1]
    assert [(check.name, check.passed) for check in found.checks] == [
        ("plan", True),
        ("ledger", True),
        ("pool rows", True),
        ("64-bit offsets", True),
        ("rows", True),
        ("eviction order", True),
        ("misses", True),
        ("host rows", True),
        ("index-K", True),
    ]
    assert found.passed


def test_the_run_stops_at_the_first_layer_that_computes_top_k_after_one_that_shares_it(whole):
    run = whole[1].run
    assert (run.layers, run.owners, run.steps, run.requests) == (4, 3, 6, 2)
    assert (run.context, run.top_k, run.slots, run.row_bytes) == (256, 16, 32, 656)


def test_every_row_of_every_step_and_layer_is_checked(whole):
    run = whole[1].run
    assert run.rows_checked == 6 * 2 * 16 * 4
    assert run.host_bytes == 2 * 256 * 656 * 4


def test_cold_requests_miss_much_and_then_less(whole):
    run = whole[1].run
    # At the first step all but the newest token are missed, in four layers of two requests.
    assert 15 * 2 * 4 < run.rows_loaded < run.rows_checked // 2
    assert 0.1 < run.miss_share < 0.5


def test_each_check_says_on_how_much(whole):
    details = {check.name: check.detail for check in whole[1].checks}
    rows_loaded = f"{whole[1].run.rows_loaded} rows loaded"
    assert details == {
        "plan": "887 requests, gpu binds",
        "ledger": "6 lines",
        "pool rows": "8 pools",
        "64-bit offsets": "10 rows",
        "rows": "768 rows of 656 B in 6 steps and 4 layers",
        "eviction order": "1,152 slots over all steps",
        "misses": rows_loaded,
        "host rows": "2,008 rows",  # 255 and 247 tokens are in host memory, of the two requests and their newest tokens
        "index-K": "36 keys in 3 of 4 layers",
    }


def test_the_ledger_of_the_whole_plan_is_compared_and_not_that_of_the_small_pools(whole):
    plan, found, _ = whole
    tokens = plan.scenarios["elided+offload"].pools.tokens.best
    lines = {line.name: (line.place, line.predicted_bytes, line.measured_bytes) for line in found.lines}
    assert lines["KV rows"] == ("gpu", (tokens + 64) * 656 * 6, (tokens + 64) * 656 * 6)
    assert lines["host KV pool"] == ("host", (2 * tokens + 64) * 656 * 6, (2 * tokens + 64) * 656 * 6)
    assert list(lines) == [
        "KV rows",
        "index-K",
        "HiSparse request tables",
        "logical to device map",
        "host KV pool",
        "request to token table",
    ]


def test_the_machine_is_the_interpreter_and_nothing_is_measured(whole):
    found = whole[1]
    assert found.machine.gpu == "interpreter"
    assert (found.machine.memory_bytes, found.machine.free_bytes, found.machine.host_bytes) == (None, None, None)
    assert (found.link, found.tokens, found.timings) == ((), (), ())


def test_what_was_made_smaller_and_what_was_not_checked_is_said(whole):
    found = whole[1]
    assert found.scaled == ("4 layers, top-k 16, hot buffers of 32 tokens: sizes for Triton's interpreter",)
    assert found.not_checked == (
        "tokens, memory, the link and times: no GPU was used; the ledger is compared with shapes",
    )


def test_nothing_was_injected(whole):
    assert (whole[1].name, whole[1].scenario) == ("tiny", "elided+offload")
    assert (whole[1].injected, whole[1].caught) == (None, None)


def test_the_way_is_told_stage_by_stage(whole):
    assert whole[2] == [
        ("prompts to host memory", 1, 2),
        ("prompts to host memory", 2, 2),
        ("decode steps, every row checked", 6, 6),
        ("host memory read back", 1, 4),
        ("host memory read back", 2, 4),
        ("host memory read back", 3, 4),
        ("host memory read back", 4, 4),
    ]


def test_a_measurement_can_be_written_as_json(whole):
    data = msgspec.json.decode(msgspec.json.encode(whole[1].to_dict()))
    assert (data["schema"], data["passed"], data["run"]["owners"]) == ("hsplan.measurement/1", True, 3)


# The claims that fail, and no others do.
FAILING = {
    "missing-wait": {"rows", "host rows"},
    "int32-offsets": {"64-bit offsets"},
    "elided-layer-written": {"index-K"},
    "eviction-order": {"eviction order"},
    "truncated-row": {"rows"},
    "short-pool": {"pool rows"},
    "ledger-formula": {"ledger"},
}


def test_every_known_fault_is_listed_here_and_has_its_check():
    assert set(FAULTS) == set(FAILING) == set(CAUGHT_BY)
    assert all(CAUGHT_BY[fault] in checks for fault, checks in FAILING.items())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_claims_that_it_breaks_and_no_other(fault):
    found = interpreted(plan_of("FS"), steps=4, fault=fault)
    assert failing(found) == FAILING[fault]
    assert (found.injected, found.caught, found.passed) == (fault, True, False)


@pytest.mark.usefixtures("short")
def test_the_layers_that_read_a_wrong_row_are_named():
    (rows,) = [c for c in interpreted(plan_of("FS"), steps=4, fault="truncated-row").checks if c.name == "rows"]
    assert rows.detail.endswith("of 256 rows of 656 B in 4 steps and 2 layers are wrong, in layers 1")


@pytest.mark.usefixtures("short")
def test_rows_of_bf16_are_checked_at_their_own_size():
    found = interpreted(plan_of("FS", kv_cache_dtype="bfloat16"), steps=3)
    assert failing(found) == set()
    assert (found.run.row_bytes, found.run.steps) == (1152, 3)


@pytest.mark.usefixtures("short")
def test_a_model_in_which_every_layer_computes_top_k_holds_too():
    found = interpreted(plan_of("FFFF"), steps=1)
    assert failing(found) == set()
    assert (found.run.layers, found.run.owners) == (2, 2)


def test_a_fault_of_elided_layers_needs_one():
    with pytest.raises(InputError, match="needs a layer that shares top-k, and all 2 compute it"):
        interpreted(plan_of("FFFF"), fault="elided-layer-written")


def test_a_fault_needs_steps_in_which_it_can_show():
    with pytest.raises(InputError, match="--steps: a fault may not show in 3 steps\n  give at least 4"):
        interpreted(plan_of("FS"), fault="missing-wait", steps=3)


def test_requests_of_the_interpreter_are_long_enough_for_its_most_steps():
    with pytest.raises(InputError, match="--steps: the interpreter takes at most 200 steps, not 201\n  give fewer"):
        interpreted(plan_of("FS"), steps=201)
    sizes = small.small_sizes(plan_of("FS"), plan_of("FS").scenarios["elided+offload"], 200)
    # At the first step the shorter request, by half a sixteenth, must not fit into its 32 slots.
    assert 256 - 200 - 8 > sizes.slots == 32


def refusal(plan):
    with pytest.raises(UnsupportedError) as caught:
        interpreted(plan)
    (problem,) = caught.value.problems
    return problem.what


def test_a_model_without_top_k_is_not_supported():
    dense = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2}
    fields = {**dense, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    plan = hsplan.plan({"model": fields, "deployment": {"gpu": "h200", "tp": 1, "kv_budget": "1GiB"}})
    assert refusal(plan).startswith("there is no offload to validate: HiSparse needs a model with a top-k indexer")


def test_the_blocks_of_vllm_are_not_supported():
    plan = hsplan.plan("glm-5.3-fp8", engine="vllm", kv_budget="20GiB")
    assert refusal(plan).startswith("the kernels are those of SGLang's hot buffers; vllm keeps hot rows in blocks")


def test_a_release_without_hisparse_is_not_supported():
    plan = plan_of("FF", engine="sglang@main-2026-03-01")
    assert refusal(plan).startswith("there is no offload to validate: main-2026-03-01 has no HiSparse")


def test_a_top_k_that_is_no_power_of_two_is_not_supported(monkeypatch):
    monkeypatch.setitem(MODEL, "index_topk", 1536)
    assert refusal(plan_of("FS")) == "the kernels take a power of two as top-k, not 1536"


def test_a_stage_that_begins_with_a_shared_top_k_is_not_supported():
    assert refusal(plan_of("FFSF", layer_range=[2, 4])).startswith(
        "the stage begins with a layer that shares the top-k"
    )


def test_a_plan_that_does_not_fit_is_a_claim_that_fails():
    found = validate(plan_of("FFSFSS", kv_budget="1MiB"), gpu=False, steps=1, report=lambda *_: None)
    assert [check.name for check in found.checks if not check.passed] == ["plan"]
