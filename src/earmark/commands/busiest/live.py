"""The busiest limits on a terminal, with bars and colours (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from earmark.commands.busiest.showing import HEADS, LEFT, Row

_WIDTH: Final = 20
_NEARLY: Final = 0.8


def table(rows: Sequence[Row], said: str) -> Table:
    """All rows, under what is said of them."""
    drawn = Table(title=Text(said), title_justify="left", expand=True)
    for number, head in enumerate(HEADS):
        drawn.add_column(head, justify="left" if number < LEFT else "right", no_wrap=True)
    drawn.add_column(width=_WIDTH)
    for row in rows:
        style = _style(row)
        bar = ProgressBar(
            total=1,
            completed=min(row.share, 1),
            width=_WIDTH,
            complete_style=style,
            finished_style=style,
        )
        drawn.add_row(*(Text(cell) for cell in row.cells()), bar, style=style)
    return drawn


def _style(row: Row) -> str:
    if row.refuses:
        return "red" if row.scope.enforce else "magenta"
    return "yellow" if row.share >= _NEARLY else "green"
