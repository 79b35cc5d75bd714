"""The command as a process: what only shows there, such as encodings, pipes, memory and terminals."""

import json
import os
import pty
import subprocess
import sys

import pytest

PLAN = ("--gpu", "gb300", "--tp", "4", "--draft-layers", "1", "--engine", "sglang@0.5.17", "--kv-budget", "134.127GiB")


def test_json_of_the_command_holds_the_tokens_that_sglang_logged(process, glm):
    done = process("estimate", glm, *PLAN, "--json")
    scenarios = json.loads(done.stdout)["scenarios"]
    assert done.returncode == 0
    assert done.stderr == b""
    assert scenarios["baseline"]["max_total_num_tokens"] == 2574848
    assert scenarios["elided"]["max_total_num_tokens"] == 3003136


def test_json_takes_less_than_80_mb_and_never_imports_rich(glm):
    script = (
        "import re, sys; from hsplan.cli import main\n"
        f"assert main(['estimate', {glm!r}, '--json']) == 0\n"
        "assert not {'rich', 'torch', 'numpy'} & set(sys.modules)\n"
        # not getrusage: a child inherits the peak of the process that forked it
        "assert int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) < 80_000\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize("extra", [(), ("--ledger", "--explain"), ("--json",), ("--help",)])
def test_a_stdout_that_is_not_utf8_gets_readable_ascii(process, glm, env, extra):
    done = process("estimate", glm, "--offload", *extra, env={**env, "PYTHONCOERCECLOCALE": "0"})
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    if extra == ("--json",):
        assert "×" in json.loads(text)["scenarios"]["baseline"]["ledger"][-1]["formula"]
    elif extra != ("--help",):
        assert text.startswith("my-glm: sglang 0.5.23, 8 x h200, tp 8, max_running_requests 128, KV budget ")
        assert "\\x" not in text
        assert "\\u" not in text


def test_a_reader_that_leaves_is_no_error(process, glm):
    reader, writer = os.pipe()
    os.close(reader)
    done = process("estimate", glm, "--explain", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_behind_stdout_is_one_line_and_exit_code_2(process, glm):
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = process("estimate", glm, stdout=full)
    assert done.returncode == 2
    assert done.stderr == b"the output cannot be written: No space left on device\n"


def _on_a_terminal(process, *args, **env):
    terminal, slave = pty.openpty()
    done = process(*args, stdout=slave, env={"TERM": "xterm-256color", **env})
    os.close(slave)
    chunks = []
    try:
        while chunk := os.read(terminal, 65536):
            chunks.append(chunk)
    except OSError:  # Linux: the other end is closed
        pass
    os.close(terminal)
    return done.returncode, b"".join(chunks)


def test_a_terminal_gets_emphasis_and_no_color_gets_none(process, glm):
    code, plain = _on_a_terminal(process, "estimate", glm, NO_COLOR="1")
    assert code == 0
    assert b"\x1b" not in plain
    assert b"\x1b[1m" in _on_a_terminal(process, "estimate", glm)[1]


def test_a_file_gets_no_escapes_even_from_a_terminal(process, glm, tmp_path):
    assert _on_a_terminal(process, "estimate", glm, "-o", "plan.txt") == (0, b"")
    assert b"\x1b" not in (tmp_path / "plan.txt").read_bytes()


def test_a_pipe_gets_lines_of_at_most_100_columns_without_escapes(process, glm):
    done = process("estimate", glm, "--ledger", "--explain")
    lines = done.stdout.decode().splitlines()
    assert b"\x1b" not in done.stdout
    assert max(map(len, lines)) <= 100


def test_the_version_is_that_of_the_tool(process):
    assert process("--version").stdout == b"hsplan 0.1.0\n"


def test_the_shell_can_complete_names_of_specs(process):
    env = {"_HSPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "hsplan estimate --gpu h2", "COMP_CWORD": "3"}
    assert process(env=env).stdout.split() == [b"h20", b"h20-3e", b"h200"]
