"""
The lines of interest of a log, as text: bytes are searched before anything is decoded, as logs have hundreds of MB.

JSON around a line, colours and prefixes are taken off or left to the patterns; nothing of a log is run or kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from hsplan.calibrate.lines import LINES, READY, STARTS

CHUNK_BYTES = 8 * 2**20
ENDLESS_BYTES = 8 * 2**20
LINE_BYTES = 2**16  # what is looked at of a longer line, from its first needle on, and a bit before
BEFORE_BYTES = 2**10
NEEDLES = tuple(dict.fromkeys([line.needle for line in LINES] + [*STARTS, *READY]))
COLOUR = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033|\\e|\^\[|#033)\[[0-9;]{0,20}m")


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Every line of `stream` that may be of interest, in order, without JSON and colours."""
    rest = b""
    while chunk := stream.read(CHUNK_BYTES):
        text = rest + chunk
        cut = text.rfind(b"\n") + 1
        if cut == 0 and len(text) > ENDLESS_BYTES:
            cut = len(text)  # a line without an end: what is left of it is looked at as it comes
        yield from map(_plain, _spans(text[:cut]))
        rest = text[cut:]
    yield from map(_plain, _spans(rest))


def _spans(text: bytes) -> list[bytes]:
    """The lines of `text` that hold a needle, in order."""
    spans: dict[int, bytes] = {}
    for needle in NEEDLES:
        at = text.find(needle)
        while at >= 0:
            first = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            if end - first > LINE_BYTES:
                first = max(first, at - BEFORE_BYTES)
                spans[first] = text[first : min(end, first + LINE_BYTES)]
            else:
                spans[first] = text[first:end]
            at = text.find(needle, end)
    return [spans[first] for first in sorted(spans)]


def _plain(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    if text.endswith("}") and (at := text.find("{")) >= 0:
        text = _message(text[:at], text[at:])
    return COLOUR.sub("", text)


def _message(prefix: str, wrapped: str) -> str:
    """The texts in a line of JSON, one a line; the line itself where it is none."""
    try:
        found = json.loads(wrapped)
    except (ValueError, RecursionError):
        return prefix + wrapped
    return "\n".join(_texts(found)) if isinstance(found, dict) else prefix + wrapped


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
