"""SQLite: who waits together shares a commit, and disturbs nobody; a question that takes too long is no mistake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from earmark import BudgetExceeded, Limiter
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.line import Line
from earmark.ledger.store import _look
from tests.ledgers import NOON, adds_up, usd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

CALLERS: Final = 32
ROOM: Final = 20


async def test_callers_who_wait_together_share_a_commit(tmp_path: Path) -> None:
    """Two commits serve 32 life cycles that come at once, of which a budget has room for 20: each has its own answer.

    What falls to each is its own statements and a savepoint; the twelve who are refused leave no trace.
    """
    heard: list[str] = []
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/spend.db")

    def listen(connection: Any, _: object) -> None:
        connection.run_async(lambda driver: driver.set_trace_callback(heard.append))

    event.listen(engine.sync_engine, "connect", listen)
    ledger = Ledger(engine, clock=lambda: NOON, timeout=60)
    await ledger.create()
    budget = Budget("user:alice", usd(ROOM + 1), "total")
    went_on = asyncio.Barrier(ROOM)

    async with Limiter(ledger=ledger) as limiter:

        async def request(*, alone: bool = False) -> bool:
            try:
                reservation = await limiter.pre_commit(spend=Spend((budget,), estimate=usd(1)))
            except BudgetExceeded:
                return False
            if not alone:
                await went_on.wait()
            return await reservation.settle_success(1, cost=usd("0.5"))

        assert await request(alone=True)  # the totals of its key are there from now on
        heard.clear()
        answers = await asyncio.gather(*(request() for _ in range(CALLERS)))
        assert answers.count(True) == ROOM
        assert heard.count("COMMIT") == 2
        assert heard.count("SAVEPOINT one") == CALLERS + ROOM
        assert heard.count("ROLLBACK TO one") == CALLERS - ROOM
        # BEGIN and COMMIT twice; a hold is two statements, and a settlement four.
        work = [said for said in heard if "SAVEPOINT" not in said and "ROLLBACK" not in said]
        assert len(work) == 4 + 2 * CALLERS + 4 * ROOM
        standing = await ledger.standing(budget)
        assert (standing.spent, standing.pending) == (usd("0.5") * (ROOM + 1), usd(0))
        assert len(await ledger.rows()) == ROOM + 1
        await adds_up(ledger)
    await engine.dispose()


async def test_who_comes_after_a_task_that_was_cancelled_before_it_began_is_served(
    tmp_path: Path,
) -> None:
    """A program may cancel all its tasks and go on."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/spend.db")
    line = Line(engine, timeout=60)

    async def one(connection: AsyncConnection) -> int:
        return int(await connection.scalar(text("SELECT 1")) or 0)

    asks = asyncio.create_task(line.run(one))
    await asyncio.sleep(0)
    serves: Any = line._task
    for task in (asks, serves):
        task.cancel()
    await asyncio.wait([asks, serves])
    async with asyncio.timeout(10):
        assert await line.run(one) == 1
    await line.aclose()
    await engine.dispose()


async def test_a_question_that_takes_too_long_is_an_outage(tmp_path: Path) -> None:
    """The time is up in the middle of it: that is what the caller hears, and the next question is answered."""
    async with Limiter(ledger=(ledger := Ledger(f"sqlite:///{tmp_path}/spend.db", timeout=60))):
        await ledger.create()
        await ledger.rows()

        async def slow(connection: AsyncConnection) -> int:
            limit.reschedule(0)
            return int((await connection.execute(text("SELECT 1"))).scalar_one())

        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    await _look(ledger._store._place().engine, slow)
            assert await ledger.rows() == ()
