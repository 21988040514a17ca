"""R16 at every await: limits on a Redis server, money on each database, and a caller who goes at whatever suspension.

Every task of the event loop is counted wherever it suspends: the caller, what works for it, the line to Redis, SQLite's
writer. A piece of work is done once for each suspension that it has, and its caller is cancelled right there, by
`Task.cancel`, which comes once, or by an anyio scope, which comes again at every await. Then nothing may be held that
nobody answers for, nothing may have counted twice, every sum has to be that of the log, and nothing may be owed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from earmark import BudgetExceeded, Limiter, Limits, RedisBackend, Reservation, Scope, Usage
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.store import Unreachable
from earmark.testing import ManualClock
from tests.ledgers import NOON, Database, adds_up, usd
from tests.reached import Reached
from tests.redis.wire import until
from tests.servers import RedisServer
from tests.suspending import Stepped

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE: Final = Budget("user:alice", usd(50), "monthly")
TEAM: Final = Budget("team:red", None, "total")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=100_000, concurrency=2))

FEW: Final = 6
"""Each of these suspends so often at least."""

reached = Reached("cancellation of what spends")


class Points:
    """Counts the suspensions of every task that is started from now on, and does something at one of them."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.do: Callable[[], object] = lambda: None
        self.passed = 0
        asyncio.get_running_loop().set_task_factory(self._start)

    def _start(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        async def watched() -> Any:
            return await Stepped(work, self._pass)

        task = asyncio.Task(watched(), loop=loop, **options)
        task.add_done_callback(
            lambda _: work.close()
        )  # which it has not begun where it was cancelled before
        return task

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.do()

    async def cancelled(
        self, work: Callable[[], Coroutine[Any, Any, object]], at: int, kind: str
    ) -> bool:
        """Do work whose caller is cancelled at the suspension of this number, or before it; False: there are fewer."""
        scope = anyio.CancelScope()
        there = done = False

        async def attempt() -> None:
            nonlocal done
            with scope:
                await work()
                done = True  # what others do from now on comes too late for this caller
                await anyio.lowlevel.checkpoint()  # a scope's cancellation comes at an await

        def cancel() -> None:
            nonlocal there
            if not done:
                there = True
                (task if kind == "task" else scope).cancel()

        task = asyncio.ensure_future(attempt())
        self.passed, self.at, self.do = 0, at, cancel
        if at == 0:
            cancel()
        await asyncio.wait([task])
        self.at = None
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or AssertionError
        assert there == (task.cancelled() or scope.cancelled_caught)
        return there


class Place:
    """A limiter on the servers, and what it should show."""

    def __init__(self, limiter: Limiter, ledger: Ledger) -> None:
        self.limiter = limiter
        self.ledger = ledger
        self.requests = 0
        self.due = usd(0)

    async def holds(self) -> None:
        """Nothing is held, owed or counted twice; every sum is that of the log."""
        (status,) = await self.limiter.peek(SCOPE)
        assert [limit.used for limit in status.limits] == [self.requests, 0]
        standing = await self.ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (self.due, usd(0))
        await adds_up(self.ledger)
        await until(lambda: not self.limiter.health().owed)
        assert self.ledger.health().owed == self.ledger.health().lost == 0

    async def admit(self, estimate: str = "1") -> Reservation:
        return await self.limiter.pre_commit(
            SCOPE, spend=Spend((ALICE, TEAM), "big", usd(estimate))
        )


@asynccontextmanager
async def place(
    database: Database, server: RedisServer, namespace: str, *, create: bool = True
) -> AsyncIterator[Place]:
    """One on them."""
    clock = ManualClock(NOON)
    backend = RedisBackend.from_url(server.url, namespace=namespace, clock=clock, timeout=60)
    ledger = database.ledger(clock=clock, timeout=60)
    if create:
        await ledger.create()
    async with Limiter(backend, ledger=ledger) as limiter:
        yield Place(limiter, ledger)


async def admission(here: Place, cancelled: Callable[[Any], Awaitable[bool]]) -> bool:
    """Nothing was taken, or the caller has it."""
    made: list[Reservation] = []

    async def work() -> None:
        made.append(await here.admit())

    there = await cancelled(work)
    for reservation in made:
        assert await reservation.cancel()
    return there


async def refusal(here: Place, cancelled: Callable[[Any], Awaitable[bool]]) -> bool:
    """A budget refuses: the limits have got back what they gave, whoever hears of it."""

    async def work() -> None:
        with pytest.raises(BudgetExceeded):
            await here.admit("51")

    return await cancelled(work)


def resolving(
    verb: str, due: str | None, /, *arguments: Any, **options: Any
) -> Callable[[Place, Callable[[Any], Awaitable[bool]]], Awaitable[bool]]:
    """What has begun is done; what has not is the caller's still. Once it is done, it has one row, or none."""

    async def resolve(here: Place, cancelled: Callable[[Any], Awaitable[bool]]) -> bool:
        reservation = await here.admit()
        name = reservation.request_id

        async def work() -> None:
            assert await getattr(reservation, verb)(*arguments, **options)

        there = await cancelled(work)
        again = await getattr(reservation, verb)(*arguments, **options)
        reached.count(f"{verb} had {'not ' if again else ''}begun")
        costs = [row.cost for row in await here.ledger.rows(request_id=name)]
        assert costs == ([] if due is None else [usd(due)])
        if due is not None:
            here.requests += 1
            here.due += usd(due)
        return there

    return resolve


async def correction(here: Place, cancelled: Callable[[Any], Awaitable[bool]]) -> bool:
    """It has been made, or can be made: in either case once."""
    reservation = await here.admit()
    name = reservation.request_id
    assert await reservation.settle_success(1, cost=usd("0.02"))

    async def work() -> None:
        assert await here.ledger.correct(name, usd("0.01"))

    there = await cancelled(work)
    made = not await here.ledger.correct(name, usd("0.01"))
    reached.count(f"correction was {'' if made else 'not '}made")
    assert [row.cost for row in await here.ledger.rows(request_id=name)] == [
        usd("0.02"),
        usd("-0.01"),
    ]
    here.requests += 1
    here.due += usd("0.01")
    return there


async def question(here: Place, cancelled: Callable[[Any], Awaitable[bool]]) -> bool:
    """It changes nothing, and leaves no connection open."""
    return await cancelled(here.ledger.verify)


WORKS: Final = {
    "admission": admission,
    "refusal": refusal,
    "settlement": resolving("settle_success", "0.01", Usage(5, 5), cost=usd("0.01")),
    "close": resolving("close_reserved_only", "1"),
    "cancel": resolving("cancel", None),
    "correction": correction,
    "question": question,
}


@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_a_caller_goes_at_any_await(
    database: Database,
    shared_redis: RedisServer,
    namespace: str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R16, C24: admission, refusal by a budget, settlement, close, cancel, correction and question, stopped anywhere.

    None of it is an error, for which somebody would have to be called.
    """
    async with place(database, shared_redis, namespace) as here:
        points = Points()
        for work in WORKS.values():  # connections are there, and the totals of the keys
            await work(here, lambda what: points.cancelled(what, 10**6, kind))
            await here.holds()
        for name, work in WORKS.items():
            at = most = 0
            step = 8 if name in {"correction", "question"} else 1  # they have many, much alike
            while at < most + step + 2:  # how many there are varies with what came together
                if await work(here, lambda what: points.cancelled(what, at, kind)):  # noqa: B023
                    most = at
                await here.holds()
                at += step
            reached.count(f"{name}, suspensions", most)
            assert most >= FEW, (name, most)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_who_closes_goes_at_any_await(
    database: Database, shared_redis: RedisServer, namespace: str, kind: str
) -> None:
    """R16, R9: a ledger that owes a settlement is closed by somebody who goes: closed again it owes nothing."""

    async def away(*_arguments: Any, **_options: Any) -> Any:
        raise Unreachable(None, asked=True)

    async with place(database, shared_redis, namespace) as looking:
        points = Points()
        at = most = 0
        while at < most + 3:
            async with place(database, shared_redis, namespace, create=False) as here:
                reservation = await here.admit()
                write = here.ledger._store.write
                here.ledger._store.write = away  # type: ignore[method-assign]
                assert await reservation.settle_success(1, cost=usd("0.01"))
                here.ledger._store.write = write  # type: ignore[method-assign]
                if await points.cancelled(here.limiter.aclose, at, kind):
                    most = at
            assert here.ledger.health().owed == here.ledger.health().lost == 0
            looking.requests += 1
            looking.due += usd("0.01")
            await looking.holds()
            at += 1
        reached.count("aclose, suspensions", most)
        assert most >= FEW
