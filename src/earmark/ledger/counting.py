"""The totals: sums per key and interval, kept in the transaction of what they count, and recomputed from the log.

A key's first row is of all time, and is the lock of the key: whoever has it may write every total of the key. So a
period's total is begun from the log while nobody posts to it, whenever a budget is first asked about: also one that is
new in the middle of its period finds what was spent before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.judging import Sums
from earmark.ledger.periods import ALWAYS, Interval
from earmark.ledger.rows import total_row
from earmark.ledger.tables import Tables


class NoFirstRow(Exception):
    """A key has no rows yet.

    Attributes:
        keys: those keys.
        currency: in this currency.
    """

    def __init__(self, keys: Iterable[str], currency: str) -> None:
        self.keys = sorted(keys)
        self.currency = currency


class Counting:
    """The totals of one ledger.

    Args:
        tables: its tables.
        dialect: `sqlite` or `postgresql`.
    """

    def __init__(self, tables: Tables, dialect: str) -> None:
        self._tables = tables
        self._locks = dialect != "sqlite"  # of which only one connection writes at a time
        self._insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        totals = tables.totals
        of_keys = (
            totals.c.key.in_(bindparam("of", expanding=True)),
            totals.c.currency == bindparam("unit"),
        )
        self._lock = (
            select(totals.c.id)
            .where(*of_keys, totals.c.ends_us == ALWAYS.ends, totals.c.starts_us == ALWAYS.starts)
            .order_by(totals.c.id)
            .with_for_update()
        )
        at: BindParameter[int] = bindparam("at")
        told = ("key", "starts_us", "ends_us", "posted", "pending")
        self._count = (
            totals.update()
            .where(*of_keys, totals.c.ends_us > at, totals.c.starts_us <= at)
            .values(
                posted=totals.c.posted + bindparam("more_posted"),
                pending=totals.c.pending + bindparam("more_pending"),
            )
            .returning(*(totals.c[name] for name in told))
        )

    async def add(
        self,
        connection: AsyncConnection,
        keys: Sequence[str],
        currency: str,
        at: int,
        *,
        posted: int = 0,
        pending: int = 0,
    ) -> dict[tuple[str, Interval], Sums]:
        """Add to every total that an instant is in, of every key; returns what they are then.

        Raises:
            NoFirstRow: a key has none.
        """
        if not keys:
            return {}
        which = {"of": list(keys), "unit": currency}
        # In a statement of its own: the next one then sees every period that others have begun.
        if self._locks:
            await connection.execute(self._lock, which)
        values = {**which, "at": at, "more_posted": posted, "more_pending": pending}
        rows = (await connection.execute(self._count, values)).all()
        sums = {
            (row.key, Interval(row.starts_us, row.ends_us)): Sums(row.posted, row.pending)
            for row in rows
        }
        missing = [key for key in keys if (key, ALWAYS) not in sums]
        if missing:
            raise NoFirstRow(missing, currency)
        return sums

    async def begin(
        self, connection: AsyncConnection, key: str, currency: str, interval: Interval
    ) -> Sums:
        """Begin the total of a period, from the log and from what is pending; the key is locked."""
        sums = await self.recomputed(connection, key, currency, interval)
        await connection.execute(
            self._tables.totals.insert(), total_row(key, currency, interval, sums)
        )
        return sums

    async def recomputed(
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
        row = total_row(key, currency, ALWAYS, Sums(0, 0))
        await connection.execute(self._insert(self._tables.totals).on_conflict_do_nothing(), row)
