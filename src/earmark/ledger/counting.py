"""The totals: sums per key and interval, kept in the transaction of what they count, and recomputed from the log.

A key's first row is of all time, and is the lock of the key: whoever has it may write every total of the key. So a
period's total is begun while nobody posts to it, whenever a budget is first asked about: also one that is new in the
middle of its period finds what was spent before. It is the sum of its quarters of an hour, each of which has a total as
soon as anything counts in it: what a check costs does not grow with the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Dialect, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.judging import Sums
from earmark.ledger.periods import ALWAYS, SLICE_US, Interval, is_sliced, slice_of
from earmark.ledger.rows import total_row
from earmark.ledger.statements import Rows, Statement, given, prefixed, row_of
from earmark.ledger.tables import Tables

Totals: TypeAlias = dict[tuple[str, Interval], Sums]


class Count(NamedTuple):
    """What is added to the totals of some keys.

    Attributes:
        keys: each once.
        currency: what it is in.
        at: when its request was admitted: it counts in every interval that this instant is in.
        posted: nano-units more that are posted.
        pending: nano-units more that are pending.
    """

    keys: Sequence[str]
    currency: str
    at: int
    posted: int = 0
    pending: int = 0

    def values(self) -> dict[str, Any]:
        """What the statements of `Changes` are given."""
        return {
            "keys": self.keys,
            "unit": self.currency,
            "at": self.at,
            "more_posted": self.posted,
            "more_pending": self.pending,
        }


class NoFirstRow(Exception):
    """A key has no rows yet.

    Attributes:
        keys: those keys.
        currency: in this currency.
    """

    def __init__(self, keys: Sequence[str], currency: str) -> None:
        super().__init__(keys, currency)
        self.keys = sorted(keys)
        self.currency = currency


class Counting:
    """The totals of one ledger.

    Args:
        tables: its tables.
        dialect: that of its database.
    """

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
        totals = tables.totals
        of_key = (totals.c.key == given("of"), totals.c.currency == given("unit"))
        self._sliced = Statement(
            select(
                func.coalesce(func.sum(totals.c.posted), 0),
                func.coalesce(func.sum(totals.c.pending), 0),
            ).where(
                *of_key,
                totals.c.ends_us > given("starts"),
                totals.c.ends_us <= given("ends"),
                totals.c.ends_us - totals.c.starts_us == SLICE_US,
            ),
            dialect,
        )
        put = row_of(totals, "put")
        self._insert = Statement(totals.insert().values(put), dialect)
        self._insert_first = Statement(insert(totals).values(put).on_conflict_do_nothing(), dialect)
        self._begun = Statement(
            totals.update()
            .where(*of_key, totals.c.ends_us == ALWAYS.ends, totals.c.starts_us == ALWAYS.starts)
            .values(begun=totals.c.begun + 1),
            dialect,
        )

    async def complete(
        self, connection: AsyncConnection, count: Count, found: Mapping[tuple[str, Interval], Sums]
    ) -> Totals:
        """The totals of a count, those that it is the first in included; its keys are locked.

        Args:
            connection: of the transaction that has counted.
            count: what it has added.
            found: the totals that it has added this to, as they are since.

        Raises:
            NoFirstRow: a key has none.
        """
        missing = [key for key in count.keys if (key, ALWAYS) not in found]
        if missing:
            raise NoFirstRow(missing, count.currency)
        totals = dict(found)
        quarter = slice_of(count.at)
        for key in count.keys:
            if (key, quarter) not in totals:
                totals[key, quarter] = Sums(count.posted, count.pending)
                await self._add(connection, key, count.currency, quarter, totals[key, quarter])
        return totals

    async def begin(
        self, connection: AsyncConnection, key: str, currency: str, interval: Interval
    ) -> Sums:
        """Begin the total of a period; the key is locked."""
        sums = await self.summed(connection, key, currency, interval)
        await self._add(connection, key, currency, interval, sums)
        return sums

    async def _add(
        self,
        connection: AsyncConnection,
        key: str,
        currency: str,
        interval: Interval,
        sums: Sums,
    ) -> None:
        await self._insert.rows(connection, _put(key, currency, interval, sums))
        await self._begun.rows(connection, {"of": key, "unit": currency})

    async def summed(
        self, connection: AsyncConnection, key: str, currency: str, interval: Interval
    ) -> Sums:
        """What a key has in an interval that has no total of its own."""
        if not is_sliced(interval):
            return await self._recomputed(connection, key, currency, interval)
        values = {"of": key, "unit": currency, "starts": interval.starts, "ends": interval.ends}
        ((posted, pending),) = await self._sliced.rows(connection, values)
        return Sums(int(posted), int(pending))

    async def _recomputed(
        self, connection: AsyncConnection, key: str, currency: str, interval: Interval
    ) -> Sums:
        """What the log and the open requests say of a key in an interval."""
        lines, pending = self._tables.lines, self._tables.pending
        logged = select(func.coalesce(func.sum(lines.c.cost), 0)).where(
            lines.c.key == key,
            lines.c.currency == currency,
            lines.c.at_us >= interval.starts,
            lines.c.at_us < interval.ends,
        )
        held = select(pending.c.counts_in, pending.c.amount).where(
            pending.c.currency == currency,
            pending.c.at_us >= interval.starts,
            pending.c.at_us < interval.ends,
        )
        rows = (await connection.execute(held)).all()
        return Sums(
            int((await connection.execute(logged)).scalar_one()),
            sum(row.amount for row in rows if key in json.loads(row.counts_in)),
        )

    async def make_first_row(self, connection: AsyncConnection, key: str, currency: str) -> None:
        """Have a key begin to count: in a transaction of its own, so that nobody waits for it with a lock in hand."""
        await self._insert_first.rows(connection, _put(key, currency, ALWAYS, Sums(0, 0)))


def read_totals(rows: Rows) -> Totals:
    """Totals by key and interval, of rows that begin with key, start, end, posted and pending."""
    return {
        (key, Interval(starts, ends)): Sums(posted, pending)
        for key, starts, ends, posted, pending, *_ in rows
    }


def _put(key: str, currency: str, interval: Interval, sums: Sums) -> dict[str, Any]:
    row = total_row(key, currency, interval, sums)
    return prefixed("put", row)
