"""A database that is away, fails half-way, or does not say what it has done."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import aiosqlite
import pytest
from sqlalchemy import event

from earmark import BackendUnavailable, BudgetExceeded, Limiter, Limits, Scope, Usage
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.line import Work
from earmark.ledger.statements import Statement
from earmark.ledger.store import Unreachable
from tests import ledgers
from tests.ledgers import PRICES, Database, adds_up, deliver, only_row, opened, usd, wake
from tests.postgres import PostgresServer, postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE: Final = Budget("user:alice", usd(10), "monthly")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=10, concurrency=2))


def spend(estimate: str) -> Spend:
    return Spend((ALICE,), "big", usd(estimate))


@pytest.fixture(scope="module")
def breakable() -> Iterator[PostgresServer]:
    """A server that tests stop."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def breaking(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Database, Callable[..., Any]]:
    """A database, and a context in which nobody can write to it."""
    if request.param == "sqlite":
        database = ledgers.sqlite(tmp_path)

        @contextmanager
        def away() -> Iterator[None]:
            other = sqlite3.connect(database.url.partition("///")[2], isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                other.close()

        return database, away
    server: PostgresServer = request.getfixturevalue("breakable")

    @contextmanager
    def stopped() -> Iterator[None]:
        server.stop()
        try:
            yield
        finally:
            server.start()

    return ledgers.postgresql(server.url), stopped


def brief(database: Database) -> dict[str, float]:
    """A locked file is waited for; a server that is away says so at once."""
    return {"timeout": 1.5} if database.name == "sqlite" else {}


async def used(limiter: Limiter) -> list[int]:
    return [limit.used for limit in (await limiter.peek(SCOPE))[0].limits]


async def test_an_outage_at_admission_is_closed(breaking: Any) -> None:
    """Closed by default: BackendUnavailable, the limits have what they gave, and the next request is asked for anew."""
    database, away = breaking
    async with opened(database, **brief(database)) as (limiter, ledger, _):
        with away():
            for _number in range(3):
                with pytest.raises(BackendUnavailable, match="ledger"):
                    await limiter.pre_commit(SCOPE, spend=spend("1"))
            assert await used(limiter) == [0, 0]
            assert not ledger.health().available
            assert ledger.health().owed <= 1  # it was asked once, and may have held
        await wake(ledger)
        async with await limiter.pre_commit(SCOPE, spend=spend("1")):
            assert (await ledger.standing(ALICE)).pending == 1
        assert ledger.health().available
        assert ledger.health().owed == 0
        await adds_up(ledger)


async def test_an_outage_at_settlement_is_owed_and_delivered_once(breaking: Any) -> None:
    """B60, R9: everything is done or owed when the call returns; slots are free at once; the row comes later, once."""
    database, away = breaking
    async with opened(database, **brief(database)) as (limiter, ledger, _):
        one = await limiter.pre_commit(SCOPE, spend=spend("1"))
        other = await limiter.pre_commit(SCOPE, spend=spend("1"))
        with away():
            assert await one.settle_success(Usage(100_000, 10_000))
            assert not await one.settle_success(Usage(100_000, 10_000))
            assert await used(limiter) == [2, 1]
            assert await other.cancel()
            assert await used(limiter) == [1, 0]
            assert ledger.health().owed == 2
        await wake(ledger)
        assert await ledger.spent(ALICE) == usd(
            "0.28"
        )  # whoever asks it has what it is owed delivered
        assert ledger.health().owed == 0
        row = await only_row(ledger)
        assert (row.cost, row.outcome) == (usd("0.28"), "settled")
        await adds_up(ledger)


async def test_what_is_owed_is_delivered_by_itself(breaking: Any) -> None:
    """Kept and retried: nobody has to ask for it."""
    database, away = breaking
    async with opened(database, **brief(database)) as (limiter, ledger, _):
        one = await limiter.pre_commit(spend=spend("1"))
        with away():
            assert await one.settle_success(1, cost=usd(1))
        (retry,) = ledger._retries.values()
        await retry
        assert ledger.health().owed == 0
        assert await ledger.spent(ALICE) == 1


async def test_a_server_that_hangs_is_an_outage(breakable: PostgresServer) -> None:
    """No answer in time is none: what was asked is owed, or taken back, and counts once when it comes to."""
    database = ledgers.postgresql(breakable.url)
    async with opened(database, timeout=1.5) as (limiter, ledger, _):
        one = await limiter.pre_commit(SCOPE, spend=spend("1"))
        breakable.freeze()
        try:
            assert await one.settle_success(1, cost=usd("0.3"))
            assert await used(limiter) == [1, 0]
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(SCOPE, spend=spend("1"))
            assert await used(limiter) == [1, 0]
        finally:
            breakable.thaw()
        await deliver(ledger)
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd("0.3"), usd(0))
        assert len(await ledger.rows()) == 1
        await adds_up(ledger)


async def test_a_server_that_hangs_keeps_nobody_from_closing(breakable: PostgresServer) -> None:
    """A process that ends does not wait for a server that says nothing."""
    ledger = ledgers.postgresql(breakable.url).ledger(timeout=0.5)
    await ledger.create()
    breakable.freeze()
    try:
        await ledger.aclose()
    finally:
        breakable.thaw()


async def test_an_allowance_is_what_an_outage_may_admit(breaking: Any) -> None:
    """SQL down at admission, with a stated allowance: so much in all, logged when it is back, exactly once."""
    database, away = breaking
    async with opened(database, **brief(database), allowance=Decimal(1)) as (limiter, ledger, _):
        with away():
            one = await limiter.pre_commit(SCOPE, request_id="one", spend=spend("0.5"))
            two = await limiter.pre_commit(SCOPE, spend=spend("0.5"))
            assert one.degraded
            assert ledger.health().allowed == 1
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(spend=spend("0.5"))
            with pytest.raises(RuntimeError, match="ledger"):
                one.token()
            assert await one.settle_success(1, cost=usd("0.4"))
            assert await two.cancel()
        await wake(ledger)
        assert await ledger.spent(ALICE) == usd("0.4")
        row = await only_row(ledger)
        assert (row.request_id, row.cost, row.model) == ("one", usd("0.4"), "big")
        await deliver(ledger)
        await adds_up(ledger)
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(SCOPE, spend=spend("9.7"))
        assert ledger.health().allowed == 0


async def test_no_allowance_admits_what_no_budget_could(breaking: Any) -> None:
    """B59: a budget of 0 spends nothing, also while nobody can be asked."""
    database, away = breaking
    nothing = Budget("k", usd(0), "total")
    async with opened(database, **brief(database), allowance=Decimal(1)) as (limiter, _, _clock):
        with away(), pytest.raises(BackendUnavailable):
            await limiter.pre_commit(spend=Spend((nothing,)))


@asynccontextmanager
async def deaf(ledger: Ledger) -> AsyncIterator[None]:
    """Whatever is written happens, and nobody hears of it."""
    write = ledger._store.write

    async def unheard(work: Work[Any]) -> Any:
        await write(work)
        raise Unreachable(None, asked=True)

    ledger._store.write = unheard  # type: ignore[assignment, method-assign]
    yield
    ledger._store.write = write  # type: ignore[method-assign]


async def test_c24_a_lost_reply_counts_once(database: Database) -> None:
    """C24, C56: a commit whose reply is lost is sent again, and has the effect of the first."""
    async with opened(database) as (limiter, ledger, _):
        one = await limiter.pre_commit(spend=spend("1"))
        two = await limiter.pre_commit(spend=spend("1"))
        three = await limiter.pre_commit(spend=spend("1"))
        async with deaf(ledger):
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(SCOPE, spend=spend("1"))  # held, and nobody knows
            assert await one.settle_success(1, cost=usd("0.3"))
            assert await two.cancel()
            assert await three.close_reserved_only()
        assert ledger.health().owed == 4
        await deliver(ledger)
        assert ledger.health().lost == 0
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd("1.3"), usd(0))
        assert len(await ledger.rows()) == 2
        await adds_up(ledger)


async def test_c24_what_an_allowance_admits_costs_what_it_costs(database: Database) -> None:
    """C24: held after all, and expired meanwhile for another process: that is undone, and the real cost posted."""
    async with opened(database, allowance=Decimal(1)) as (limiter, ledger, clock):
        assert await (await limiter.pre_commit(spend=spend("1"))).cancel()
        async with deaf(ledger):
            one = await limiter.pre_commit(request_id="r", spend=spend("1"))
        assert one.degraded
        for retry in ledger._retries.values():
            retry.cancel()
        clock.advance(3_600)
        other = database.ledger(clock=clock, timeout=60)
        assert await other.spent(ALICE) == 1  # which knows no better
        await other.aclose()
        assert await one.settle_success(1, cost=usd("0.4"))
        assert await ledger.spent(ALICE) == usd("0.4")
        assert ledger.health().lost == 0
        rows = await ledger.rows(request_id="r")
        assert [(row.outcome, row.cost) for row in rows] == [
            ("expired", usd(1)),
            ("settled", usd("0.4")),
            ("cancelled", usd(-1)),
        ]
        await adds_up(ledger)


class Faults:
    """Fails at the step with this number, counted from when it is set: before a statement, after it, at a commit."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0
        self.failed = False
        rows = Statement.rows

        async def failing(statement: Statement, *arguments: Any) -> Any:
            self.step()
            found = await rows(statement, *arguments)
            self.step()
            return found

        monkeypatch.setattr(Statement, "rows", failing)
        engine = ledger._store._place().engine
        if engine.dialect.name == "sqlite":
            commit = aiosqlite.Connection.commit

            async def failing_commit(connection: aiosqlite.Connection) -> None:
                self.step()
                await commit(connection)

            monkeypatch.setattr(aiosqlite.Connection, "commit", failing_commit)
        else:
            event.listen(engine.sync_engine, "commit", lambda _: self.step())

    def step(self) -> None:
        if self.at:
            self.at -= 1
            if not self.at:
                self.failed = True
                raise RuntimeError


async def test_c24_c25_a_write_that_fails_after_another_succeeded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C24, C25: whichever statement fails, twice, nothing has happened; the retry counts once."""
    async with opened(database) as (limiter, ledger, _):
        faults = Faults(ledger, monkeypatch)
        number = 0
        due = Decimal(0)
        held = await limiter.pre_commit(spend=spend("1"))
        for verb in ("settle_success", "cancel"):
            failing = 0
            while True:
                failing += 1
                number += 1
                reservation = await limiter.pre_commit(spend=spend("0.1"))

                async def resolve() -> bool:
                    if verb == "cancel":  # noqa: B023
                        return await reservation.cancel()  # noqa: B023
                    return await reservation.settle_success(1, cost=usd("0.01"))  # noqa: B023

                faults.failed = False
                for _try in range(2):
                    faults.at = failing
                    try:
                        assert await resolve()
                    except RuntimeError:
                        standing = await ledger.standing(ALICE)
                        assert (standing.spent, standing.pending) == (due, usd("1.1"))
                        assert reservation.state == "open"
                    else:
                        break
                faults.at = 0
                if not faults.failed:
                    due += usd("0.01") if verb == "settle_success" else 0
                    break
                assert await resolve()
                assert not await resolve()
                due += usd("0.01") if verb == "settle_success" else 0
                standing = await ledger.standing(ALICE)
                assert (standing.spent, standing.pending) == (due, usd(1))
                await adds_up(ledger)
            assert failing > 2
        await held.cancel()
        assert sum(row.cost for row in await ledger.rows()) == due


async def test_c25_a_hold_that_fails_half_way_holds_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, C14: whichever statement of the check fails, no limit and no budget has counted anything."""
    async with opened(database) as (limiter, ledger, _):
        faults = Faults(ledger, monkeypatch)
        failing = 0
        while True:
            failing += 1
            faults.failed, faults.at = False, failing
            try:
                reservation = await limiter.pre_commit(SCOPE, request_id="r", spend=spend("1"))
            except RuntimeError:
                faults.at = 0
                assert await used(limiter) == [0, 0]
                assert (await ledger.standing(ALICE)).pending == 0
                await adds_up(ledger)
            else:
                faults.at = 0
                await reservation.cancel()
                break
        assert failing > 3


async def test_what_does_not_fit_the_outbox_is_lost_aloud(
    breaking: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is dropped silently: it is counted and logged, and what it held is posted after its expiry."""
    database, away = breaking
    async with opened(database, **brief(database), outbox=1) as (limiter, ledger, clock):
        one = await limiter.pre_commit(request_id="one", spend=spend("1"))
        two = await limiter.pre_commit(request_id="two", spend=spend("2"))
        with away():
            assert await one.settle_success(1, cost=usd("0.1"))
            assert await two.settle_success(1, cost=usd("0.1"))
        assert (ledger.health().owed, ledger.health().lost) == (1, 1)
        lost = [vars(record).get("earmark_request_id") for record in caplog.records]
        assert "two" in lost
        await wake(ledger)
        clock.advance(3_601)
        rows = {row.request_id: (row.cost, row.outcome) for row in await ledger.rows()}
        assert rows == {"one": (usd("0.1"), "settled"), "two": (usd(2), "expired")}
        await adds_up(ledger)


async def test_a_missing_table_is_a_mistake(database: Database) -> None:
    """It raises, whatever was said about outages, and says what makes them; no limit has counted anything."""
    ledger = database.ledger(allowance=Decimal(1))
    async with Limiter(ledger=ledger, prices=PRICES) as limiter:
        with pytest.raises(Exception, match=r"no such table|does not exist") as raised:
            await limiter.pre_commit(SCOPE, spend=spend("1"))
        assert "ledger.create()" in raised.value.__notes__[0]
        assert await used(limiter) == [0, 0]
