"""A database that is away, fails half-way, or does not say what it has done; and callers who are cancelled."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from sqlalchemy import event

from earmark import BackendUnavailable, BudgetExceeded, Limiter, Limits, Scope, Usage
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.line import Work
from earmark.ledger.store import Unreachable
from tests import ledgers
from tests.ledgers import PRICES, Database, adds_up, only_row, opened, usd
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


def wake(ledger: Ledger) -> None:
    """Have it ask again at once."""
    ledger._store._down_until = 0


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
        wake(ledger)
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
        wake(ledger)
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
        wake(ledger)
        assert await ledger.deliver()
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd("0.3"), usd(0))
        assert len(await ledger.rows()) == 1
        await adds_up(ledger)


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
        wake(ledger)
        assert await ledger.spent(ALICE) == usd("0.4")
        row = await only_row(ledger)
        assert (row.request_id, row.cost, row.model) == ("one", usd("0.4"), "big")
        assert await ledger.deliver()
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
        assert await ledger.deliver()
        assert ledger.health().lost == 0
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd("1.3"), usd(0))
        assert len(await ledger.rows()) == 2
        await adds_up(ledger)


class Faults:
    """Fails the statement with this number, counted from when it is set."""

    def __init__(self, ledger: Ledger) -> None:
        self.at = 0
        self.failed = False
        place = ledger._store._place()
        event.listen(place.engine.sync_engine, "before_cursor_execute", self)

    def __call__(self, *arguments: Any) -> None:
        statement: str = arguments[2]
        if self.at and statement.startswith(("INSERT", "UPDATE", "DELETE", "SELECT", "WITH")):
            self.at -= 1
            if not self.at:
                self.failed = True
                raise RuntimeError


async def test_c24_c25_a_write_that_fails_after_another_succeeded(database: Database) -> None:
    """C24, C25: whichever statement fails, twice, nothing has happened; the retry counts once."""
    async with opened(database) as (limiter, ledger, _):
        faults = Faults(ledger)
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


async def test_c25_a_hold_that_fails_half_way_holds_nothing(database: Database) -> None:
    """R2, C14: whichever statement of the check fails, no limit and no budget has counted anything."""
    async with opened(database) as (limiter, ledger, _):
        faults = Faults(ledger)
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


@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_a_cancelled_admission_leaves_nothing(database: Database, kind: str) -> None:
    """R16: cancelled after any number of turns of the loop, of both kinds: nothing was taken, or it is the caller's."""
    async with opened(database) as (limiter, ledger, _):
        async with await limiter.pre_commit(SCOPE, spend=spend("1")):
            pass
        finished = 0
        turns = 0
        while finished < 2:
            turns += 1
            made: list[Any] = []

            async def ask() -> None:
                made.append(await limiter.pre_commit(SCOPE, spend=spend("1")))  # noqa: B023

            await _cancelled_after(turns, ask, kind)
            if made:
                finished += 1
                await made[0].cancel()
            assert await used(limiter) == [1, 0]
            standing = await ledger.standing(ALICE)
            assert (standing.spent, standing.pending) == (usd(1), usd(0))
            turns += turns // 8
        await adds_up(ledger)


async def test_r16_an_admission_that_outlives_its_caller_undoes_itself(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: a caller waits a while for what it began; what goes on without it gives back what it then gets."""
    monkeypatch.setattr("earmark.shielding.PATIENCE", 0)
    async with opened(database) as (limiter, ledger, _):
        write, go_on, began = ledger._store.write, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **options: Any) -> Any:
            if not began.is_set():  # the hold, which what undoes it overtakes
                began.set()
                await go_on.wait()
            return await write(*arguments, **options)

        ledger._store.write = slow  # type: ignore[method-assign]
        task = asyncio.ensure_future(limiter.pre_commit(SCOPE, spend=spend("1")))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = {other for other in asyncio.all_tasks() if "Ledger._hold" in repr(other)}
        assert left
        go_on.set()
        await asyncio.wait(left)
        assert await used(limiter) == [0, 0]
        assert (await ledger.standing(ALICE)).pending == 0
        await adds_up(ledger)


@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_a_settlement_that_has_begun_finishes(database: Database, kind: str) -> None:
    """R16: cancelled after any number of turns: the money is posted once, or the reservation is open still."""
    async with opened(database) as (limiter, ledger, _):
        due = Decimal(0)
        finished = 0
        turns = 0
        while finished < 2:
            turns += 1
            reservation = await limiter.pre_commit(SCOPE, spend=spend("1"))
            won: list[bool] = []

            async def settle() -> None:
                won.append(await reservation.settle_success(1, cost=usd("0.01")))  # noqa: B023

            await _cancelled_after(turns, settle, kind)
            finished += bool(won)
            if reservation.state == "open":
                await reservation.cancel()
            else:
                due += usd("0.01")
            standing = await ledger.standing(ALICE)
            assert (standing.spent, standing.pending) == (due, usd(0))
            await limiter.reset(SCOPE)
            turns += turns // 8
        assert due
        await adds_up(ledger)


async def _cancelled_after(turns: int, work: Callable[[], Any], kind: str) -> None:
    """Run work, and cancel it once the loop has turned so often."""
    if kind == "task":
        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            for _ in range(turns):
                await asyncio.sleep(0)
            group.cancel_scope.cancel()


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
        wake(ledger)
        clock.advance(3_601)
        rows = {row.request_id: (row.cost, row.outcome) for row in await ledger.rows()}
        assert rows == {"one": (usd("0.1"), "settled"), "two": (usd(2), "expired")}
        await adds_up(ledger)


async def test_a_missing_table_is_a_mistake(database: Database) -> None:
    """It raises, whatever was said about outages: waiting does not cure it; no limit has counted anything."""
    ledger = database.ledger(allowance=Decimal(1))
    async with Limiter(ledger=ledger, prices=PRICES) as limiter:
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            await limiter.pre_commit(SCOPE, spend=spend("1"))
        assert await used(limiter) == [0, 0]
