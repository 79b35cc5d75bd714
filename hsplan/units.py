"""Bytes and numbers, in and out. GiB is 2^30 bytes, GB is 10^9 bytes; the two are never mixed up."""

from __future__ import annotations

import re
from fractions import Fraction

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
UNITS = {
    "": 1, "B": 1,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": TIB,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
MAX_BYTES = 2**60
ROUNDING_MS = 1e-9  # by which sums of times may miss what they are compared with
_QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)")


def parse_bytes(value: int | str) -> int:
    """
    Bytes of `134127`, `"134.127GiB"` or `"2 TiB"`; a fraction of a byte is dropped.

    Raises ValueError with the reason: no number, an unknown or ambiguous unit, out of range.
    """
    if isinstance(value, int):
        number = value
    else:
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            raise ValueError('write bytes, or a size such as "134.127GiB" or "2TiB"')
        unit = match[2].upper()
        if unit not in UNITS:
            raise ValueError(f"unknown unit {match[2]!r}: use GiB (2^30 bytes), GB (10^9 bytes), MiB, TiB, …")
        number = int(Fraction(match[1]) * UNITS[unit])
    if not 0 <= number <= MAX_BYTES:
        raise ValueError("must be from 0 to 1 EiB")
    return number


def gib(n_bytes: int, digits: int = 2) -> str:
    """`n_bytes` in GiB for a reader: `134.13 GiB`."""
    return f"{n_bytes / GIB:,.{digits}f} GiB"


def size(n_bytes: int) -> str:
    """`n_bytes` in the unit that reads best: B, KiB, MiB, GiB or TiB."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n_bytes) >= factor:
            return f"{n_bytes / factor:,.2f} {unit}"
    return f"{n_bytes} B"


def need(n_bytes: int) -> str:
    """A size that is enough, for a reader who gives it back: `size`, rounded up."""
    factor = next((factor for factor in (TIB, GIB, MIB, KIB) if abs(n_bytes) >= factor), 1)
    return size(n_bytes if factor == 1 else ceil_div(ceil_div(100 * n_bytes, factor) * factor, 100))


def floor_to(tokens: int, page_tokens: int) -> int:
    """`tokens` rounded down to whole pages."""
    return tokens // page_tokens * page_tokens


def ceil_div(a: int, b: int) -> int:
    """The least integer not below a / b."""
    return -(-a // b)
