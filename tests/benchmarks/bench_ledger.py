"""What a ledger costs: on SQLite, and on a PostgreSQL server that this starts.

A lifecycle is a check-and-hold and a settlement. Beside it run, through the same SQLAlchemy engine: on PostgreSQL a
bare INSERT and a bare UPDATE in two transactions, on SQLite the four statements without which no design does both (a
pending row, a usage row, and a total each time) in two transactions. The rounds alternate, so that noise hits all
alike, and the best of each counts. The same once more where the log has a million rows.

What passes on the clock has the disk's part in it, which varies more than all the rest on a machine with neighbours: so
the processor's time stands beside it, of this process alone, and what does not vary at all: how many statements a life
cycle sends, savepoints among them, and how many commits. Of callers at once that is what shows whether they share any.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import event, insert, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from earmark import Limiter, Usage
from earmark.ledger import Budget, Ledger, PriceList, Spend, Tables
from tests.benchmarks.figures import Effort, Table, Work, elapsed, least, processor
from tests.postgres import postgres_server

TIMES: Final = 40
ROWS: Final = 1_000_000
CALLERS: Final = 32
PLENTY: Final = Decimal(1_000_000)

PRICES: Final = PriceList({"big": {"input": 2, "output": 8}})
BUDGETS: Final = (Budget("user:1", PLENTY, "daily"), Budget("team", PLENTY, "monthly"))


def lifecycle(limiter: Limiter, budgets: tuple[Budget, ...]) -> Work:
    """One check-and-hold and one settlement."""
    spend = Spend(budgets, "big", Usage(1_000, 500))

    async def work(_: int) -> None:
        reservation = await limiter.pre_commit(spend=spend)
        await reservation.settle_success(Usage(900, 100))

    return work


def bare(engine: AsyncEngine, *, four: bool) -> Work:
    """INSERT and UPDATE in two transactions; `four`: both in each of the two."""
    tables = Tables(prefix="bare_")
    key = {"key": "user:1", "currency": "USD"}
    pending = insert(tables.pending)
    usage = insert(tables.usage)
    change = text("UPDATE bare_totals SET posted = posted + :more WHERE key = :key")

    async def work(number: int) -> None:
        name = dict.fromkeys(("request_id", "reservation"), f"{time.time_ns()}.{number}")
        row = {
            **key,
            **name,
            "at_us": 1,
            "amount": 5,
            "counts_in": "[]",
            "askers": "x",
            "expires_us": 1,
        }
        async with engine.begin() as connection:
            await connection.execute(pending, row)
            if four:
                await connection.execute(change, {"more": 1, "key": "user:1"})
        async with engine.begin() as connection:
            if four:
                row = {**key, **name, "at_us": 1, "cost": 5, "revision": 0}
                row |= {"outcome": "settled", "estimated": False, "resolved_us": 1}
                await connection.execute(usage, row)
            await connection.execute(change, {"more": 1, "key": "user:1"})

    return work


async def make_bare(engine: AsyncEngine) -> None:
    """The tables of `bare`."""
    tables = Tables(prefix="bare_")
    async with engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)
        row = {
            "key": "user:1",
            "currency": "USD",
            "starts_us": 0,
            "ends_us": 1,
            "posted": 0,
            "pending": 0,
            "begun": 0,
        }
        await connection.execute(insert(tables.totals), row)


def at_once(work: Work) -> Work:
    """All callers come at the same moment."""

    async def crowd(_: int) -> None:
        await asyncio.gather(*(work(number) for number in range(CALLERS)))

    return crowd


class Sent:
    """What an engine has sent: statements, and commits."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.statements = self.commits = 0
        if engine.dialect.name == "sqlite":  # as the database hears it
            event.listen(engine.sync_engine, "connect", self._listen)
        else:
            event.listen(engine.sync_engine, "before_cursor_execute", self._count)
            event.listen(engine.sync_engine, "commit", self._commit)

    def _listen(self, connection: Any, _: object) -> None:
        connection.run_async(lambda driver: driver.set_trace_callback(self._hear))

    def _hear(self, statement: str) -> None:
        if statement == "COMMIT":
            self.commits += 1
        elif not statement.startswith(("BEGIN", "--", "PRAGMA")):
            self.statements += 1

    def _count(self, *_: object) -> None:
        self.statements += 1

    def _commit(self, _: object) -> None:
        self.commits += 1

    async def during(self, work: Work, callers: int) -> tuple[float, float]:
        """Statements and commits of each caller."""
        self.statements = self.commits = 0
        await work(0)
        return self.statements / callers, self.commits / callers


def fill(connection: Connection, prefix: str, rows: int) -> None:
    """A log of so many rows, with their lines and totals."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"  # noqa: S608 - a number
    at = f"{time.time_ns() // 1000} - CAST(i AS BIGINT) * 1000000"
    usage = "request_id, revision, reservation, key, cost, currency, outcome, estimated, at_us, resolved_us"
    connection.execute(
        text(
            f"INSERT INTO {prefix}usage ({usage}) {numbers} SELECT 'old' || i, 0, 'old' || i, "  # noqa: S608
            f"'user:' || (i % 1000), 1, 'USD', 'settled', 0 = 1, {at}, 1 FROM n"
        )
    )
    connection.execute(
        text(
            f"INSERT INTO {prefix}lines SELECT id, key, currency, at_us, cost FROM {prefix}usage"  # noqa: S608
        )
    )
    connection.execute(
        text(
            f"INSERT INTO {prefix}lines SELECT id, 'team', currency, at_us, cost FROM {prefix}usage"  # noqa: S608
        )
    )
    connection.execute(
        text(
            f"INSERT INTO {prefix}totals (key, currency, starts_us, ends_us, posted, pending, begun) "  # noqa: S608
            f"SELECT key, currency, {-(2**62)}, {2**62}, sum(cost), 0, 0 FROM {prefix}lines GROUP BY key, currency"
        )
    )


async def measure(url: str, effort: Effort) -> Table:
    """What one database costs."""
    rows = effort.of(ROWS)
    engine = create_async_engine(url)
    sqlite = engine.dialect.name == "sqlite"
    if sqlite:

        def prepare(connection: Any, _: object) -> None:
            for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}").close()

        event.listen(engine.sync_engine, "connect", prepare)
    sent = Sent(engine)
    await make_bare(engine)
    works: dict[str, Work] = {"bare": bare(engine, four=sqlite)}
    ledgers: list[Ledger] = []
    for name, size in (("short", 10), ("long", rows)):
        ledger = Ledger(engine, prefix=f"{name}_")
        await ledger.create()
        async with engine.begin() as connection:
            await connection.run_sync(fill, f"{name}_", size)
        if not sqlite:
            async with engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await connection.exec_driver_sql("VACUUM ANALYZE")
        ledgers.append(ledger)
        limiter = Limiter(ledger=ledger, prices=PRICES)
        works[f"{name}, 1 budget"] = lifecycle(limiter, BUDGETS[:1])
        works[f"{name}, 2 budgets"] = lifecycle(limiter, BUDGETS)
    crowd = f"short, 1 budget, {CALLERS} callers at once"
    works[crowd] = at_once(works["short, 1 budget"])
    callers = {name: CALLERS if name == crowd else 1 for name in works}
    for work in works.values():
        await work(0)
    counted = {name: await sent.during(work, callers[name]) for name, work in works.items()}
    times = {name: max(effort.of(TIMES) // callers[name], 1) for name in works}
    wall, cpu = [
        await least(
            {name: taken(work, times[name]) for name, work in works.items()}, 3 * effort.rounds
        )
        for taken in (elapsed, processor)
    ]
    for ledger in ledgers:
        await ledger.aclose()
    await engine.dispose()
    return Table(
        f"Ledger: a life cycle on {'SQLite' if sqlite else 'PostgreSQL'}",
        ("", "ms", "against bare", "ms of CPU", "against bare", "statements", "commits"),
        tuple(
            (
                name,
                *(part for found in (wall, cpu) for part in figures(found, name, callers[name])),
                *counted[name],
            )
            for name in works
        ),
        f"The short log has 10 rows, the long one {rows:,}. Of callers at once, what falls to each.",
    )


def figures(found: dict[str, float], name: str, callers: int) -> tuple[float, float]:
    """Milliseconds of each caller, and how many times those of the bare statements they are."""
    us = found[name] / callers
    return us / 1_000, us / found["bare"]


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """A table for each database."""
    with tempfile.TemporaryDirectory() as folder:
        yield await measure(f"sqlite+aiosqlite:///{folder}/bench.db", effort)
    with postgres_server("fsync=on", "synchronous_commit=on") as server:
        yield await measure(server.url, effort)
