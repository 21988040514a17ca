"""When a budget's period begins and ends: by the calendar of its zone, clock changes included (C49).

A period begins at the first instant of a local day and ends where the next one begins; the first instant belongs to it
and the last does not. A day may have 23 or 25 hours, may begin at one o'clock, and once was left out altogether.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from earmark.budgets import Budget, Period

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)

BEGINNING: Final = -(2**62)
END: Final = 2**62
"""In microseconds: before and after everything."""


class Interval(NamedTuple):
    """Instants in microseconds since the epoch, the first included, the last not."""

    starts: int
    ends: int


ALWAYS: Final = Interval(BEGINNING, END)

SLICE_US: Final = 900 * 1_000_000
"""A quarter of an hour: every zone's clock differs from UTC by whole ones (since 1972), so that each period is made of
them."""


def slice_of(at: int) -> Interval:
    """The quarter of an hour that an instant is in."""
    starts = at // SLICE_US * SLICE_US
    return Interval(starts, starts + SLICE_US)


def is_sliced(interval: Interval) -> bool:
    """Whether an interval is made of whole quarters of an hour."""
    return not (interval.starts % SLICE_US or interval.ends % SLICE_US)


def interval_of(budget: Budget, at: int) -> Interval:
    """The period of a budget that an instant is in."""
    if budget.period == "total":
        return ALWAYS
    found = _latest.get((budget.period, budget.zone), ALWAYS)
    if found is ALWAYS or not found.starts <= at < found.ends:
        found = _period(budget.period, budget.zone, at)
        _latest[budget.period, budget.zone] = found
    return found


_latest: dict[tuple[Period, str], Interval] = {}  # nearly every request is in the same one


def _period(period: Period, name: str, at: int) -> Interval:
    zone = ZoneInfo(name)
    first = _first_day(period, moment(at).astimezone(zone).date())
    # A clock may be put back over midnight, so that yesterday comes once more: what has begun has begun.
    while _starts(_next(period, first), name) <= at:
        first = _next(period, first)
    while _starts(first, name) > at:
        first = _first_day(period, first - _DAY)
    return Interval(_starts(first, name), _starts(_next(period, first), name))


def _first_day(period: Period, day: date) -> date:
    if period == "weekly":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "monthly" else day


def _next(period: Period, first: date) -> date:
    if period == "monthly":
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if period == "weekly" else 1)


@lru_cache(maxsize=4_096)
def _starts(day: date, name: str) -> int:
    """The first instant of a local day, in microseconds."""
    zone = ZoneInfo(name)
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - what a clock on the wall says
    instant = midnight.replace(tzinfo=zone).astimezone(UTC)
    if _wall(instant, zone) == midnight:
        return microseconds(instant)
    # The clock was put forward over midnight: the day begins with that change, which is to the second.
    before, after = microseconds(instant - _DAY), microseconds(instant)
    while after - before > 1_000_000:  # noqa: PLR2004 - a second
        middle = (before + after) // 2_000_000 * 1_000_000
        if _wall(moment(middle), zone) < midnight:
            before = middle
        else:
            after = middle
    return after


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def moment(at: int) -> datetime:
    """Microseconds since the epoch as a moment in UTC."""
    return EPOCH + timedelta(microseconds=at)


def microseconds(instant: datetime) -> int:
    """A moment in microseconds since the epoch."""
    return (instant - EPOCH) // _MICROSECOND
