"""
The command line: arguments in; text, files and an exit code out.

0 done · 1 does not fit · 2 bad input · 3 unsupported · 4 cannot run here · 5 a bug of hsplan · 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line (of the process, when not given) and return its exit code."""
    try:
        from hsplan.cli.run import run  # noqa: PLC0415 - an interrupt while loading is caught too

        return run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
