"""
`hsplan validate`: exit codes, what goes where, and that nothing is lost or left.

A stand-in takes the place of the validation where it is not the subject: it finds what a test wants, in no time.
Torch and triton are imported in processes of their own alone, few of them: each start takes seconds.
"""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from types import ModuleType

import msgspec
import pytest
from readings import INTERPRETER, measurement

from hsplan.cli.heavy import interrupts_held, load
from hsplan.errors import CannotRunError, Problem
from hsplan.gpu.faults import FAULTS
from hsplan.measurement import Check, LineCheck, Run

WITHOUT_TORCH = importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None
needs_torch = pytest.mark.skipif(WITHOUT_TORCH, reason="needs torch and triton")
TINY = """\
name: tiny
model:
  architectures: [GlmMoeDsaForCausalLM]
  num_hidden_layers: 2
  kv_lora_rank: 512
  qk_rope_head_dim: 64
  index_topk: 2048
  index_head_dim: 128
  indexer_types: [full, shared]
deployment: {gpu: h200, tp: 1, kv_budget: 64GiB, kv_cache_dtype: fp8_e4m3}
"""
FOUND = measurement(
    machine=INTERPRETER,
    lines=(LineCheck(name="KV rows", place="gpu", predicted_bytes=1000, measured_bytes=1000),),
    run=Run(
        steps=6,
        requests=2,
        context=256,
        layers=7,
        owners=4,
        row_bytes=656,
        top_k=16,
        slots=32,
        host_bytes=2_351_104,
        rows_checked=1344,
        rows_loaded=440,
        miss_share=0.25,
    ),
    checks=(
        Check(name="ledger", claim="it is true", passed=True, detail="1 lines"),
        Check(name="rows", claim="they are right", passed=True, detail="1,344 rows"),
    ),
)
WRONG = (FOUND.checks[0], Check(name="rows", claim="they are right", passed=False, detail="3 rows are wrong"))
KEYS = {
    "schema", "hsplan_version", "passed", "name", "scenario", "injected", "caught", "machine", "scaled", "link",
    "lines", "tokens", "run", "timings", "checks", "not_checked",
}  # fmt: skip


class StandIn:
    """In the place of hsplan.gpu.validate: `asked` holds the options of each call, `found` is what it finds."""

    def __init__(self):
        self.found = FOUND
        self.error = None
        self.asked = []

    def validate(self, plan, *, report, **options):
        self.asked.append({"plan": plan, **options})
        for done in range(3):
            report("decode steps", done, 3)
        report("host memory", 1, 1)
        if self.error is not None:
            raise self.error
        return self.found

    def finds(self, **changes):
        self.found = msgspec.structs.replace(FOUND, **changes)


@pytest.fixture
def validation(monkeypatch):
    stand_in = StandIn()
    module = ModuleType("hsplan.gpu.validate")
    module.validate = stand_in.validate
    monkeypatch.setitem(sys.modules, "hsplan.gpu.validate", module)
    monkeypatch.setattr("hsplan.cli.validate.load", lambda *_, **__: None)  # torch is not needed
    for name in ("TRITON_INTERPRET", "PYTORCH_CUDA_ALLOC_CONF"):  # set back at the end, whatever the command does
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return stand_in


@pytest.fixture
def tiny(tmp_path):
    """The path of a spec of two layers, of which the second shares the top-k."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def test_claims_that_hold_exit_with_0_and_are_printed(run, validation, glm):
    code, out, err = run("validate", glm)
    assert code == 0
    assert out.startswith(
        "my-glm: sglang 0.5.23, elided+offload, on Triton's interpreter, torch 2.13.0, triton 3.9.0\n"
    )
    assert out.splitlines()[-1] == "all 2 claims hold on the interpreter"
    assert "\nrows    holds    1,344 rows\n" in out
    assert err == "validate, 0 s: decode steps\nvalidate, 0 s: host memory\n"
    assert len(validation.asked) == 1


def test_a_claim_that_fails_exits_with_1_and_is_named(run, validation, glm):
    validation.finds(checks=WRONG)
    code, out, err = run("validate", glm)
    assert code == 1
    assert out.splitlines()[-1] == "1 of 2 claims fail on the interpreter"
    assert "rows fails: the claim is that they are right" in out
    assert err.splitlines()[-1] == "validation failed: rows"


def test_a_fault_that_is_caught_exits_with_1(run, validation, glm):
    validation.finds(checks=WRONG, injected="missing-wait", caught=True)
    code, out, err = run("validate", glm, "--inject", "missing-wait")
    assert code == 1
    assert out.splitlines()[-1] == "injected missing-wait: caught"
    assert err.splitlines()[-1] == "validation failed: rows"


def test_a_fault_that_is_not_caught_is_a_bug_and_exits_with_5(run, validation, glm):
    validation.finds(injected="missing-wait", caught=False)
    code, out, err = run("validate", glm, "--inject", "missing-wait")
    assert code == 5
    assert out.splitlines()[-1] == "injected missing-wait: NOT CAUGHT"
    assert err.splitlines()[-1] == "a bug of hsplan: the fault missing-wait was not caught"


def test_a_fault_is_not_caught_by_another_claim_than_its_own(run, validation, glm):
    validation.finds(checks=WRONG, injected="ledger-formula", caught=False)
    assert run("validate", glm, "--inject", "ledger-formula")[0] == 5


def test_a_machine_that_cannot_run_it_exits_with_4(run, validation, glm):
    validation.error = CannotRunError(Problem(what="no GPU here", remedy="find one"))
    code, out, err = run("validate", glm, "--gpu")
    assert (code, out) == (4, "")
    assert err.splitlines()[-2:] == ["no GPU here", "  find one"]


def test_json_is_the_measurement(run, validation, glm):
    code, out, _ = run("validate", glm, "--json")
    data = json.loads(out)
    assert (code, len(validation.asked)) == (0, 1)
    assert set(data) == KEYS
    assert (data["schema"], data["passed"], data["name"]) == ("hsplan.measurement/1", True, "my-glm")
    assert data["run"]["miss_share"] == 0.25


def test_json_goes_to_a_file_and_nothing_to_stdout(run, validation, tmp_path, glm):
    target = tmp_path / "measured.json"
    validation.finds(checks=WRONG)
    code, out, _ = run("validate", glm, "--json", "-o", str(target))
    assert (code, out) == (1, "")
    assert json.loads(target.read_bytes())["passed"] is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measured.json", "my_model.yaml"]


def test_the_text_goes_to_a_file_too(run, validation, tmp_path, glm):
    target = tmp_path / "measured.txt"
    assert run("validate", glm, "-o", str(target))[:2] == (0, "")
    assert target.read_text("utf-8").endswith("all 2 claims hold on the interpreter\n")
    assert len(validation.asked) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/plan.json", "No such file or directory"), (".", "it is a folder"), ("/dev/null", "not a regular file")],
)
def test_a_file_that_cannot_be_written_is_found_before_the_run(run, validation, tmp_path, glm, name, reason):
    code, out, err = run("validate", glm, "-o", str(tmp_path / name))
    assert (code, out, validation.asked) == (2, "", [])
    assert reason in err.splitlines()[0]
    assert len(err.splitlines()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_read_only_is_found_before_the_run(run, validation, tmp_path, glm):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert run("validate", glm, "-o", str(tmp_path / "locked/plan.json"))[0] == 2
    assert validation.asked == []


def test_a_run_that_fails_leaves_the_old_file_and_no_other(run, validation, tmp_path, glm):
    target = tmp_path / "measured.json"
    target.write_text("old")
    validation.error = CannotRunError(Problem(what="no GPU here"))
    assert run("validate", glm, "--json", "-o", str(target))[0] == 4
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measured.json", "my_model.yaml"]


def test_ctrl_c_exits_with_130_and_leaves_nothing(run, validation, tmp_path, glm):
    validation.error = KeyboardInterrupt()
    code, out, err = run("validate", glm, "-o", str(tmp_path / "measured.json"))
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "validate, 0 s: host memory"
    assert [path.name for path in tmp_path.iterdir()] == ["my_model.yaml"]


def test_options_reach_the_validation(run, validation, glm):
    args = ("--gpu", "--steps", "50", "--host-memory", "96GiB", "--inject", "short-pool")
    assert run("validate", glm, *args, "--planned-gpu", "b200", "--context", "65536")[0] == 0
    (asked,) = validation.asked
    plan = asked.pop("plan")
    assert asked == {"gpu": True, "steps": 50, "host_memory": 103_079_215_104, "fault": "short-pool"}
    assert (plan.launch.gpu.name, plan.launch.loaded.spec.workload.context) == ("b200", 65_536)


def test_without_options_the_validation_decides(run, validation, glm):
    assert run("validate", glm)[0] == 0
    (asked,) = validation.asked
    assert asked.pop("plan").name == "my-glm"
    assert asked == {"gpu": False, "steps": None, "host_memory": None, "fault": None}


@pytest.mark.parametrize("value", ["auto", "here"])
def test_host_memory_may_be_asked_of_the_machine(run, validation, glm, value):
    assert run("validate", glm, "--host-memory", value)[0] == 0
    assert validation.asked[0]["host_memory"] is None


def test_without_a_gpu_the_kernels_are_interpreted(run, validation, glm):
    assert run("validate", glm)[0] == 0
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert len(validation.asked) == 1


def test_on_a_gpu_they_are_not_whatever_the_shell_says(run, validation, glm, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run("validate", glm, "--gpu")[0] == 0
    assert "TRITON_INTERPRET" not in os.environ
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert len(validation.asked) == 1


@pytest.mark.parametrize(
    ("args", "first", "second"),
    [
        (["--inject", "eviction"], "--inject: unknown fault eviction", "did you mean eviction-order?"),
        (["--inject", "x"], "--inject: unknown fault x", f"known: {', '.join(FAULTS)}"),
        (["--host-memory", "12XB"], "--host-memory: 12XB is no size", "unknown unit 'XB'"),
        (["--host-memory", "-1"], "--host-memory: -1 is no size", "write bytes"),
        (["--host-memory", "null"], "--host-memory: null is no size", "write bytes"),
        (["--host-memory", "1GiB", "--host-memory", "2GiB"], "validate runs one plan", "give each option once"),
        (["--tp", "4", "--tp", "8"], "validate runs one plan", "give each option once"),
        (["--steps", "0"], "Invalid value for '--steps'", "see `hsplan validate --help`"),
        (["--ranks", "0"], "Invalid value for '--ranks'", "see `hsplan validate --help`"),
        (["--ranks", "two"], "Invalid value for '--ranks'", "see `hsplan validate --help`"),
        (["--gpu", "h200"], "Got unexpected extra argument", "see `hsplan validate --help`"),
        (["--planned-gpu", "h2000"], "--planned-gpu: unknown GPU 'h2000'", "did you mean h200"),
        (["--gpus", "abc"], "--gpus: 'abc' is not valid", ""),
    ],
)
def test_a_wrong_option_exits_with_2_and_nothing_is_run(run, validation, glm, args, first, second):
    code, out, err = run("validate", glm, *args)
    assert (code, out, validation.asked) == (2, "", [])
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(first)
    assert lines[1].startswith(f"  {second}")


def test_another_number_of_ranks_than_torchrun_has_started_exits_with_2(run, validation, glm, monkeypatch):
    seat = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 8, "MASTER_PORT": 29500}
    for name, value in seat.items():
        monkeypatch.setenv(name, str(value))
    code, out, err = run("validate", glm, "--ranks", "2")
    assert (code, out, validation.asked) == (2, "", [])
    assert err.splitlines()[0] == "--ranks: 2 ranks, but WORLD_SIZE is 8"


def test_a_spec_without_a_gpu_is_told_of_the_option_of_this_command(run, validation, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("gpu: h200, ", ""))
    code, _, err = run("validate", str(path), "--gpu")
    assert (code, validation.asked) == (2, [])
    assert err.splitlines()[1].startswith("  give --planned-gpu, or write it in a spec; ")


def raising(error):
    def fail(name):
        raise error(f"{name} is broken")

    return fail


@pytest.mark.parametrize("name", ["numpy", "torch", "triton"])
def test_without_a_library_it_says_what_to_install(run, validation, glm, monkeypatch, name):
    del validation
    monkeypatch.setattr("hsplan.cli.validate.load", load)
    monkeypatch.setitem(sys.modules, name, None)
    code, out, err = run("validate", glm)
    assert (code, out) == (4, "")
    assert err.startswith(f"{name} cannot be imported: ModuleNotFoundError: ")
    assert err.endswith('\n  pip install "hsplan[gpu]"\n')


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError, AttributeError, SystemExit])
def test_a_broken_library_is_a_fault_of_the_machine(run, validation, glm, monkeypatch, error):
    del validation
    monkeypatch.setattr("hsplan.cli.validate.load", load)
    monkeypatch.setattr(importlib, "import_module", raising(error))
    code, out, err = run("validate", glm)
    assert (code, out) == (4, "")
    assert err.startswith(f"numpy cannot be imported: {error.__name__}: numpy is broken")


def test_what_only_has_the_name_of_a_library_is_not_taken_for_it(run, validation, glm, monkeypatch):
    del validation
    monkeypatch.setattr("hsplan.cli.validate.load", load)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert run("validate", glm)[0] == 4


def test_an_interrupt_while_libraries_load_comes_at_the_end():
    loaded = []

    def load_slowly():
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            loaded.append("torch")

    with pytest.raises(KeyboardInterrupt):
        load_slowly()
    assert loaded == ["torch"]


@needs_torch
def test_the_kernels_run_and_only_the_report_goes_to_stdout(process, tiny):
    done = process("validate", tiny, "--steps", "1", env={"TRITON_INTERPRET": "0"})
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("tiny: sglang 0.5.23, elided+offload, on Triton's interpreter, torch ")
    assert lines[1].startswith(
        "run: 1 steps, 2 requests of 256 tokens, 2 layers, 1 of them with top-k 16, rows of 656 B"
    )
    assert lines[-1] == "all 9 claims hold on the interpreter"
    told = done.stderr.decode().splitlines()
    assert [line.split(": ")[1] for line in told] == [
        "prompts to host memory",
        "decode steps, every row checked",
        "host memory read back",
    ]
    assert all(line.startswith("validate, ") for line in told)


@needs_torch
def test_an_injected_fault_is_caught_by_name(process, tiny, tmp_path):
    done = process("validate", tiny, "--steps", "4", "--inject", "eviction-order", "--json", "-o", "measured.json")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().splitlines()[-1] == "validation failed: eviction order"
    data = json.loads((tmp_path / "measured.json").read_bytes())
    assert set(data) == KEYS
    assert (data["schema"], data["injected"], data["caught"]) == ("hsplan.measurement/1", "eviction-order", True)
    assert [check["name"] for check in data["checks"] if not check["passed"]] == ["eviction order"]


@needs_torch
def test_a_model_without_top_k_exits_with_3(process):
    done = process("validate", "kimi-k2-fp8")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"there is no offload to validate: ")


@needs_torch
def test_a_machine_without_a_gpu_exits_with_4_and_says_what_can_be_done(process, glm):
    done = process("validate", glm, "--gpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stdout) == (4, b"")
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("no GPU here: ")
    assert lines[1].endswith("`hsplan validate SPEC` without --gpu runs the kernels in Triton's interpreter")
    assert len(lines) == 2


@needs_torch
def test_ctrl_c_in_the_middle_of_a_run_exits_with_130_and_leaves_nothing(tiny, tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "hsplan", "validate", tiny, "--steps", "200", "-o", "measured.txt"]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        first = running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert (first.split(b": ")[1], out, err) == (b"prompts to host memory\n", b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
