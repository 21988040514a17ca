"""The questions that a ledger answers from its tables; each is one function of a connection, and changes nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from sqlalchemy import Column, ColumnElement, Select, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.budgets import Budget
from earmark.core.money import decimal_of
from earmark.ledger.answers import Drift, SummaryLine, UsageRow
from earmark.ledger.counting import Counting
from earmark.ledger.judging import Sums
from earmark.ledger.periods import (
    BEGINNING,
    END,
    SLICE_US,
    Interval,
    interval_of,
    microseconds,
    moment,
)
from earmark.ledger.tables import Tables
from earmark.usage import Usage

By = Literal["day", "model", "key"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries of the log are meant."""

    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                msg = f"{name} must be a datetime with a time zone, not {value!r}"
                raise ValueError(msg)

    def conditions(self, tables: Tables) -> list[ColumnElement[bool]]:
        """As a database is asked: the first instant included, the last not."""
        usage, lines = tables.usage, tables.lines
        found: list[ColumnElement[bool]] = []
        if self.key is not None:
            named = select(lines.c.usage_id).where(lines.c.key == self.key)
            found.append(or_(usage.c.key == self.key, usage.c.id.in_(named)))
        if self.since is not None:
            found.append(usage.c.at_us >= microseconds(self.since))
        if self.until is not None:
            found.append(usage.c.at_us < microseconds(self.until))
        return found


class Reading:
    """The questions about one ledger's tables."""

    def __init__(self, tables: Tables, counting: Counting) -> None:
        self._tables = tables
        self._counting = counting

    async def sums(self, connection: AsyncConnection, budget: Budget, at: int) -> Sums:
        """What a budget's period has at an instant: its total, or that of its parts where none is kept yet."""
        totals = self._tables.totals
        interval = interval_of(budget, at)
        query = select(totals.c.posted, totals.c.pending).where(
            totals.c.key == budget.key,
            totals.c.currency == budget.currency,
            totals.c.starts_us == interval.starts,
            totals.c.ends_us == interval.ends,
        )
        row = (await connection.execute(query)).one_or_none()
        if row is not None:
            return Sums(row.posted, row.pending)
        return await self._counting.summed(connection, budget.key, budget.currency, interval)

    async def rows(
        self,
        connection: AsyncConnection,
        which: Filter,
        after: int,
        limit: int,
        request_id: str | None,
    ) -> tuple[UsageRow, ...]:
        """Entries of the log in the order in which they were made, after the one of this number."""
        usage, lines = self._tables.usage, self._tables.lines
        conditions = [usage.c.id > after, *which.conditions(self._tables)]
        if request_id is not None:
            conditions.append(usage.c.request_id == request_id)
        query: Select[Any] = select(usage).where(*conditions).order_by(usage.c.id).limit(limit)
        found = (await connection.execute(query)).all()
        keys: dict[int, list[str]] = defaultdict(list)
        page = query.with_only_columns(
            usage.c.id
        ).subquery()  # a database takes so many values, and no more
        named = select(lines.c.usage_id, lines.c.key).join(page, page.c.id == lines.c.usage_id)
        for line in (await connection.execute(named)).all():
            keys[line.usage_id].append(line.key)
        return tuple(_usage_row(row, keys[row.id]) for row in found)

    async def summary(
        self, connection: AsyncConnection, which: Filter, by: Sequence[By], zone: str
    ) -> tuple[SummaryLine, ...]:
        """Sums by day, model and key, in that order of the groups which was asked for."""
        usage = self._tables.usage
        quarter = usage.c.at_us // SLICE_US
        groups = {"day": quarter, "model": usage.c.model, "key": usage.c.key}
        columns = [groups[name].label(name) for name in by]
        query: Select[Any] = (
            select(
                *columns,
                usage.c.currency,
                func.sum(case((usage.c.revision == 0, 1), else_=0)).label("requests"),
                *_halves(usage.c.cost),
                *_halves(usage.c.input_tokens),
                *_halves(usage.c.output_tokens),
            )
            .where(*which.conditions(self._tables))
            .group_by(*(groups[name] for name in by), usage.c.currency)
        )
        place = ZoneInfo(zone)
        sums: dict[tuple[Any, ...], list[int | None]] = {}
        for row in (await connection.execute(query)).mappings():
            names = {name: row[name] for name in by}
            if "day" in names:
                names["day"] = moment(names["day"] * SLICE_US).astimezone(place).date()
            group = (*(names.get(name) for name in by), row["currency"])
            had = sums.setdefault(group, [0, 0, None, None])
            found = [row["requests"], *(_whole(row, column) for column in _SUMMED)]
            for position, value in enumerate(found):
                if value is not None:
                    had[position] = (had[position] or 0) + value
        ordered = sorted(sums, key=lambda group: [(part is not None, part) for part in group])
        return tuple(_summary_line(by, group, sums[group]) for group in ordered)

    async def verify(self, connection: AsyncConnection) -> tuple[Drift, ...]:
        """Every total that is not the sum of what it counts."""
        tables = self._tables
        totals, lines, pending = tables.totals, tables.lines, tables.pending
        logged = (
            select(func.coalesce(func.sum(lines.c.cost), 0))
            .where(
                lines.c.key == totals.c.key,
                lines.c.currency == totals.c.currency,
                lines.c.at_us >= totals.c.starts_us,
                lines.c.at_us < totals.c.ends_us,
            )
            .scalar_subquery()
        )
        query: Select[Any] = select(totals, logged.label("logged")).order_by(totals.c.id)
        found = (await connection.execute(query)).all()
        open_ones = [
            (row.currency, row.at_us, row.amount, json.loads(row.counts_in))
            for row in (await connection.execute(select(pending))).all()
        ]
        drifts: list[Drift] = []
        for row in found:
            held = sum(
                amount
                for currency, at, amount, keys in open_ones
                if currency == row.currency
                and row.starts_us <= at < row.ends_us
                and row.key in keys
            )
            if (row.posted, row.pending) != (int(row.logged), held):
                drifts.append(_drift(row, held))
        return (*drifts, *await self._uncounted(connection))

    async def _uncounted(self, connection: AsyncConnection) -> list[Drift]:
        """Keys that the log names, and that have no total of that time; lines that are not what their entry costs."""
        lines, totals, usage = self._tables.lines, self._tables.totals, self._tables.usage
        quarter = lines.c.at_us // SLICE_US
        known = select(totals.c.id).where(
            totals.c.key == lines.c.key,
            totals.c.currency == lines.c.currency,
            totals.c.ends_us == (quarter + 1) * SLICE_US,
            totals.c.starts_us == quarter * SLICE_US,
        )
        differs = or_(~known.exists(), lines.c.cost != usage.c.cost, lines.c.at_us != usage.c.at_us)
        query: Select[Any, Any, Any, Any] = (
            select(
                lines.c.key,
                lines.c.currency,
                func.sum(lines.c.cost).label("posted"),
                func.sum(usage.c.cost).label("logged"),
            )
            .join(usage, usage.c.id == lines.c.usage_id)
            .where(differs)
            .group_by(lines.c.key, lines.c.currency)
        )
        return [
            Drift(
                row.key,
                row.currency,
                None,
                None,
                decimal_of(int(row.posted)),
                decimal_of(int(row.logged)),
                decimal_of(0),
                decimal_of(0),
            )
            for row in (await connection.execute(query)).all()
        ]


_SUMMED: Final = ("cost", "input_tokens", "output_tokens")
_HALF: Final = 2**32


def _halves(column: Column[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The sum of a column in two, neither of which can become more than a database's integer holds."""
    return (
        func.sum(column // _HALF).label(f"{column.name}_high"),
        func.sum(column % _HALF).label(f"{column.name}_low"),
    )


def _whole(row: Mapping[Any, Any], name: str) -> int | None:
    high, low = row[f"{name}_high"], row[f"{name}_low"]
    return None if high is None else int(high) * _HALF + int(low)


def _usage_row(row: Any, keys: list[str]) -> UsageRow:  # noqa: ANN401 - a row
    usage = Usage(
        row.input_tokens,
        row.output_tokens,
        row.cached_input_tokens,
        row.cache_write_tokens,
        row.reasoning_tokens,
        row.reported_total,
    )
    metadata: Mapping[str, Any] | None = None if row.metadata is None else json.loads(row.metadata)
    return UsageRow(
        id=row.id,
        request_id=row.request_id,
        reservation=row.reservation,
        revision=row.revision,
        key=row.key,
        budget_keys=tuple(sorted(keys)),
        model=row.model,
        usage=usage,
        cost=decimal_of(row.cost),
        currency=row.currency,
        price_version=row.price_version,
        outcome=row.outcome,
        estimated=bool(row.estimated),
        at=moment(row.at_us),
        resolved_at=moment(row.resolved_us),
        metadata=metadata,
    )


def _summary_line(
    by: Sequence[By], group: tuple[Any, ...], sums: Sequence[int | None]
) -> SummaryLine:
    names = dict(zip(by, group, strict=False))
    day: date | None = names.get("day")
    requests, cost, read, written = sums
    return SummaryLine(
        day,
        names.get("model"),
        names.get("key"),
        group[-1],
        requests or 0,
        decimal_of(cost or 0),
        read,
        written,
    )


def _drift(row: Any, held: int) -> Drift:  # noqa: ANN401 - a row
    interval = Interval(row.starts_us, row.ends_us)
    return Drift(
        row.key,
        row.currency,
        None if interval.starts == BEGINNING else moment(interval.starts),
        None if interval.ends == END else moment(interval.ends),
        decimal_of(row.posted),
        decimal_of(int(row.logged)),
        decimal_of(row.pending),
        decimal_of(held),
    )
