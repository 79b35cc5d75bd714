"""Tables as text: cells in, lines of at most 100 columns out; numbers are never cut. The only user of rich."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hsplan.cli.output import is_terminal, width

NUMERIC = frozenset("0123456789,.+-–− %")


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), strong: int | None = None
) -> str:
    """
    The table as text, coloured only on a terminal.

    Columns in `left` are aligned to the left, the others to the right; `strong` is emphasised. A column of numbers
    never wraps; other text wraps at spaces only.
    """
    from rich import box  # noqa: PLC0415 - rich takes longer to import than a plan to compute
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    drawn = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold" if strong is None else "",
    )
    for i, head in enumerate(heads):
        texts = [head, *(row[i] for row in rows)]
        numeric = all(set(text) <= NUMERIC for text in texts[1:])
        drawn.add_column(
            head,
            justify="left" if i in left else "right",
            style="bold" if i == strong else "",
            header_style="bold" if i == strong else "",
            min_width=max(len(word) for text in texts for word in ["", *text.split()]),
            no_wrap=numeric,
        )
    for row in rows:
        drawn.add_row(*row)
    colour = is_terminal()
    console = Console(
        file=io.StringIO(),
        width=width(),
        force_terminal=colour,
        color_system="auto" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(drawn, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
