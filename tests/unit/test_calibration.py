"""The line of the budget by hand, the file, and what may change about a server that was calibrated."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hsplan
from hsplan import InputError
from hsplan.calibrate import calibrate
from hsplan.calibration import Calibration, Run, Window, read_calibration
from hsplan.spec import Deployment

GIB = 2**30
SERVER = {"gpu": "gb300", "tp": 4, "draft_layers": 1, "release": "0.5.17", "mem_fraction": 0.9}
# 2,574,848 tokens of 55,932 B: what #30531 printed before the change
LOW, HIGH = 2_574_848 * 55_932, 2_574_912 * 55_932 - 1
LOG = (
    b"[2026-08-14 10:00:00 TP0] max_total_num_tokens=2574848, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    b"max_running_requests=128, context_len=1048576, available_gpu_mem=20.00 GB\n"
)


def server(log: bytes = LOG, **changes) -> Calibration:
    return calibrate("glm-5.2-nvfp4", [("log", io.BytesIO(log))], **{**SERVER, **changes})


def planned(calibration, **changes):
    return hsplan.plan("glm-5.2-nvfp4", calibration=calibration, **{**SERVER, **changes})


def line_of(*runs: tuple[float, int, int], slope=(100, 100)) -> Calibration:
    return Calibration(
        schema="hsplan.calibration/1",
        hsplan_version="0",
        name="x",
        model_sha256="",
        deployment=Deployment(gpu="h200"),
        offload=None,
        runs=tuple(Run(fraction=f, budget_bytes=Window(low, high), tokens=None) for f, low, high in runs),
        fraction_of_bytes=Window(*slope),
        weights_bytes=None,
        outside_bytes=None,
        compared=(),
    )


@pytest.mark.parametrize(
    ("runs", "slope", "fraction", "budget"),
    [
        # a run at its own fraction is its own window
        ([(0.5, 10, 12)], (90, 110), 0.5, (10, 12)),
        # a quarter of 100 more
        ([(0.5, 10, 12)], (100, 100), 0.75, (35, 37)),
        # the slope's range widens it by a quarter of 20
        ([(0.5, 10, 12)], (90, 110), 0.75, (32, 39)),
        # two runs through (0, 50) and (50): the slope is 100 whatever else is known
        ([(0.25, 0, 0), (0.75, 50, 50)], (0, 1000), 0.5, (25, 25)),
        # the second window cuts what the first allows
        ([(0.5, 10, 20), (0.5, 15, 30)], (100, 100), 0.5, (15, 20)),
        ([(0.25, 0, 10), (0.75, 55, 70)], (100, 100), 0.5, (30, 35)),
    ],
)
def test_the_budget_at_another_fraction_by_hand(runs, slope, fraction, budget):
    found = line_of(*runs, slope=slope).budget(fraction)
    assert (found.low, found.high) == budget


@given(
    st.integers(10**9, 10**11),
    st.integers(-(10**11), 10**10),
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=4),
    st.integers(1, 99),
)
def test_the_true_line_always_lies_within_and_more_runs_never_widen(slope, start, drawn, percent):
    runs = []
    for at, below, above in drawn:
        true = start + Fraction(at, 100) * slope
        runs.append((at / 100, int(true // 1) - below, int(true // 1) + 1 + above))
    window = (slope - 5 * 10**6, slope + 10**6)
    found = line_of(*runs, slope=window).budget(percent / 100)
    true = start + Fraction(percent, 100) * slope
    assert found.low <= true
    assert true <= found.high + 1
    alone = line_of(runs[0], slope=window).budget(percent / 100)
    assert alone.low <= found.low
    assert found.high <= alone.high


def test_runs_of_two_servers_are_refused():
    with pytest.raises(InputError, match=r"two logs disagree at memory fraction 0\.5"):
        line_of((0.5, 10, 12), (0.5, 13, 15)).budget(0.5)
    with pytest.raises(InputError, match="no one server gives the budgets of these 2 runs"):
        line_of((0.25, 0, 10), (0.75, 80, 90)).budget(0.5)


def test_a_log_pins_the_budget_to_the_bytes_that_give_its_tokens():
    assert server().runs == (Run(fraction=0.9, budget_bytes=Window(LOW, HIGH), tokens=2_574_848),)


def test_a_calibrated_plan_has_the_tokens_of_the_log():
    tokens = planned(server()).launched.pools.tokens
    assert (tokens.low, tokens.best, tokens.high) == (2_574_848, 2_574_848, 2_574_848)


def test_hisparse_on_the_same_server_is_predicted_to_the_page():
    plan = planned(server(), offload={})
    assert plan.as_launched == "offload"
    tokens = plan.launched.pools.tokens
    # 576 × 78 raw becomes 656 × 78 packed, index-K doubles, × 79/78: 72,680 B
    assert tokens.low == LOW // 72_680 // 64 * 64
    assert tokens.high == HIGH // 72_680 // 64 * 64
    assert tokens.high - tokens.low <= 64


def test_elision_on_the_same_server_gives_the_tokens_that_its_change_logged():
    tokens = planned(server()).scenarios["elided"].pools.tokens
    assert tokens.low <= 3_002_752 <= tokens.high
    assert tokens.high - tokens.low < 0.001 * 3_002_752


def test_a_bf16_cache_on_the_same_server_takes_the_same_budget():
    budget = planned(server(), kv_cache_dtype="bfloat16").launched.budget
    assert (budget.kv_bytes.low, budget.kv_bytes.high) == (LOW, HIGH)


def test_memory_that_the_log_has_more_or_less_is_a_line_of_the_ledger():
    plain, calibrated = hsplan.plan("glm-5.2-nvfp4", **SERVER).launched, planned(server()).launched
    more = calibrated.budget.kv_bytes.best - plain.budget.kv_bytes.best
    line = next(line for line in calibrated.budget.lines if line.name == "correction by the log")
    assert (line.bytes, line.evidence) == (-more, "engine_log")
    assert calibrated.budget.free_bytes == plain.budget.free_bytes + more


def test_a_failed_start_of_sglang_pins_the_budget_by_the_least_fraction_it_names():
    log = (
        b"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. Raise "
        b"--mem-fraction-static above 0.648 (minimum viable = 1 - available/pre = 0.6470)."
    )
    found = server(log, mem_fraction=0.6)
    assert found.runs[0].tokens is None
    low, high = found.budget(0.6470).low, found.budget(0.6470).high
    assert low < 0 < high


def test_tokens_that_are_capped_pin_nothing_and_memory_does():
    capped = {"max_total_tokens": 2_574_848}
    with pytest.raises(InputError, match="nothing pins the KV budget: max_total_tokens caps the tokens"):
        server(**capped)
    memory = (
        b"[x TP0] Load weight begin. avail mem=274.70 GB\n"
        b"[x TP0] Load weight end. elapsed=9 s, type=G, avail mem=163.47 GB, mem usage=107.74 GB.\n"
    )
    # 163.47 − 274.70 × (1 − 0.9) GiB, each printed within 0.005
    budget = server(memory + LOG, **capped).runs[0].budget_bytes
    assert (round(budget.low / GIB, 4), round(budget.high / GIB, 4)) == (135.9945, 136.0055)


def test_memory_for_images_is_no_part_of_the_budget():
    memory = (
        b"[x TP0] Load weight begin. avail mem=138.00 GB\n"
        b"[x TP0] Load weight end. elapsed=9 s, type=G, avail mem=63.50 GB, mem usage=74.20 GB.\n"
    )
    flags = {"gpu": "h200", "tp": 8, "release": "0.5.23", "mem_fraction": 0.9}
    budget = calibrate("kimi-k2.5-int4", [("log", io.BytesIO(memory))], **flags).runs[0].budget_bytes
    # 63.50 − 13.80 − 100 MiB, within 0.0055
    assert (round(budget.low / GIB, 3), round(budget.high / GIB, 3)) == (49.597, 49.608)


@pytest.mark.parametrize("engine", ["sglang@0.5.23", "vllm@0.33.0"])
@pytest.mark.parametrize("spec", ["glm-5.2-fp8", "deepseek-v3-fp8", "deepseek-v4-flash", "minimax-m3-bf16"])
def test_the_tokens_of_every_family_calibrate_back_to_the_budget_that_gave_them(engine: str, spec: str):
    plan = hsplan.plan(spec, engine=engine)
    tokens, length = plan.launched.pools.tokens.best, plan.launch.context_len
    log = (
        f"[x TP0] max_total_num_tokens={tokens}, chunked_prefill_size=1, max_running_requests=1, context_len={length}"
        if engine.startswith("sglang")
        else f"[k.py:1] GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: 1x"
    )
    found = calibrate(spec, [("log", io.BytesIO(log.encode()))], engine=engine)
    window = found.runs[0].budget_bytes
    assert window.low <= plan.launched.budget.kv_bytes.best <= window.high
    again = hsplan.plan(spec, engine=engine, calibration=found).launched.pools.tokens
    assert (again.low, again.high) == (tokens, tokens)


def test_a_log_without_tokens_and_without_memory_pins_nothing():
    with pytest.raises(InputError, match="nothing pins the KV budget: no tokens are printed"):
        server(b"[x TP0] Memory pool end. avail mem=38.99 GB")


def test_vllm_with_a_longer_request_or_a_smaller_share_keeps_the_rest_of_its_budget():
    flags = {"engine": "vllm@0.33.0", "kv_cache_dtype": "fp8_e4m3", "max_model_len": 131_072}
    log = (
        b"(EngineCore pid=7) INFO 11-01 10:00:00 [k.py:1] GPU KV cache size: 640,000 tokens, "
        b"Maximum concurrency for 131,072 tokens per request: 4.88x"
    )
    calibration = calibrate("glm-5.2-fp8", [("log", io.BytesIO(log))], **flags)
    block = 64 * (78 * 656 + 21 * 132)
    assert calibration.runs[0].budget_bytes == Window(10_000 * block, 10_001 * block - 1)
    longer = hsplan.plan("glm-5.2-fp8", calibration=calibration, **{**flags, "max_model_len": 262_144}).launched
    # 5 × max_model_len rows of 1,152 B
    assert longer.budget.kv_bytes.low == 10_000 * block - 5 * 131_072 * 1_152
    # a fiftieth less of 143,771 MiB, of which CUDA hides 0.4 to 0.9 GiB
    less = hsplan.plan("glm-5.2-fp8", calibration=calibration, **flags, mem_fraction=0.9).launched.budget.kv_bytes
    assert less.low == pytest.approx(10_000 * block - (143_771 - 0.4 * 1024) * 2**20 / 50, abs=8)
    assert less.high == pytest.approx(10_001 * block - (143_771 - 0.9 * 1024) * 2**20 / 50, abs=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 8}, "the calibration is of tp 4, this is 8"),
        ({"gpu": "b300"}, "the calibration is of gpu gb300, this is b300"),
        ({"checkpoint": "fp8"}, "of another model or other weights"),
        ({"kv_budget": "100GiB"}, "say the same thing twice"),
    ],
)
def test_a_calibration_of_another_server_is_refused_by_what_differs(changes, message):
    with pytest.raises(InputError, match=message):
        planned(server(), **changes)


def test_a_calibration_survives_its_file(tmp_path: Path):
    path = tmp_path / "server.json"
    path.write_bytes(msgspec.json.encode(server()))
    assert read_calibration(path) == server()
    assert planned(str(path)).to_dict() == planned(server()).to_dict()


GOOD = json.loads(msgspec.json.encode(server()))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "\0", "[" * 100_000, '{"schema": "hsplan.calibration/2"}',
        json.dumps({**GOOD, "runs": []}),
        json.dumps({**GOOD, "runs": [{**GOOD["runs"][0], "fraction": 0}]}),
        json.dumps({**GOOD, "runs": [{**GOOD["runs"][0], "fraction": 1e999}]}),
        json.dumps({**GOOD, "runs": [{**GOOD["runs"][0], "budget_bytes": [1]}]}),
        json.dumps({**GOOD, "fraction_of_bytes": [0, 10**30]}),
        json.dumps({**GOOD, "fraction_of_bytes": [1.5, "\x1b[31m"]}),
        json.dumps(GOOD)[:-20],
        '{"schema": "' + "x" * 2_000_000 + '"}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_calibration_is_refused_in_two_printable_lines(tmp_path: Path, text: str):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_calibration(path)
    assert len(caught.value.lines()) <= 2
    assert all(line.isprintable() for line in caught.value.lines())


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_calibration(tmp_path / "none.json")
