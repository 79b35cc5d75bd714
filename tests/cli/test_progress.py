"""How far a long run is: lines where nobody watches, a bar on a terminal, and never a word on stdout."""

import contextlib
import io

import pytest

from hsplan.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def told(monkeypatch):
    """What work writes to a terminal of some kind."""

    def on(kind):
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setenv("COLUMNS", "100")
        stream = Terminal()
        with contextlib.redirect_stderr(stream):
            work()
        return stream.getvalue()

    return on


def work():
    with progress("validate") as report:
        for done in range(1, 4):
            report("prompts", done, 3)
        report("decode steps", 25, 100)


def test_a_pipe_gets_a_line_when_a_stage_begins(capsys):
    work()
    assert capsys.readouterr() == ("", "validate, 0 s: prompts\nvalidate, 0 s: decode steps\n")


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(told, capsys):
    text = told("xterm-256color")
    assert "decode steps" in text
    assert "25/100" in text
    assert text.endswith("\x1b[2K")  # the line is erased
    assert capsys.readouterr() == ("", "")


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(told):
    assert told("dumb") == "validate, 0 s: prompts\nvalidate, 0 s: decode steps\n"


def test_a_process_without_stderr_is_told_nothing():
    with contextlib.redirect_stderr(None):
        work()
