"""Callers who are cancelled, of both kinds, at whatever point: nothing was taken, or somebody still answers for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import anyio
import pytest

from earmark import Limiter, Limits, Scope
from earmark.ledger import Budget, Spend
from earmark.ledger.store import Unreachable
from tests.ledgers import Database, adds_up, opened, usd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE: Final = Budget("user:alice", usd(10), "monthly")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=10, concurrency=2))


def spend(estimate: str) -> Spend:
    return Spend((ALICE,), "big", usd(estimate))


async def used(limiter: Limiter) -> list[int]:
    return [limit.used for limit in (await limiter.peek(SCOPE))[0].limits]


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


async def test_r9_what_is_under_way_when_a_ledger_closes_is_delivered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: who closes stops what is retried, and tells the database itself: nothing is dropped silently."""
    monkeypatch.setattr("earmark.ledger.ledger.PAUSE", 0)
    async with opened(database) as (limiter, ledger, _):
        one = await limiter.pre_commit(SCOPE, spend=spend("1"))
        write, began = ledger._store.write, asyncio.Event()

        async def away(*_arguments: Any, **_options: Any) -> Any:
            raise Unreachable(None, asked=True)

        async def stuck(*_arguments: Any, **_options: Any) -> Any:
            began.set()
            await asyncio.Event().wait()

        ledger._store.write = away  # type: ignore[method-assign]
        assert await one.settle_success(1, cost=usd("0.3"))
        ledger._store.write = stuck  # type: ignore[method-assign]
        await began.wait()
        ledger._store.write = write  # type: ignore[method-assign]
        await ledger.aclose()
        assert ledger.health().owed == 0
        assert await ledger.spent(ALICE) == usd("0.3")


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
