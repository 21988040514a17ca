"""What a replay has shown, as a picture: requests over time, and how full the busiest limits were (SVG)."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from earmark.commands.simulation.tables import moment
from earmark.commands.simulation.tally import SLICES, LimitTally, Tally
from earmark.commands.words import briefly, legible

_WIDTH: Final = 960
_LEFT: Final = 70
_RIGHT: Final = _WIDTH - 20
_REQUESTS: Final = (40, 200)  # top and bottom of a panel
_FULL: Final = (250, 450)
_LEGEND: Final = 490
_LINE: Final = 20

_FONT: Final = 'font-family="sans-serif" font-size="12" fill="#222222"'

_MOST: Final = 6
_HIGHEST: Final = 1.5  # what only would have refused may be fuller by far
# Colours that are told apart by everybody (Okabe and Ito).
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
_ADMITTED: Final = "#b0b0b0"
_REFUSED: Final = "#d55e00"
_TICKS: Final = 5


def plot(tally: Tally) -> str:
    """The picture."""
    busiest = tally.busiest(_MOST)
    height = _LEGEND + _LINE * len(busiest) + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            *_requests(tally),
            *_full(tally, busiest),
            "</svg>\n",
        ]
    )


def _x(slice_: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * slice_ / SLICES


def _requests(tally: Tally) -> Iterator[str]:
    """A bar for each slice of time: what was admitted, and on top what was refused."""
    top, bottom = _REQUESTS
    most = max(tally.requests)
    refused = sum(tally.refused)
    yield _text(_LEFT, top - 15, "requests", weight="bold")
    yield _text(_LEFT + 80, top - 15, f"refused: {refused:,}", colour=_REFUSED)
    yield from _axes(tally, _REQUESTS, [(0, "0"), (1, f"{most:,}")])
    width = (_RIGHT - _LEFT) / SLICES
    for slice_, (asked, denied) in enumerate(zip(tally.requests, tally.refused, strict=True)):
        low = (bottom - top) * (asked - denied) / most
        high = (bottom - top) * denied / most
        yield from _bar(_x(slice_), bottom - low, width, low, _ADMITTED)
        yield from _bar(_x(slice_), bottom - low - high, width, high, _REFUSED)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> Iterator[str]:
    if height:
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
        )


def _full(tally: Tally, busiest: list[LimitTally]) -> Iterator[str]:
    """A line for each limit; where nothing was asked of it, there is none."""
    top, bottom = _FULL
    scale = min(max([1.0, *(one.peak for one in busiest)]), _HIGHEST)
    yield _text(_LEFT, top - 15, "how full limits were", weight="bold")
    marks = [(0.0, "0 %"), (1 / scale, "100 %")]
    yield from _axes(tally, _FULL, marks + ([(1.0, f"{100 * scale:.0f} %")] if scale > 1 else []))
    for number, (one, colour) in enumerate(zip(busiest, _COLOURS, strict=False)):
        for run in _runs(one):
            points = " ".join(
                f"{_x(slice_ + 0.5):.1f},{bottom - (bottom - top) * min(one.full[slice_] / scale, 1):.1f}"
                for slice_ in run
            )
            shape = "polyline" if len(run) > 1 else "polygon"
            yield (
                f'<{shape} points="{points}" fill="none" stroke="{colour}" stroke-width="2"'
                ' stroke-linecap="round" stroke-linejoin="round"/>'
            )
        y = _LEGEND + _LINE * number
        yield f'<rect x="{_LEFT}" y="{y - 10}" width="14" height="10" fill="{colour}"/>'
        refused = f", {one.refused:,} refused" if one.refused else ""
        yield _text(_LEFT + 22, y, f"{legible(one.key)}: {briefly(one.limit)}{refused}")


def _runs(one: LimitTally) -> list[list[int]]:
    """Slices that follow one another."""
    runs: list[list[int]] = []
    for slice_ in sorted(one.full):
        if runs and runs[-1][-1] == slice_ - 1:
            runs[-1].append(slice_)
        else:
            runs.append([slice_])
    return runs


def _axes(tally: Tally, panel: tuple[int, int], marks: list[tuple[float, str]]) -> Iterator[str]:
    """Lines across at some heights, and times below."""
    top, bottom = panel
    for share, said in marks:
        y = bottom - (bottom - top) * share
        yield (f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        yield _text(_LEFT - 8, y + 4, said, anchor="end")
    for tick in range(_TICKS):
        slice_ = SLICES * tick // (_TICKS - 1)
        at = min(tally.start + slice_ * tally.width, tally.end)
        anchor = "start" if not tick else "end" if tick == _TICKS - 1 else "middle"
        yield _text(_x(slice_), bottom + 16, moment(at), anchor=anchor)


def _text(
    x: float,
    y: float,
    said: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' fill="{colour}">{escape(said)}</text>'
    )
