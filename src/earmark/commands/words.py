"""The words of all commands: limits, and columns that stand below one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from earmark.limits import CONCURRENCY, DAY, HOUR, MICROSECONDS, MINUTE, SECOND, Limit, spelled

_WINDOWS: Final = {
    SECOND * MICROSECONDS: "second",
    MINUTE * MICROSECONDS: "minute",
    HOUR * MICROSECONDS: "hour",
    DAY * MICROSECONDS: "day",
}


def said(limit: Limit) -> str:
    """A limit in words, with its algorithm."""
    if limit.metric == CONCURRENCY:
        return briefly(limit)
    burst = "" if limit.burst is None else f", burst {limit.burst:,}"
    return f"{briefly(limit)} ({limit.algorithm.replace('_', ' ')}{burst})"


def briefly(limit: Limit) -> str:
    """A limit in few words."""
    if limit.metric == CONCURRENCY:
        return f"{limit.amount:,} at once"
    window = _WINDOWS.get(limit.window_us, f"{spelled(limit.window or 0)} seconds")
    return f"{limit.amount:,} {limit.metric} per {window}"


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """Rows below their heads; the first `left` columns begin at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def legible(name: str, most: int = 48) -> str:
    """A key or a tenant as a terminal can show it: whatever is in it, and however long it is."""
    text = "".join(letter if letter.isprintable() else "�" for letter in name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def percent(share: float) -> str:
    """A share of 1."""
    return f"{100 * share:.1f} %"
