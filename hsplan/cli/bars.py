"""A bar chart as text: labels and figures in, one line for each out."""

from __future__ import annotations

from collections.abc import Sequence

from hsplan.cli.output import width

BAR = "█"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
LONGEST = 50


def bars(title: str, labels: Sequence[str], values: Sequence[float]) -> str:
    """
    A bar for each of `values`, none of them negative, with its number behind it; the largest takes the room there is.

    Where a stream takes no block characters, whole blocks become `#` and parts of one are left out (`output.ASCII`).
    """
    texts = [f"{value:,.0f}" for value in values]
    left = max(map(len, labels))
    room = min(LONGEST, width() - left - max(map(len, texts)) - 2)
    most = max(values) or 1.0
    lines = [
        f"{label:<{left}} {_bar(value / most, room)} {text}"
        for label, value, text in zip(labels, values, texts, strict=True)
    ]
    return "\n".join([title, *lines])


def _bar(share: float, room: int) -> str:
    whole, eighths = divmod(round(share * room * 8), 8)
    return BAR * whole + EIGHTHS[eighths]
