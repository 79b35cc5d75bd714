"""A command line run and its errors turned into lines and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from hsplan.cli.output import complain
from hsplan.errors import HsplanError, InputError, Problem, printable

BUG = 5
# The base of what typer raises for a wrong command line; no release of typer exports it by its own name.
UsageProblem: type[BaseException] = typer.BadParameter.__mro__[2]


def run(args: Sequence[str] | None) -> int:
    """Run a command line and return its exit code; no input makes a traceback."""
    try:
        return _run(args)
    except HsplanError as error:
        complain(error.lines())
        return error.exit_code
    except (BrokenPipeError, SystemExit):
        return 0  # the reader has left; while printing help, that reaches us as an exit
    except OSError as error:
        complain([f"the output cannot be written: {error.strerror or error}"])
        return InputError.exit_code
    except MemoryError:
        complain(["not enough memory for this input"])
        return InputError.exit_code
    except Exception as error:  # noqa: BLE001 - whatever is left is a bug and must say so
        return _bug(error)


def _run(args: Sequence[str] | None) -> int:
    from hsplan.cli.app import app  # noqa: PLC0415 - an interrupt or a bug on import is caught above

    command = typer.main.get_command(app)
    try:
        given = list(sys.argv[1:] if args is None else args)
        code = command.main(given, prog_name="hsplan", standalone_mode=False, obj=given)  # to start itself again
    except UsageProblem as error:
        return _usage(error)
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def _usage(error: BaseException) -> int:
    """A wrong command line, in the style of all other errors; no message when typer has printed the help instead."""
    near = getattr(error, "possibilities", None)
    message = str(error) if near else getattr(error, "format_message", error.__str__)()
    context = getattr(error, "ctx", None)
    if message:
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        remedy = f"{hint}see `{context.command_path if context else 'hsplan'} --help`"
        complain(Problem(what=" ".join(message.split()), remedy=remedy).lines())
    return InputError.exit_code


def _bug(error: Exception) -> int:
    if os.environ.get("HSPLAN_DEBUG"):
        traceback.print_exc(file=sys.stderr)
    reason = printable(str(error))[:200]
    what = f"a bug of hsplan: {type(error).__name__}{': ' + reason if reason else ''}"
    complain([f"{what} (HSPLAN_DEBUG=1 shows where)"])
    return BUG
