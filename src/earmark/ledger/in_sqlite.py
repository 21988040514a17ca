"""The changes in SQLite, statement by statement: it has one writer at a time, and no server to go to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Dialect, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.changes import Changes
from earmark.ledger.counting import Count, Counting, Totals, read_totals
from earmark.ledger.statements import Statement, given, prefixed, row_of
from earmark.ledger.tables import Tables, written


class InSQLite(Changes):
    """As `Changes`."""

    def __init__(self, tables: Tables, dialect: Dialect, counting: Counting) -> None:
        super().__init__(tables, dialect, counting)
        pending, usage, lines, totals = tables.pending, tables.usage, tables.lines, tables.totals
        named = func.json_each(given("keys")).table_valued("value")
        unit, at, posted = given("unit"), given("at"), given("more_posted")
        self._put = Statement(
            insert(pending)
            .values(row_of(pending, "put"))
            .on_conflict_do_nothing()
            .returning(pending.c.amount),
            dialect,
        )
        self._take = Statement(
            pending.delete()
            .where(
                pending.c.request_id == given("name"),
                pending.c.reservation == given("who"),
            )
            .returning(pending.c.amount),
            dialect,
        )
        self._log = Statement(
            insert(usage)
            .values(row_of(usage, "log"))
            .on_conflict_do_nothing()
            .returning(usage.c.id),
            dialect,
        )
        self._lines = Statement(
            lines.insert().from_select(
                ["usage_id", "key", "currency", "at_us", "cost"],
                select(given("entry"), named.c.value, unit, at, posted),
            ),
            dialect,
        )
        self._count = Statement(
            totals.update()
            .where(
                totals.c.key.in_(select(named.c.value)),
                totals.c.currency == unit,
                totals.c.ends_us > at,
                totals.c.starts_us <= at,
            )
            .values(
                posted=totals.c.posted + posted,
                pending=totals.c.pending + given("more_pending"),
            )
            .returning(
                totals.c.key,
                totals.c.starts_us,
                totals.c.ends_us,
                totals.c.posted,
                totals.c.pending,
            ),
            dialect,
        )

    async def put(
        self, connection: AsyncConnection, row: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """As `Changes.put`."""
        if not await self._put.rows(connection, prefixed("put", row)):
            return None
        return await self._counted(connection, count, _values(count))

    async def take(
        self, connection: AsyncConnection, name: str, who: str, count: Count
    ) -> Totals | None:
        """As `Changes.take`."""
        if not await self._take.rows(connection, {"name": name, "who": who}):
            return None
        return await self._counted(connection, count, _values(count))

    async def post(
        self,
        connection: AsyncConnection,
        name: str,
        who: str,
        entry: Mapping[str, Any],
        count: Count,
    ) -> Totals | None:
        """As `Changes.post`."""
        if not await self._take.rows(connection, {"name": name, "who": who}):
            return None
        return await self.log(connection, entry, count)

    async def log(
        self, connection: AsyncConnection, entry: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """As `Changes.log`."""
        made = await self._log.rows(connection, prefixed("log", entry))
        if not made:
            return None
        values = _values(count)
        if count.keys:
            await self._lines.rows(connection, {**values, "entry": made[0][0]})
        return await self._counted(connection, count, values)

    async def _counted(
        self, connection: AsyncConnection, count: Count, values: Mapping[str, Any]
    ) -> Totals:
        if not count.keys:
            return {}
        rows = await self._count.rows(connection, values)
        return await self.counting.complete(connection, count, read_totals(rows))


def _values(count: Count) -> dict[str, Any]:
    keys = json.dumps([written(key) for key in count.keys])
    return {**count.values(), "keys": keys}
