"""What somebody may say, and nobody should believe: sums that no database can count, and disks that take no more."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Text, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark import BackendUnavailable, BudgetExceeded, Limiter, Limits, Reservation, Scope, Usage
from earmark.core.money import MAX_NANO, decimal_of
from earmark.ledger import Budget, Ledger, Price, Rates, Spend
from tests import ledgers
from tests.ledgers import NOON, PRICES, Database, adds_up, ask, deliver, opened, usd
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MOST: Final = 2**53 - 1
TEAM: Final = Budget("team", None, "monthly")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=1_000))


async def test_b62_what_nobody_can_pay_is_logged_as_far_as_it_can_be(database: Database) -> None:
    """B62: a hostile report fills the totals of its key; every later request is logged all the same, and none fails."""
    async with opened(database) as (limiter, ledger, clock):
        dead = await limiter.pre_commit(
            SCOPE, request_id="dead", spend=Spend((TEAM,), None, usd(1))
        )
        dead.token()
        late = await limiter.pre_commit(
            SCOPE, request_id="late", spend=Spend((TEAM,), None, usd(1))
        )
        for usage in (Usage(MOST, MOST), Usage(MOST, MOST), Usage(100_000, 10_000)):
            reservation = await limiter.pre_commit(SCOPE, spend=Spend((TEAM,), "big"))
            assert await reservation.settle_success(usage)
        clock.advance(3_600)
        assert await ledger.spent(TEAM) == decimal_of(MAX_NANO)
        assert await late.settle_success(1, cost=usd(2))
        rows = await ledger.rows()
        assert {row.request_id for row in rows} >= {"dead", "late"}
        assert [(row.cost, row.estimated) for row in rows[:3]] == [
            (decimal_of(MAX_NANO), False),
            (usd(0), True),
            (usd(0), True),
        ]
        assert rows[0].usage == Usage(MOST, MOST)
        await adds_up(ledger)
        with pytest.raises(ValueError, match="more than a ledger can count"):
            await ledger.correct(rows[2].request_id, usd(5))
        assert await ledger.correct(rows[0].request_id, usd(1))
        assert await ledger.spent(TEAM) == 1
        await adds_up(ledger)


async def test_r12_more_than_can_be_held_is_an_error(database: Database) -> None:
    """R12, R2: a clear error, before anything changes; others of the key are served."""
    async with opened(database) as (limiter, ledger, _):
        most = Spend((TEAM,), None, decimal_of(MAX_NANO))
        held = await limiter.pre_commit(SCOPE, spend=most)
        with pytest.raises(ValueError, match="more than a ledger can count"):
            await limiter.pre_commit(SCOPE, spend=most)
        assert (await limiter.peek(SCOPE))[0]["requests"].used == 1
        assert await held.cancel()
        async with await limiter.pre_commit(SCOPE, spend=Spend((TEAM,), None, usd(1))):
            pass
        await adds_up(ledger)


async def test_currencies_are_never_added_up(database: Database) -> None:
    """A key has money of each currency apart: in its budgets, in the sums, and in what the log says."""
    dollars, euros = (Budget("k", usd(2), "total", currency=name) for name in ("USD", "EUR"))
    async with opened(database) as (limiter, ledger, _):
        for budget, cost in ((dollars, "1.5"), (euros, "1.25")):
            one = await limiter.pre_commit(spend=Spend((budget,), None, usd(1)))
            assert await one.settle_success(1, cost=usd(cost))
        assert await ledger.spent(dollars) == usd("1.5")
        assert await ledger.spent(euros) == usd("1.25")
        found = {line.currency: line.cost for line in await ledger.summary("k", by=("day",))}
        assert found == {"USD": usd("1.5"), "EUR": usd("1.25")}
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(spend=Spend((dollars,), None, usd("0.6")))
        await adds_up(ledger)


async def test_b61_sums_of_many_are_exact(database: Database) -> None:
    """B61, R12: sums over everything have no bound of their own."""
    async with opened(database) as (limiter, ledger, _):
        for number in range(3):
            reservation = await limiter.pre_commit(
                spend=Spend((Budget(f"k{number}", None, "total"),))
            )
            usage = Usage(MOST, number)
            await reservation.settle_success(usage, cost=decimal_of(MAX_NANO))
        (line,) = await ledger.summary(by=())
        assert (line.cost, line.requests) == (decimal_of(MAX_NANO) * 3, 3)
        assert (line.input_tokens, line.output_tokens) == (MOST * 3, 3)


async def test_one_that_cannot_be_posted_is_nobody_elses_trouble(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with an amount that has expired, others are posted, asked and admitted."""
    async with opened(database) as (limiter, ledger, clock):
        for name in ("broken", "whole"):
            (await limiter.pre_commit(request_id=name, spend=Spend((TEAM,), None, usd(1)))).token()
        clock.advance(3_600)
        expire = ledger._writing.expire

        async def fails(connection: Any, held: Any, **options: Any) -> bool:
            if held.request_id == "broken":
                raise RuntimeError
            return await expire(connection, held, **options)

        monkeypatch.setattr(ledger._writing, "expire", fails)
        assert [row.request_id for row in await ledger.rows()] == ["whole"]
        failed = [vars(record).get("earmark_request_id") for record in caplog.records]
        assert "broken" in failed
        async with await limiter.pre_commit(spend=Spend((TEAM,), None, usd(1))):
            pass


@pytest.fixture
def full(tmp_path: Path) -> Database:
    """A database in a file."""
    return ledgers.sqlite(tmp_path)


async def _room(ledger: Ledger, pages: int) -> None:
    """Let the database have so many more pages."""
    line = ledger._store._place().line
    assert line is not None
    connection: Any = await (await line._connected()).get_raw_connection()
    driver = connection.driver_connection
    ((size,),) = await driver.execute_fetchall("PRAGMA page_count")
    await driver.execute_fetchall(f"PRAGMA max_page_count = {size + pages}")


async def test_a_disk_that_is_full_is_an_outage(full: Database) -> None:
    """Of callers at once some are admitted and the others not; what was used is owed, and counts once in the end."""
    async with opened(full) as (limiter, ledger, _):
        spend = Spend((TEAM,), "big", usd(1), metadata={"much": "x" * 20_000})
        first = await limiter.pre_commit(SCOPE, spend=spend)
        await _room(ledger, 0)
        found = await asyncio.gather(
            *(limiter.pre_commit(SCOPE, spend=spend) for _ in range(6)), return_exceptions=True
        )
        refused = [one for one in found if isinstance(one, BackendUnavailable)]
        admitted = [one for one in found if isinstance(one, Reservation)]
        assert len(refused) + len(admitted) == 6
        assert refused
        assert await first.settle_success(1, cost=usd("0.5"))
        for one in admitted:
            assert await one.settle_success(1, cost=usd("0.5"))
        used = 1 + len(admitted)
        assert (await limiter.peek(SCOPE))[0]["requests"].used == used
        assert ledger.health().owed
        await _room(ledger, 1_000)
        await deliver(ledger)
        assert [row.cost for row in await ledger.rows()] == [usd("0.5")] * used
        assert ledger.health().lost == 0
        assert (await ledger.standing(TEAM)).pending == 0
        await adds_up(ledger)


async def test_a_file_that_may_only_be_read(full: Database) -> None:
    """Questions are answered; nobody is admitted, and nothing is counted."""
    async with opened(full) as (limiter, _, _clock):
        reservation = await limiter.pre_commit(SCOPE, spend=Spend((TEAM,), None, usd(1)))
        await reservation.close_reserved_only()
    path = full.url.partition("///")[2]
    reader = Ledger(f"sqlite+aiosqlite:///file:{path}?mode=ro&uri=true", clock=lambda: NOON)
    async with Limiter(ledger=reader, prices=PRICES) as limiter:
        assert await reader.spent(TEAM) == 1
        assert len(await reader.rows()) == 1
        with pytest.raises(BackendUnavailable):
            await limiter.pre_commit(SCOPE, spend=Spend((TEAM,)))
        assert (await limiter.peek(SCOPE))[0]["requests"].used == 0


class Odd:
    """A table that has prices in two currencies, and that fails."""

    def price(self, model: str, at: datetime) -> Price | None:
        """What `PriceTable` asks."""
        if model == "broken":
            raise ZeroDivisionError(at)
        if model == "euro":
            return Price(Rates(usd(1_000), usd(1_000)), "e", "EUR")
        return PRICES.price(model, at)


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("served", ["broken", "euro", "nobody's"])
async def test_c35_a_served_model_without_a_usable_price_costs_what_was_asked_for(
    database: Database, served: str, by_token: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """C35, C53: euros are not counted as dollars; a table that fails loses nothing: the request is paid for already."""
    async with (
        opened(database) as (_, ledger, _clock),
        Limiter(ledger=ledger, prices=Odd()) as limiter,
    ):
        reservation = await limiter.pre_commit(SCOPE, spend=Spend((TEAM,), "big", usd(1)))
        settled: Reservation | str = reservation.token() if by_token else reservation
        assert await limiter.settle_success(settled, Usage(100_000, 0), model=served)
        (row,) = await ledger.rows()
        assert (row.cost, row.currency, row.price_version) == (usd("0.2"), "USD", "v1")
        assert (row.model, row.outcome, row.estimated) == (served, "settled", False)
        await adds_up(ledger)
    failed = [vars(record).get("earmark_event") for record in caplog.records]
    assert failed.count("price_failed") == (served == "broken")


async def test_a_page_may_be_longer_than_a_database_takes_values(
    shared_postgres: PostgresServer,
) -> None:
    """33,000 rows at once: PostgreSQL takes 32,767 values in one statement."""
    many = 33_000
    async with opened(ledgers.postgresql(shared_postgres.url)) as (limiter, ledger, _):
        await ask(limiter, "alice", "team", usage=Usage(1, 1), cost=usd(1))
        usage = ledger.tables.usage
        numbered = func.generate_series(1, many).table_valued("value").render_derived()
        first: dict[str, Any] = {column.name: column for column in usage.c if column.name != "id"}
        first["reservation"] = usage.c.reservation + cast(numbered.c.value, Text)

        async def fill(connection: AsyncConnection) -> None:
            copies = select(*first.values()).select_from(usage.join(numbered, true()))
            await connection.execute(usage.insert().from_select(list(first), copies))

        await ledger._store.write(fill)
        rows = await ledger.rows(limit=100_000)
        assert len(rows) == many + 1
        assert [row.budget_keys for row in rows[:2]] == [("team",), ()]


async def test_processes_that_begin_together_make_the_tables_once(database: Database) -> None:
    """Every worker of a gateway calls `create` as it starts: none is told that a table is there already."""
    ledgers_ = [database.ledger(timeout=60) for _ in range(8)]
    await asyncio.gather(*(ledger.create() for ledger in ledgers_))
    for ledger in ledgers_:
        assert await ledger.verify() == ()
        await ledger.aclose()
