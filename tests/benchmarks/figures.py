"""How much the benchmarks try, how they measure, and how they show what they found.

A module of this folder whose name begins with `bench_` measures one thing: it has an asynchronous generator
`tables(effort)`. On a machine that does something else as well, ratios of one run tell more than figures do: so
everything is measured in turn, round by round, and of each the least counts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

Cell = str | int | float | None  # None: there is nothing to measure
Measure = Callable[[], Awaitable[float]]
Work = Callable[[int], Awaitable[object]]


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        rounds: everything is measured so many times.
        seconds: for each measurement of a round that lasts for a time.
        scale: the part that is done of what a measurement counts.
    """

    rounds: int
    seconds: float
    scale: float

    def of(self, count: int) -> int:
        """So many in place of so many; at least one."""
        return max(round(count * self.scale), 1)


FULL: Final = Effort(5, 0.25, 1.0)
QUICK: Final = Effort(1, 0.08, 0.05)
LEAST: Final = Effort(1, 0.0, 0.001)  # whether it runs at all


@dataclass(frozen=True)
class Table:
    """What was found.

    Attributes:
        title: what was measured.
        columns: the heads, that of the rows' names first.
        rows: a name and its figures each.
        note: what a reader has to know.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def _words(self) -> list[bool]:
        """Of each column, whether there are words in it."""
        columns = zip(*self.rows, strict=True)
        return [any(isinstance(cell, str) for cell in column) for column in columns]

    def _cells(self) -> list[tuple[str, ...]]:
        return [self.columns, *(tuple(map(shown, row)) for row in self.rows)]

    def text(self) -> str:
        """For a terminal."""
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if words else cell.rjust(width)
                for cell, width, words in zip(row, widths, self._words(), strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([f"# {self.title}", *([self.note] if self.note else []), *lines, ""])

    def markdown(self) -> str:
        """For a document."""
        head, *rows = ("| " + " | ".join(row) + " |" for row in self._cells())
        rule = "|" + "|".join("---" if words else "---:" for words in self._words()) + "|"
        note = [self.note, ""] if self.note else []
        return "\n".join([f"### {self.title}", "", *note, head, rule, *rows, ""])


def shown(cell: Cell) -> str:
    """Three digits of a float that is small, no fraction of one that is not."""
    match cell:
        case None:
            return "–"
        case float():
            digits = 2 if abs(cell) < 10 else 1 if abs(cell) < 100 else 0
            return f"{cell:,.{digits}f}"
        case int():
            return f"{cell:,}"
        case str():
            return cell


async def least(measures: Mapping[str, Measure], rounds: int) -> dict[str, float]:
    """The least of each, measured in turn."""
    found = dict.fromkeys(measures, float("inf"))
    for _ in range(rounds):
        for name, measure in measures.items():
            gc.collect(0)
            found[name] = min(found[name], await measure())
    return found


def processor(work: Work, times: int) -> Measure:
    """Measures the microseconds of the processor that one call takes, over so many."""

    async def measure() -> float:
        began = time.process_time_ns()
        for number in range(times):
            await work(number)
        return (time.process_time_ns() - began) / times / 1_000

    return measure


def elapsed(work: Work, times: int) -> Measure:
    """Measures the microseconds that pass during one call, over so many."""

    async def measure() -> float:
        began = time.perf_counter_ns()
        for number in range(times):
            await work(number)
        return (time.perf_counter_ns() - began) / times / 1_000

    return measure
