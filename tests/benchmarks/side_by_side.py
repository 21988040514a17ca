"""earmark beside other libraries and the floor: the same work, in the same run, in turn.

Each library has processes of its own, of which one works at a time, or two where two are measured together. Each figure
is the best of the rounds. The ratio says how much more, or less, it takes than earmark does.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks import aims
from tests.benchmarks.aims import OURS
from tests.benchmarks.correctness import QUESTIONS, listed, of_burst
from tests.benchmarks.figures import Cell, Effort, Table
from tests.benchmarks.libraries import LIBRARIES
from tests.benchmarks.workers import Company, abreast, company
from tests.servers import RedisServer

CALLERS: Final = 200
Figures = dict[str, Any]


class SideBySide:
    """One run.

    Args:
        libraries: who is there.
        server: where limits are shared.
        effort: how much is tried.
        suffix: what the titles say more.
    """

    def __init__(
        self, libraries: Company, server: RedisServer, effort: Effort, suffix: str = ""
    ) -> None:
        self._libraries = libraries
        self._server = server
        self._effort = effort
        self._suffix = suffix
        self._found: dict[str, dict[str, Figures]] = {}

    def _names(self, store: str) -> list[str]:
        return [name for name in self._libraries.versions if store in LIBRARIES[name].stores]

    def memory(self) -> Iterator[Table]:
        """What a life cycle, a refusal and a key cost in memory."""
        seconds = self._effort.seconds
        found = self._found["alone"] = self._memory(
            lambda name: {"do": "alone", "keys": 1, "seconds": seconds}
        )
        yield self._table("Memory: a life cycle, one key", found, PROCESSOR, "us")
        found = self._memory(
            lambda name: {"do": "alone", "keys": self._keys(name), "seconds": seconds}
        )
        few = ", ".join(
            f"{name} {self._keys(name):,}" for name in found if self._keys(name) < self._keys(OURS)
        )
        note = f"{self._keys(OURS):,} keys" + (f"; with fewer: {few}." if few else ".")
        title = "Memory: a life cycle, many keys in turn"
        yield self._table(title, found, PROCESSOR, "us", note)
        found = self._found["refused"] = self._memory(
            lambda name: {"do": "refused", "seconds": seconds}
        )
        yield self._table("Memory: a refusal", found, PROCESSOR, "us")
        found = self._found["bytes"] = {
            name: self._libraries.of(name).ask(do="bytes_a_key", keys=self._keys(name))
            for name in self._names("memory")
            if not LIBRARIES[name].bounded
        }
        yield self._table("Memory: bytes a key", found, {"bytes": "bytes"}, "bytes")

    def _keys(self, name: str) -> int:
        return self._effort.of(LIBRARIES[name].keys)

    def _memory(self, order: Callable[[str], Figures]) -> dict[str, Figures]:
        return self._rounds(
            self._names("memory"), lambda name: self._libraries.of(name).ask(**order(name))
        )

    def redis(self) -> Iterator[Table]:
        """What a life cycle costs through Redis."""
        columns = {
            "µs p50": "p50_us",
            "µs p99": "p99_us",
            "client µs": "client",
            "server µs": "server",
            "round trips": "reads",
            "commands": "commands",
        }
        note = "Client and server are microseconds of their processors; commands are those within scripts as well."
        found = self._found["one caller"] = self._shared(1, 1)
        yield self._table("Redis: a life cycle, one caller", found, columns, "p50_us", note)
        columns = {
            "a second": "rate",
            "ms p50": "p50",
            "ms p99": "p99",
            "client µs": "client",
            "server µs": "server",
        }
        title = f"Redis: {CALLERS} callers"
        yield self._table(f"{title}, one key", self._shared(CALLERS, 1), columns, "rate")
        found = self._found["many callers"] = self._shared(CALLERS, CALLERS)
        yield self._table(f"{title}, {CALLERS} keys", found, columns, "rate")
        found = self._found["two processes"] = self._rounds(self._names("redis"), self._two)
        title = f"Redis: two processes of {CALLERS // 2} callers each, {CALLERS // 2} keys"
        yield self._table(title, found, columns, "rate")

    def aims(self) -> Table:
        """Whether what was measured is what earmark aims at."""
        return aims.table(self._found, self._suffix)

    def _shared(self, callers: int, keys: int) -> dict[str, Figures]:
        return self._rounds(
            self._names("redis"),
            lambda name: self._libraries.of(name).ask(
                do="together", callers=callers, keys=keys, seconds=self._seconds, url=self._url
            ),
        )

    @property
    def _seconds(self) -> float:
        return 2 * self._effort.seconds

    @property
    def _url(self) -> str:
        with self._server.client() as client:
            client.flushall()
        return self._server.url

    def _two(self, name: str) -> Figures:
        half = CALLERS // 2
        order = {"callers": half, "keys": half, "seconds": self._seconds, "paused": True}
        found = abreast(self._libraries.both(name), do="together", url=self._url, **order)
        return together(found)

    def _rounds(
        self, names: Sequence[str], measure: Callable[[str], Figures]
    ) -> dict[str, Figures]:
        """The best of the rounds of each, in turn."""
        found: dict[str, list[Figures]] = {name: [] for name in names}
        for _ in range(self._effort.rounds):
            for name in names:
                found[name].append(measure(name))
        return {name: best(rounds) for name, rounds in found.items()}

    def _table(
        self,
        title: str,
        found: Mapping[str, Figures],
        columns: Mapping[str, str],
        ratio: str,
        note: str = "",
    ) -> Table:
        """A row for each library, and for each that is absent."""
        ours = found.get(OURS, {}).get(ratio)
        rows: list[tuple[Cell, ...]] = []
        for name, figures in found.items():
            mine = figures.get(ratio)
            against = mine / ours if mine is not None and ours else None
            remark = figures.get("error") or ", ".join(listed(figures.get("failures", {})))
            rows.append((name, *map(figures.get, columns.values()), against, remark))
        width = len(columns) + 1
        rows += [
            (name, *([None] * width), f"absent: {why}")
            for name, why in self._libraries.absent.items()
        ]
        heads = ("", *columns, "against earmark", "remarks")
        return Table(title + self._suffix, heads, tuple(rows), note)

    def correctness(self) -> Iterator[Table]:
        """What each library counts."""
        rows: list[tuple[Cell, ...]] = []
        for name in self._libraries.versions:
            for store in LIBRARIES[name].stores:
                url = self._url if store == "redis" else None
                prefix = f"asked:{time.time_ns()}"
                told = self._libraries.of(name).ask(do="answers", url=url, prefix=prefix)
                answers = [told.get("burst", told.get("error")), *map(told.get, QUESTIONS)]
                rows.append((f"{name}, {store}", *answers, self._burst(name) if url else None))
        heads = ("", "burst", *QUESTIONS, "burst of two processes")
        yield Table("What is counted", heads, tuple(rows), CORRECTNESS)

    def _burst(self, name: str) -> str:
        key = f"burst:{time.time_ns()}"
        order = {"url": self._url, "key": key, "callers": CALLERS // 2}
        found = abreast(self._libraries.both(name), do="burst", **order)
        errors: list[str] = [answer["error"] for answer in found if "error" in answer]
        if errors:
            return errors[0]
        return of_burst(sum(answer["admitted"] for answer in found), failures_of(found))

    def calls(self) -> Table:
        """What a life cycle is to each library."""
        rows = tuple(
            (name, version, LIBRARIES[name].calls, LIBRARIES[name].settles)
            for name, version in self._libraries.versions.items()
        )
        absent = tuple(
            (name, None, f"absent: {why}", None) for name, why in self._libraries.absent.items()
        )
        heads = ("", "version", "a life cycle is", "the settlement")
        return Table("What is compared", heads, rows + absent)


PROCESSOR: Final = {"µs of the processor": "us"}
CORRECTNESS: Final = (
    "Burst: 200 at once where 100 fit. Refund: what was held and not used is free. Overrun: what was used beyond the "
    "hold counts. Cost of a refusal: a refused request takes no tokens; request leak: and no request, of which "
    "no more fit than may. "
    "Settle twice: counts once."
)


def together(answers: Sequence[Figures]) -> Figures:
    """What processes did that worked at the same time: one that got nothing done has its failures in it."""
    failed = [answer for answer in answers if "error" in answer]
    if failed:
        return failed[0]
    worked = [answer for answer in answers if answer["rate"]]
    failures = failures_of(answers)
    if not worked:
        return {"failures": failures, "rate": 0.0}
    rate = sum(answer["rate"] for answer in worked)
    # Each of them divides what the server did for all by what it has done itself.
    server = statistics.fmean(answer["server"] * answer["rate"] / rate for answer in worked)
    return {
        "client": sum(answer["client"] * answer["rate"] for answer in worked) / rate,
        "rate": rate,
        "p50": max(answer["p50"] for answer in worked),
        "p99": max(answer["p99"] for answer in worked),
        "server": server,
        "failures": failures,
    }


def failures_of(answers: Sequence[Figures]) -> dict[str, int]:
    """All of them, by what they are called."""
    found = Counter[str]()
    for answer in answers:
        found.update(answer.get("failures", {}))
    return dict(found)


def best(rounds: Sequence[Figures]) -> Figures:
    """The most a second, and the least of all other figures; of failures the sum; the first error."""
    errors = [figures for figures in rounds if "error" in figures]
    if errors:
        return errors[0]
    names = {name for figures in rounds for name in figures} - {"failures"}
    found: Figures = {}
    for name in names:
        choose = max if name == "rate" else min
        found[name] = choose(figures[name] for figures in rounds if name in figures)
    if "p50" in found:
        found |= {"p50_us": found["p50"] * 1e3, "p99_us": found["p99"] * 1e3}
    return found | {"failures": failures_of(rounds)}


def tables(
    effort: Effort,
    server: RedisServer,
    *,
    names: Sequence[str] = tuple(LIBRARIES),
    python: str | None = None,
    fast: bool = False,
) -> Iterator[Table]:
    """All of them; with uvloop and hiredis those of Redis alone.

    Args:
        effort: how much is tried.
        server: an empty one.
        names: who is measured.
        python: the interpreter of all, in place of those of their environments.
        fast: with uvloop and hiredis.
    """
    with company(names, server.url, python=python, fast=fast) as libraries:
        suffix = ", with uvloop and hiredis" if fast else ""
        run = SideBySide(libraries, server, effort, suffix)
        if not fast:
            yield run.calls()
            yield from run.memory()
        yield from run.redis()
        yield run.aims()
        if not fast:
            yield from run.correctness()
