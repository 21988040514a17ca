"""Traces of requests, read from CSV or JSON lines: who asked for which model when, and what it used.

A trace may have a million lines, so that its columns are kept as arrays, and whoever asks (tenant, model, and what else
limits are by) as a number. Mistakes are told all at once, up to a number of them, each with its file, its line and what
helps.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TextIO, cast

from earmark.amounts import MAX_AMOUNT
from earmark.limits import MAX_WINDOW_US, MICROSECONDS, check_key
from earmark.policies.mistakes import Mistake, shown

COLUMNS: Final = ("time", "tenant", "model", "input_tokens", "output_tokens", "duration")

MOST_MISTAKES: Final = 20

Progress = Callable[[int, int], object]
"""Told how much is done, and of how much."""

_EVERY: Final = 10_000  # lines between two words about the progress

Who = tuple[str, ...]
"""A tenant, a model ("": none), and what else limits are by, in the order of their names."""


class TraceError(ValueError):
    """A trace that cannot be read, or has mistakes.

    Attributes:
        mistakes: the first of them, at least one.
        more: how many others there are.
    """

    def __init__(self, mistakes: Sequence[Mistake], more: int = 0) -> None:
        self.mistakes = tuple(mistakes)
        self.more = more
        lines = [*map(str, mistakes), *([f"… and {more:,} more"] if more else [])]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their lines; times and durations are microseconds.

    Attributes:
        whos: everybody who asks.
        who: of each request, the place of who asks in `whos`.
    """

    whos: list[Who] = field(default_factory=list[Who])
    who: array[int] = field(default_factory=lambda: array("q"))
    time: array[int] = field(default_factory=lambda: array("q"))
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.time)

    def order(self) -> Sequence[int]:
        """The requests by their time; those of one time in the order of their lines."""
        time = self.time
        if all(map(int.__le__, time, time[1:])):
            return range(len(time))
        return sorted(range(len(time)), key=time.__getitem__)


class _Wrong(ValueError):
    """A value that is wrong, and what helps.

    Args:
        value: the value.
        kind: one of `_WRONGS`.
    """

    def __init__(self, value: object, kind: str) -> None:
        problem, self.remedy = _WRONGS[kind]
        self.problem = f"{shown(value)} {problem}"
        super().__init__(self.problem)


_WRONGS: Final = {
    "amount": ("is no number of tokens", "write a whole number, 0 or more"),
    "duration": (
        "is no number of seconds",
        "write for how long the request ran, such as 2.5, or 0 where nobody knows",
    ),
    "name": ("is no name", "write a text of at most 1,024 bytes of UTF-8"),
    "range": ("is out of range", "write seconds since 1970: milliseconds are divided by 1,000"),
    "tenant": ("is no tenant", "write who asks: a request of nobody has no limits"),
    "time": ("is no time", "write seconds, or a date such as 2026-04-01T12:30:00Z"),
}


def read_trace(path: str, dims: Sequence[str], progress: Progress) -> Trace:
    """Read a trace.

    Args:
        path: the file; its name ends with .csv, or with .jsonl, .ndjson or .json for JSON lines.
        dims: what limits are by beside tenant and model: columns that are read where they are there.
        progress: told how many bytes were read, and of how many.

    Raises:
        TraceError: it cannot be read, or has mistakes.
    """
    rows = _FORMATS.get(Path(path).suffix.lower())
    if rows is None:
        wrong = Mistake(
            "format",
            "",
            "the name does not say in which format it is",
            "let it end with .csv, or with .jsonl where every line is a JSON object",
            path,
        )
        raise TraceError([wrong])
    try:
        with (
            Path(path).open("rb") as raw,
            TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="") as file,
        ):
            reader = _Reader(path, dims)
            size = max(Path(path).stat().st_size, 1)
            for number, (line, row) in enumerate(rows(file, path, dims)):
                if not number % _EVERY:
                    progress(min(raw.tell(), size), size)
                reader.take(line, row)
            progress(size, size)
            return reader.done()
    except OSError as error:
        wrong = Mistake("unreadable", "", f"cannot be read ({error.strerror})", "name a file", path)
        raise TraceError([wrong]) from error


Row = tuple[int, Sequence[Any] | Mistake]
"""The number of a line, and the values of its columns with those of the dims, or what is wrong with it."""


class _Reader:
    """Takes rows in.

    Args:
        path: the file, for mistakes.
        dims: the names of what comes after the columns.
    """

    def __init__(self, path: str, dims: Sequence[str]) -> None:
        self._path = path
        self._checks = dict(zip((*COLUMNS, *dims), (*_CHECKS, *(_name for _ in dims)), strict=True))
        self._known: dict[Who, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}  # the same by what is written
        self._mistakes: list[Mistake] = []
        self._more = 0
        self._trace = Trace()

    def take(self, line: int, row: Sequence[Any] | Mistake) -> None:
        """Take a request in, or all that is wrong with it."""
        if isinstance(row, Mistake):
            self._complain(row)
            return
        try:
            time, duration = _time(row[0]), _duration(row[5])
            read, written = _amount(row[3]), _amount(row[4])
            who = self._number_of((row[1], row[2], *row[6:]))
        except _Wrong:
            self._look(line, row)
            return
        trace = self._trace
        trace.who.append(who)
        trace.time.append(time)
        trace.input_tokens.append(read)
        trace.output_tokens.append(written)
        trace.duration.append(duration)

    def _number_of(self, written: tuple[Any, ...]) -> int:
        """The place of who asks: of a million requests most are by somebody who is known."""
        try:
            return self._numbers[written]
        except (KeyError, TypeError):  # new, or by a value that is no name and has no hash
            tenant, *others = written
            who = (_tenant(tenant), *map(_name, others))
        number = self._known.setdefault(who, len(self._known))
        self._numbers[written] = number
        return number

    def _look(self, line: int, row: Sequence[Any]) -> None:
        """Find everything that is wrong with a row."""
        for (name, check), value in zip(self._checks.items(), row, strict=True):
            try:
                check(value)
            except _Wrong as wrong:
                self._complain(
                    Mistake("value", name, wrong.problem, wrong.remedy, self._path, line)
                )

    def _complain(self, mistake: Mistake) -> None:
        if len(self._mistakes) < MOST_MISTAKES:
            self._mistakes.append(mistake)
        else:
            self._more += 1

    def done(self) -> Trace:
        """What was taken in.

        Raises:
            TraceError: there are mistakes, or there is nothing.
        """
        if self._mistakes:
            raise TraceError(self._mistakes, self._more)
        if not self._trace:
            empty = Mistake("empty", "", "has no requests", "write one a line", self._path)
            raise TraceError([empty])
        self._trace.whos.extend(self._known)
        return self._trace


def _time(value: object) -> int:
    """Microseconds since the epoch, of seconds or of a date."""
    seconds = _number(value)
    if seconds is None and isinstance(value, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(value.strip())
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if seconds is None:
        raise _Wrong(value, "time")
    if not 0 <= seconds < MAX_WINDOW_US / MICROSECONDS:
        raise _Wrong(value, "range")
    return round(seconds * MICROSECONDS)


def _duration(value: object) -> int:
    seconds = _number(value)
    if seconds is None or not 0 <= seconds < MAX_WINDOW_US / MICROSECONDS:
        raise _Wrong(value, "duration")
    return round(seconds * MICROSECONDS)


def _number(value: object) -> float | None:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return float("inf")


def _amount(value: object) -> int:
    try:
        amount = int(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _Wrong(value, "amount") from error
    if type(amount) is not int or not 0 <= amount <= MAX_AMOUNT:
        raise _Wrong(value, "amount")
    return amount


def _tenant(value: object) -> str:
    name = _name(value)
    if not name:
        raise _Wrong(value, "tenant")
    return name


def _name(value: object) -> str:
    """A name, or ""."""
    if value is None or value == "":
        return ""
    try:
        return check_key("it", value)
    except ValueError as error:
        raise _Wrong(value, "name") from error


_CHECKS: Final = (_time, _tenant, _name, _amount, _amount, _duration)


def _missing(path: str, line: int, there: Sequence[str]) -> Mistake | None:
    """What is wrong with the columns of a file, or with the fields of an object."""
    absent = [name for name in COLUMNS if name not in there]
    if not absent:
        return None
    has = ", ".join(map(shown, there[:10])) or "nothing"
    return Mistake(
        "missing",
        "",
        f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing; it has {has}",
        f"every request has {', '.join(COLUMNS)}",
        path,
        line,
    )


def _csv_rows(file: TextIO, path: str, dims: Sequence[str]) -> Iterator[Row]:
    """The rows below the first one, which names the columns."""
    reader = csv.reader(file, strict=True)
    try:
        heads = [head.strip() for head in next(reader, list[str]())]
        wrong = _missing(path, 1, heads)
        if wrong is not None:
            yield 1, wrong
            return
        columns = itemgetter(*map(heads.index, COLUMNS))
        others = [heads.index(name) if name in heads else None for name in dims]
        for cells in reader:
            if len(cells) == len(heads):
                more = ["" if place is None else cells[place] for place in others]
                yield reader.line_num, (*columns(cells), *more)
            elif cells:
                problem = f"has {len(cells)} cells, and the first line has {len(heads)}"
                remedy = "write one for each column, and quote a cell with a comma in it"
                yield reader.line_num, Mistake("cells", "", problem, remedy, path, reader.line_num)
    except csv.Error as error:
        remedy = "write it as a spreadsheet would"
        yield (
            reader.line_num,
            Mistake("csv", "", f"is no CSV ({error})", remedy, path, reader.line_num),
        )


def _json_rows(file: TextIO, path: str, dims: Sequence[str]) -> Iterator[Row]:
    """One object a line; empty lines are none."""
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            remedy = "write one JSON object a line"
            problem = f"is no JSON ({error})"
            yield number, Mistake("json", "", problem, remedy, path, number)
            continue
        if not isinstance(found, Mapping):
            remedy = f"write an object with {', '.join(COLUMNS)}"
            problem = f"{shown(found)} is no object"
            yield number, Mistake("json", "", problem, remedy, path, number)
            continue
        fields = cast("Mapping[str, Any]", found)
        wrong = _missing(path, number, list(fields))
        yield number, wrong or [fields.get(name) for name in (*COLUMNS, *dims)]


_FORMATS: Final[Mapping[str, Callable[[TextIO, str, Sequence[str]], Iterator[Row]]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".json": _json_rows,
}
