"""What earmark aims at, mostly beside other libraries, and whether a run has shown it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.benchmarks.figures import Cell, Table, shown

Found = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By workload, library and figure."""

OURS: Final = "earmark"


@dataclass(frozen=True)
class Aim:
    """One of them.

    Attributes:
        title: in words.
        workload: which.
        figure: of it.
        beside: the library whose figure that of earmark is divided by; None: the figure itself.
        word: on which side of the bound it should be.
        bound: how much at most, or at least.
    """

    title: str
    workload: str
    figure: str
    beside: str | None
    word: Literal["at most", "at least"]
    bound: float

    def measured(self, found: Found) -> float | None:
        """What a run has shown; None where somebody was absent."""
        figures = found.get(self.workload, {})
        ours = figures.get(OURS, {}).get(self.figure)
        if self.beside is None or ours is None:
            return ours
        theirs = figures.get(self.beside, {}).get(self.figure)
        return ours / theirs if theirs else None

    def row(self, found: Found) -> tuple[Cell, ...]:
        """For the table."""
        measured = self.measured(found)
        aim = f"{self.word} {shown(self.bound)}"
        if measured is None:
            return (self.title, aim, None, "not measured")
        met = measured <= self.bound if self.word == "at most" else measured >= self.bound
        missed = f"not met, by {abs(measured / self.bound - 1):.1%}"
        return (self.title, aim, measured, "met" if met else missed)


AIMS: Final = (
    Aim("memory: a life cycle, of that of limits", "alone", "us", "limits", "at most", 0.5),
    Aim("… of that of LiteLLM", "alone", "us", "LiteLLM", "at most", 1.0),
    Aim("… of that of token-throttle", "alone", "us", "token-throttle", "at most", 1.0),
    Aim("memory: a refusal, of that of limits", "refused", "us", "limits", "at most", 1.0),
    Aim("memory: bytes a key", "bytes", "bytes", None, "at most", 600.0),
    Aim("Redis, one caller: of the floor", "one caller", "p50", "floor", "at most", 1.25),
    Aim("… the server, of the floor", "one caller", "server", "floor", "at most", 1.0),
    Aim("Redis: round trips of a life cycle", "one caller", "reads", None, "at most", 2.0),
    Aim("Redis, 200 callers: times the floor", "many callers", "rate", "floor", "at least", 3.0),
    Aim("… times LiteLLM", "many callers", "rate", "LiteLLM", "at least", 25.0),
    Aim("… the server, of the floor", "many callers", "server", "floor", "at most", 1.0),
    Aim("Redis, two processes: times the floor", "two processes", "rate", "floor", "at least", 2.0),
    Aim("… the server, of the floor", "two processes", "server", "floor", "at most", 1.0),
    # A million in a minute.
    Aim("simulate: requests a second", "simulate", "rate", None, "at least", 1_000_000 / 60),
)


def table(found: Found, suffix: str) -> Table:
    """The aims of what was measured."""
    rows = tuple(aim.row(found) for aim in AIMS if aim.workload in found)
    return Table(f"Aims{suffix}", ("", "aim", "measured", "and so"), rows)
