"""What a replay has shown, as text: who was refused, by which limits, and when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from earmark.commands.simulation.tally import SLICES, LimitTally, Tally
from earmark.commands.words import briefly, columns, legible, percent
from earmark.limits import DAY, MICROSECONDS

_MOST_TENANTS: Final = 20
_MOST_LIMITS: Final = 20
_LINES: Final = 24  # over time
_PER_LINE: Final = SLICES // _LINES
_WIDTH: Final = 20

_DATES_FROM: Final = 3_650 * DAY  # earlier than 1980 are seconds of somebody's own


def tables(tally: Tally) -> Iterator[str]:
    """The lines."""
    requests, refused = sum(tally.requests), sum(tally.refused)
    yield (
        f"{requests:,} requests of {len(tally.tenants):,} tenants in {tally.seconds:,.0f} seconds:"
        f" {requests - refused:,} admitted, {refused:,} refused ({percent(refused / requests)})"
    )
    yield from ("", *_who(tally), "", *_by_what(tally), "", *_when(tally))


def moment(at: int) -> str:
    """A time of the trace: a date, or seconds where it does not begin in 1970."""
    if at < _DATES_FROM * MICROSECONDS:
        return f"{at / MICROSECONDS:,.1f} s"
    return f"{datetime.fromtimestamp(at // MICROSECONDS, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _who(tally: Tally) -> Iterator[str]:
    ranked = sorted(tally.tenants.items(), key=lambda one: (-one[1].refused, -one[1].requests))
    rows = [
        (
            legible(name),
            f"{one.requests:,}",
            f"{one.refused:,}",
            percent(one.refused / one.requests),
            f"{one.tokens:,}",
            f"{one.refused_tokens:,}",
            "-" if one.first is None else moment(one.first),
            "-" if one.last is None else moment(one.last),
        )
        for name, one in ranked[:_MOST_TENANTS]
    ]
    heads = ("tenant", "requests", "refused", "", "tokens", "refused", "first refusal", "last")
    yield from columns(heads, rows)
    if len(ranked) > _MOST_TENANTS:
        yield f"… and {len(ranked) - _MOST_TENANTS:,} more"


def _by_what(tally: Tally) -> Iterator[str]:
    rows = [
        (
            legible(one.key),
            briefly(one.limit) + (" (would refuse)" if one.shadow else ""),
            f"{one.refused:,}",
            percent(one.peak),
            "-" if one.first is None else moment(one.first),
        )
        for one in tally.busiest(_MOST_LIMITS)
    ]
    if not rows:
        yield "no limit applies to any of them"
        return
    yield from columns(("scope", "limit", "refused", "fullest", "first refusal"), rows, left=2)
    if len(tally.limits) > _MOST_LIMITS:
        yield f"… and {len(tally.limits) - _MOST_LIMITS:,} more"


def _when(tally: Tally) -> Iterator[str]:
    busiest = tally.busiest(1)
    rows: list[tuple[str, ...]] = []
    for first in range(0, SLICES, _PER_LINE):
        slices = range(first, first + _PER_LINE)
        start = tally.start + first * tally.width
        if start > tally.end:
            break
        requests = sum(tally.requests[slice_] for slice_ in slices)
        refused = sum(tally.refused[slice_] for slice_ in slices)
        row = [moment(start), f"{requests:,}", f"{refused:,}"]
        rows.append((*row, *(_bar(one, slices) for one in busiest)))
    heads = ["time", "requests", "refused"]
    heads += [f"{legible(one.key)}: {briefly(one.limit)}" for one in busiest]
    for line in columns(heads, [tuple(row) for row in rows]):
        yield line.rstrip()


def _bar(one: LimitTally, slices: range) -> str:
    """How full a limit was at its fullest, as a bar."""
    full = max((one.full.get(slice_, 0.0) for slice_ in slices), default=0.0)
    return f"{percent(full)} {'#' * min(round(_WIDTH * full), 2 * _WIDTH):<{_WIDTH}}"
