"""Wrong input on the command line: at most two lines a problem, the right exit code, never a traceback."""

import pytest

from hsplan.cli import estimate as command
from hsplan.cli.grid import scalar
from hsplan.errors import InputError


@pytest.mark.parametrize(
    ("args", "code", "first"),
    [
        (["--tp", "abc"], 2, "--tp: 'abc' is not valid"),
        (["--tp", "0"], 2, "--tp: 0 is not valid"),
        (["--tp", ""], 2, "--tp: None is not valid"),
        (["--kv-budget", "12XB"], 2, "--kv-budget: '12XB' is not a size"),
        (["--layer-range", "[0,99]"], 2, "--layer-range: [0, 99) goes past the model's 78 layers"),
        (["--gpu", "h2000"], 2, "--gpu: unknown GPU 'h2000'"),
        (["--tpp", "4"], 2, "No such option"),
        (["--gpus"], 2, "Option '--gpus' requires an argument."),
        (["--context", "2000000"], 2, "--context: requests of 2,000,000 tokens, but the engine stops at 1,048,576"),
        (["--engine", "tensorrt"], 3, "--engine: unknown engine 'tensorrt'"),
        (["--engine", "sglang@0.4.0"], 3, None),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(run, glm, args, code, first):
    found, out, err = run("estimate", glm, *args)
    assert (found, out) == (code, "")
    assert first is None or err.splitlines()[0].startswith(first)
    assert len(err.splitlines()) == 2
    assert err.splitlines()[1].startswith("  ")


def test_every_wrong_option_is_reported_at_once(run, glm):
    err = run("estimate", glm, "--tp", "abc", "--pp", "0", "--kv-budget", "x")[2]
    assert [line.split(":")[0] for line in err.splitlines()[::2]] == ["--tp", "--pp", "--kv-budget"]


def test_an_unknown_architecture_exits_with_3(run, tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text("model: {architectures: [NewForCausalLM]}\ndeployment: {gpu: h200, tp: 8}\n")
    code, out, err = run("estimate", str(path))
    assert (code, out) == (3, "")
    assert f"{path}:1: model.architectures: unknown architecture 'NewForCausalLM'" in err


@pytest.mark.parametrize(
    "args",
    [["estimate"], ["estimat"], ["estimate", "a", "b"], ["specs", "sho"], ["specs", "import", "x", "--gpu", "h200"]],
)
def test_a_wrong_command_line_is_two_lines_in_the_style_of_all_errors(run, args):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2
    assert "see `hsplan" in err.splitlines()[1]


def test_a_misspelt_option_names_the_near_ones(run, glm):
    assert "did you mean --draft-layers? " in run("estimate", glm, "--draft-layer", "1")[2]


@pytest.mark.parametrize("name", ["", "no-such-spec", "/", "a/" + "x" * 5000, "a\0b", "\x1b[31m", "\udcff"])
def test_a_spec_that_is_not_there_exits_with_2(run, name):
    code, out, err = run("estimate", name)
    assert (code, out) == (2, "")
    assert 1 <= len(err.splitlines()) <= 2
    assert "\x1b" not in err


def _raising(error):
    def plan(*_args, **_kwargs):
        raise error

    return plan


def test_ctrl_c_exits_with_130_and_says_nothing(run, monkeypatch, glm):
    monkeypatch.setattr(command, "make_plan", _raising(KeyboardInterrupt()))
    assert run("estimate", glm) == (130, "", "")


def test_a_lack_of_memory_is_one_readable_line(run, monkeypatch, glm):
    monkeypatch.setattr(command, "make_plan", _raising(MemoryError()))
    assert run("estimate", glm) == (2, "", "not enough memory for this input\n")


def test_a_bug_is_one_line_and_exit_code_5(run, monkeypatch, glm):
    monkeypatch.delenv("HSPLAN_DEBUG", raising=False)
    monkeypatch.setattr(command, "make_plan", _raising(ZeroDivisionError("by\nzero")))
    assert run("estimate", glm) == (
        5,
        "",
        "a bug of hsplan: ZeroDivisionError: by\\nzero (HSPLAN_DEBUG=1 shows where)\n",
    )


def test_hsplan_debug_adds_the_traceback(run, monkeypatch, glm):
    monkeypatch.setenv("HSPLAN_DEBUG", "1")
    monkeypatch.setattr(command, "make_plan", _raising(ZeroDivisionError()))
    code, _, err = run("estimate", glm)
    assert code == 5
    assert err.startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1].startswith("a bug of hsplan: ZeroDivisionError")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("auto", "auto"),
        ("134.127GiB", "134.127GiB"),
        ("[0,15]", [0, 15]),
        ("[0, x]", [0, "x"]),
        ("2026-06-12", "2026-06-12"),
        ("<<", "<<"),
        ("*alias", "*alias"),
        ("[[1]", ["[1"]),
        ("1e-1", 0.1),
        ("2E+3", 2000.0),
        ("1e999", "1e999"),
        ("{}", {}),
        ("{fixed: 1e1, per_request: 0.2}", {"fixed": 10.0, "per_request": 0.2}),
    ],
)
def test_values_are_read_as_yaml_scalars(text, value):
    assert scalar(text) == value


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(InputError, match=r"\{fixed: 1, fixed: 2\}: a key stands twice"):
        scalar("{fixed: 1, fixed: 2}")


STEP_PARTS, STEP_NAME = "mapping of fixed, per_request, per_context_token", "the name of a step profile"


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--mem-fraction", "1"), "give a number above 0 and below 1 or auto"),
        (("--kv-budget", "0"), 'give bytes, from 1 MiB on, or a size such as "30GiB" or auto'),
        (("--layer-range", "0,15"), "give the first layer and the end, such as [0, 15] or null"),
        (("--step-ms", "-1"), f"give a {STEP_PARTS} or a number from 0 to 1,000,000,000 or {STEP_NAME} or null"),
        (("--tpot-ms", "0"), "give a number above 0 to 1,000,000,000 or null"),
    ],
)
def test_what_would_be_right_can_be_typed(run, glm, arguments, remedy):
    code, out, err = run("estimate", glm, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == f"  {remedy}"


def test_an_empty_name_is_no_folder(run):
    code, _, err = run("estimate", "")
    assert (code, err.splitlines()[0]) == (2, "the name of the spec is empty")
