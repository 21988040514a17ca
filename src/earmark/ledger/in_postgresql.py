"""The changes in PostgreSQL, each in one statement: what a transaction costs there are its round trips.

A statement sees what was committed before it began, and of a row that it locks the newest version. So a period that
somebody has begun while this one waited for the lock of the key is not seen: the first row says how many there are,
which is compared with how many it said when the statement began. Where they differ the transaction is run again.

What a part does first another part asks for, since those that nobody asks for come last: that is the order of locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import CTE, Dialect, Select, any_, exists, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.changes import Changes
from earmark.ledger.counting import Count, Counting, Totals, read_totals
from earmark.ledger.failures import Again
from earmark.ledger.periods import ALWAYS
from earmark.ledger.statements import Statement, given, prefixed, row_of
from earmark.ledger.tables import Name, Tables


class InPostgreSQL(Changes):
    """As `Changes`."""

    def __init__(self, tables: Tables, dialect: Dialect, counting: Counting) -> None:
        super().__init__(tables, dialect, counting)
        self._put = Statement(self._and_count(self._made_pending()), dialect)
        self._take = Statement(self._and_count(self._taken()), dialect)
        posted, logged = self._entry(of=self._taken()), self._entry()
        self._post = Statement(self._and_count(posted).add_cte(self._lines(posted)), dialect)
        self._log = Statement(self._and_count(logged).add_cte(self._lines(logged)), dialect)

    def _made_pending(self) -> CTE:
        pending = self.tables.pending
        put = insert(pending).values(row_of(pending, "put")).on_conflict_do_nothing()
        return put.returning(pending.c.amount).cte("put")

    def _taken(self) -> CTE:
        pending = self.tables.pending
        of_it = (
            pending.c.request_id == given("name"),
            pending.c.reservation == given("who"),
        )
        return pending.delete().where(*of_it).returning(pending.c.amount).cte("taken")

    def _entry(self, of: CTE | None = None) -> CTE:
        """A new entry of the log: where something was taken, or else unless it is there."""
        usage = self.tables.usage
        row = row_of(usage, "log")
        entry: Select[Any] = select(*row.values())
        if of is None:
            made = insert(usage).from_select(list(row), entry).on_conflict_do_nothing()
        else:
            made = insert(usage).from_select(list(row), entry.where(exists(select(of))))
        return made.returning(usage.c.id).cte("entry")

    def _lines(self, entry: CTE) -> CTE:
        """A line for each key that an entry counts in."""
        lines = self.tables.lines
        named: Any = func.unnest(_KEYS).column_valued("named")
        of_each = select(
            entry.c.id,
            named,
            given("unit", lines.c.currency.type),
            given("at", lines.c.at_us.type),
            given("more_posted", lines.c.cost.type),
        )
        places = ["usage_id", "key", "currency", "at_us", "cost"]
        return lines.insert().from_select(places, of_each).cte("line")

    def _and_count(self, done: CTE) -> Select[Any]:
        """What is done, and then, if it is, its count in every total of its keys."""
        totals = self.tables.totals
        unit, at = given("unit"), given("at")

        def firsts(table: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the table, or an alias of it
            return (
                table.c.key == any_(_KEYS),
                table.c.currency == unit,
                table.c.ends_us == ALWAYS.ends,
                table.c.starts_us == ALWAYS.starts,
            )

        first = (
            select(totals.c.id, totals.c.key, totals.c.begun)
            .where(*firsts(totals), exists(select(done)))
            .order_by(totals.c.id)
            .with_for_update()
            .cte("first")
        )
        counted = (
            totals.update()
            .where(
                totals.c.key == first.c.key,
                totals.c.currency == unit,
                totals.c.ends_us > at,
                totals.c.starts_us <= at,
            )
            .values(
                posted=totals.c.posted + given("more_posted"),
                pending=totals.c.pending + given("more_pending"),
            )
            .returning(
                totals.c.key,
                totals.c.starts_us,
                totals.c.ends_us,
                totals.c.posted,
                totals.c.pending,
            )
            .cte("counted")
        )
        seen = totals.alias("seen")
        both = counted.join(first, first.c.key == counted.c.key).join(seen, seen.c.id == first.c.id)
        one = select(func.count().label("done")).select_from(done).subquery("one")
        return select(counted, first.c.begun - seen.c.begun, one.c.done).select_from(
            one.outerjoin(both, true())
        )

    async def put(
        self, connection: AsyncConnection, row: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """As `Changes.put`."""
        return await self._run(connection, self._put, prefixed("put", row), count)

    async def take(
        self, connection: AsyncConnection, name: str, who: str, count: Count
    ) -> Totals | None:
        """As `Changes.take`."""
        return await self._run(connection, self._take, {"name": name, "who": who}, count)

    async def post(
        self,
        connection: AsyncConnection,
        name: str,
        who: str,
        entry: Mapping[str, Any],
        count: Count,
    ) -> Totals | None:
        """As `Changes.post`."""
        values = {"name": name, "who": who, **prefixed("log", entry)}
        return await self._run(connection, self._post, values, count)

    async def log(
        self, connection: AsyncConnection, entry: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """As `Changes.log`."""
        return await self._run(connection, self._log, prefixed("log", entry), count)

    async def _run(
        self,
        connection: AsyncConnection,
        statement: Statement,
        values: Mapping[str, Any],
        count: Count,
    ) -> Totals | None:
        rows = await statement.rows(connection, {**values, **count.values()})
        if not rows[0][-1]:
            return None
        if not count.keys:
            return {}
        if any(row[-2] for row in rows):
            raise Again
        found = read_totals([row for row in rows if row[0] is not None])
        return await self.counting.complete(connection, count, found)


_KEYS = given("keys", ARRAY(Name))
