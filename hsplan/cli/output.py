"""
Where text leaves: stdout, stderr or a file.

Text and JSON go in; what a stream cannot encode is written in ASCII, a reader that has left is not an error, and a
file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hsplan.errors import InputError, Problem, printable
from hsplan.files import reason_of

WIDTH = 100
MIN_WIDTH = 80
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ASCII = str.maketrans(
    {
        "×": "x", "−": "-", "–": "-", "—": "-", "─": "-", "━": "=", "…": "...", "±": "+-", "·": "*", "→": "->",
        "≥": ">=", "≤": "<=", "°": "deg", "µ": "u", "█": "#", **dict.fromkeys("▏▎▍▌▋▊▉", ""),
    }
)  # fmt: skip


def emit(text: str, output: Path | None = None) -> None:
    """Write `text` to stdout, or whole and without colours to the file `output`."""
    text = text if text.endswith("\n") else text + "\n"
    if output is not None:
        write_file(output, COLOUR.sub("", text))
        return
    try:
        _write(sys.stdout, text)
    except OSError as error:
        raise InputError(Problem(what=f"the output cannot be written: {error.strerror}")) from None


def emit_json(data: Any, output: Path | None = None) -> None:
    """Write `data` as indented JSON: UTF-8, or with escapes where stdout takes no UTF-8."""
    try:
        text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    except UnicodeEncodeError:  # a file name that is no text
        text = json.dumps(data, indent=2)
    if output is None and not _takes(sys.stdout, text):
        text = json.dumps(json.loads(text), indent=2)
    emit(text, output)


def write_json(data: Any, output: Path) -> None:
    """Write `data` as indented JSON to a file, whole or not at all."""
    write_file(output, msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")


def complain(lines: Iterable[str]) -> None:
    """Write lines to stderr."""
    with contextlib.suppress(OSError):
        _write(sys.stderr, "".join(f"{line}\n" for line in lines))


def write_file(path: Path, text: str) -> None:
    """
    Replace `path` by a file with `text`, or leave it as it was.

    Raises InputError for folders, devices, missing permission and full disks.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by a file of `data` as `write_file` does."""
    with _refusals(path):
        target = path.expanduser().resolve()
        mode = _mode_of(target)
        _replace(target, data, mode)


def check_apart(paths: Iterable[Path]) -> None:
    """Raise InputError where two of the files to read and write are one."""
    seen: set[Path] = set()
    for path in paths:
        with _refusals(path):
            target = path.expanduser().resolve()
            special = target.exists() and not target.is_file()  # /dev/null may be given twice
        if target in seen and not special:
            raise InputError(Problem(where=str(path), what="is given twice, and one would take the other's place",
                                     remedy="give two files"))  # fmt: skip
        seen.add(target)


def check_target(path: Path) -> None:
    """Raise InputError where `write_file` would, but for full disks; nothing is left or changed."""
    with _refusals(path):
        target = path.expanduser().resolve()
        _mode_of(target)
        temporary = _temporary(target)
        temporary.open("xb").close()
        temporary.unlink()


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = reason_of(error)
        remedy = "give another file, or leave out --output to print"
        raise InputError(Problem(where=str(path), what=f"cannot be written: {reason}", remedy=remedy)) from None


def _mode_of(target: Path) -> int | None:
    """Permissions of the file that is replaced; None when there is none."""
    if not target.exists():
        return None
    if target.is_dir():
        raise OSError(None, "it is a folder")
    if not target.is_file():
        raise OSError(None, "it is not a regular file")
    if not os.access(target, os.W_OK):
        raise OSError(None, "it is read-only")
    return stat.S_IMODE(target.stat().st_mode)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    """A temporary file in the same folder takes the place of `target` once it is on the disk."""
    temporary = _temporary(target)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _temporary(target: Path) -> Path:
    return target.with_name(f".hsplan-{os.urandom(8).hex()}.tmp")


def is_terminal() -> bool:
    """Whether stdout is a terminal that may be coloured."""
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def width() -> int:
    """Columns of the output: 100, fewer on a narrow terminal, never below 80."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return max(MIN_WIDTH, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH))


def wrapped(head: str, text: str, *, indent: int = 2) -> str:
    """`head` and `text` in lines of the output's width, the later ones indented; words are never cut."""
    return textwrap.fill(
        head + printable(text), width(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _write(stream: TextIO | None, text: str) -> None:
    """Write and flush; after an error the stream leads nowhere, so that the end of the process stays quiet."""
    if stream is None:
        return
    try:
        stream.write(text if _takes(stream, text) else _ascii(text))
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise


def _takes(stream: TextIO | None, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _ascii(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode()
