"""The bytes of a file that a user names."""

from __future__ import annotations

from pathlib import Path

BOM = b"\xef\xbb\xbf"


def reason_of(error: Exception) -> str:
    """Why a file cannot be read or written: the system's words without number and path, else the error's own."""
    return getattr(error, "strerror", None) or str(error)


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or a device: to read one may never begin, or never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(None, "it is not a regular file")


def read_file(path: Path, most_bytes: int) -> bytes:
    """
    The bytes of a regular file, without a byte-order mark of UTF-8.

    Raises OSError with the reason in `strerror`, also for more than `most_bytes` (whole MiB), and ValueError for a path
    that is none.
    """
    check_regular(path)
    with path.open("rb") as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(None, f"it is larger than {most_bytes // 2**20:,} MiB")
    return found.removeprefix(BOM)
