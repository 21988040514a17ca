"""What a ledger answers: rows page by page, sums by day, model and key, and what does not add up."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from earmark import Limiter, Usage
from earmark.ledger import Ledger, SummaryLine
from tests.ledgers import NOON, Database, ask, only_row, opened, usd
from tests.postgres import PostgresServer
from tests.servers import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

UUID = "6f1c24e2-9a4e-4a36-b0e5-0c8a3c0a9d11"
KEYS = (UUID, "12345", "a\\0b\0c\\", "100% {x}:'\"")


async def test_b61_sums_for_one_key_and_for_all(database: Database) -> None:
    """B61: per day, model and key, also for keys that look like UUIDs or numbers, or have what a database escapes."""
    async with opened(database) as (limiter, ledger, clock):
        for number, key in enumerate(KEYS):
            await ask(limiter, key, key, "team", usage=Usage(1_000_000 * (number + 1), 0))
        clock.advance(43_200)  # midnight
        await ask(limiter, UUID, UUID, "team", usage=Usage(0, 100_000), model="mini")
        await ask(limiter, UUID, UUID, "team", usage=Usage(), cost=usd("0.5"))
        first, second = date(2026, 4, 1), date(2026, 4, 2)

        def line(day: Any, model: Any, key: Any, *sums: Any) -> SummaryLine:
            requests, cost, read, written = sums
            return SummaryLine(day, model, key, "USD", requests, usd(cost), read, written)

        found = await ledger.summary(UUID)
        assert found == (
            line(first, "big", UUID, 1, "2", 1_000_000, 0),
            line(second, "big", UUID, 1, "0.5", None, None),  # nobody reported any
            line(second, "mini", UUID, 1, "0.06", 0, 100_000),
        )
        every = await ledger.summary(by=("key",))
        assert {one.key: one.cost for one in every} == {
            UUID: usd("2.56"),
            **{key: usd(2 * number) for number, key in enumerate(KEYS[1:], 2)},
        }
        (team,) = await ledger.summary("team", by=())
        assert team == line(None, None, None, 6, "20.56", 10_000_000, 100_000)
        assert await ledger.summary("nobody") == ()
        (late,) = await ledger.summary(since=datetime(2026, 4, 2, tzinfo=UTC), by=())
        assert late.cost == usd("0.56")
        (early,) = await ledger.summary(until=datetime(2026, 4, 2, tzinfo=UTC), by=("model",))
        assert early.cost == 20
        tokyo = await ledger.summary(UUID, by=("day",), zone="Asia/Tokyo")
        assert [(one.day, one.cost) for one in tokyo] == [
            (first, usd(2)),
            (second, usd("0.56")),
        ]
        (kathmandu,) = await ledger.summary(by=("day",), zone="Pacific/Kiritimati")
        assert kathmandu.day == second
        assert [row.budget_keys for row in await ledger.rows(KEYS[2])] == [
            tuple(sorted([KEYS[2], "team"]))
        ]


async def test_rows_come_page_by_page(database: Database) -> None:
    """After the last row of the page before, none twice and none left out, while others are written."""
    async with opened(database) as (limiter, ledger, _):
        for _number in range(5):
            await ask(limiter, "a", "a", usage=Usage(1, 1))
        first = await ledger.rows(limit=2)
        await ask(limiter, "b", "a", usage=Usage(1, 1))
        second = await ledger.rows(limit=3, after=first[-1].id)
        third = await ledger.rows(limit=3, after=second[-1].id)
        assert [len(page) for page in (first, second, third)] == [2, 3, 1]
        assert len({row.request_id for row in (*first, *second, *third)}) == 6
        assert [row.key for row in await ledger.rows("b")] == ["b"]
        later = datetime.fromtimestamp(NOON, UTC) + timedelta(seconds=1)
        assert await ledger.rows(since=later) == ()
        assert len(await ledger.rows(until=later)) == 6


async def test_what_cannot_be_asked(database: Database) -> None:
    """A moment without a zone, a page of nothing, a group that is none."""
    async with opened(database) as (_, ledger, _clock):
        with pytest.raises(ValueError, match="since"):
            await ledger.rows(since=datetime(2026, 4, 1))  # noqa: DTZ001 - that is it
        with pytest.raises(ValueError, match="limit"):
            await ledger.rows(limit=0)
        with pytest.raises(ValueError, match="by"):
            await ledger.summary(by=("week",))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="by"):
            await ledger.summary(by=("day", "day"))
        with pytest.raises(ValueError, match="zone"):
            await ledger.summary(zone="Mars/Olympus")


@pytest.mark.parametrize(
    ("harm", "fields"),
    [
        ("UPDATE {0}totals SET posted = posted + 1", {"posted": "2.000000001", "logged": "2"}),
        ("UPDATE {0}totals SET pending = 7", {"pending": "1E-9", "held": "0"}),
        ("UPDATE {0}lines SET cost = 1", {"posted": "2", "logged": "1E-9"}),
        ("DELETE FROM {0}totals", {"posted": "2", "logged": "2"}),
    ],
)
async def test_verify_finds_what_does_not_add_up(
    database: Database, harm: str, fields: dict[str, str]
) -> None:
    """One source of truth: every total is recomputed from the log, and the log from its entries."""
    async with opened(database) as (limiter, ledger, _):
        await ask(limiter, "a", "team", usage=Usage(1_000_000, 0))
        assert await ledger.verify() == ()

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(text(harm.format(database.prefix)))

        await ledger._store.write(work)
        drift, *_ = await ledger.verify()
        assert drift.key == "team"
        if "pending" in fields:
            assert (drift.pending, drift.held) == (usd("0.000000007"), usd(0))
        else:
            assert {name: getattr(drift, name) for name in fields} == {
                name: Decimal(value) for name, value in fields.items()
            }


async def test_the_users_metadata_has_the_tables(database: Database) -> None:
    """Tables are described for Alembic, in whatever metadata the user has; made twice they are made once.

    Another ledger may have the same metadata; what else is in it is not made. A migration that is written from it names
    types of SQLAlchemy's own alone: it has nothing to import.
    """
    metadata = MetaData()
    Table("users", metadata, Column("id", Integer, primary_key=True))
    ledger, another = (database.ledger(metadata=metadata) for _ in range(2))
    mine = [f"{database.prefix}{name}" for name in ("lines", "pending", "totals", "usage")]
    assert sorted(metadata.tables) == sorted([*mine, "users"])
    types = {type(column.type).__module__ for name in mine for column in metadata.tables[name].c}
    assert types == {"sqlalchemy.sql.sqltypes"}
    await ledger.create()
    await another.create()

    async def there(connection: AsyncConnection) -> list[str]:
        return await connection.run_sync(lambda sync: inspect(sync).get_table_names())

    made = await ledger._store.read(there)
    assert set(mine) <= set(made)
    assert "users" not in made
    async with Limiter(ledger=another) as limiter:
        await ask(limiter, "al\0ice", usage=Usage(1, 1), cost=usd(1))
    assert (await only_row(ledger)).key == "al\0ice"
    await ledger.aclose()


async def test_an_engine_may_call_the_schema_otherwise(
    shared_postgres: PostgresServer, tmp_path: Path
) -> None:
    """An engine of one's own with a `schema_translate_map`: all statements go where it says."""
    schema = f"tenant{free_port()}"
    maker = create_async_engine(shared_postgres.url)
    async with maker.begin() as connection:
        await connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    for url, described, called in (
        (shared_postgres.url, None, schema),
        (shared_postgres.url, "billing", schema),
        (f"sqlite+aiosqlite:///{tmp_path}/spend.db", "billing", None),
    ):
        engine = create_async_engine(
            url, execution_options={"schema_translate_map": {described: called}}
        )
        prefix = f"of_{described or 'nobody'}_"
        ledger = Ledger(engine, metadata=MetaData(schema=described), prefix=prefix)
        await ledger.create()
        async with Limiter(ledger=ledger) as limiter:
            await ask(limiter, "alice", "team", usage=Usage(1, 1), cost=usd(1))
            assert await ledger.verify() == ()
        assert (await only_row(ledger)).budget_keys == ("team",)
        await ledger.aclose()
        if called is not None:
            async with maker.connect() as connection:
                found = await connection.exec_driver_sql(f"SELECT 1 FROM {called}.{prefix}usage")  # noqa: S608 - ours
                assert found.all() == [(1,)]
        await engine.dispose()
    await maker.dispose()
