"""R16, C55, R15 over a real server: a caller goes, and another has its own answer; a loop ends, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import anyio
import pytest

from earmark import (
    BackendUnavailable,
    Limiter,
    Limits,
    RateLimited,
    RedisBackend,
    Reservation,
    Scope,
)
from earmark.testing import ManualClock
from tests.redis.wire import MOMENTS, Moment, Wires, until, wires
from tests.servers import RedisServer

__all__ = ["wires"]

KEY: Final = Scope("key", Limits(rpm=1_000, tpm=10_000, concurrency=5))

ON_ASYNCIO: Final = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


def on_asyncio(test: Any) -> Any:
    """redis-py runs on asyncio alone."""
    for mark in ON_ASYNCIO:
        test = mark(test)
    return test


class Twice:
    """One limiter under test, and one that looks on from elsewhere."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self.limiter = self.another()

    def another(self) -> Limiter:
        """As another process would have it."""
        url, namespace = self._server.url, self._namespace
        return Limiter(
            RedisBackend.from_url(url, namespace=namespace, clock=ManualClock(1_000), timeout=10)
        )

    def used(self, scope: Scope = KEY) -> tuple[int, ...]:
        """What the store shows of a key, on a loop of its own."""

        async def look() -> tuple[int, ...]:
            async with self.another() as limiter:
                (status,) = await limiter.peek(scope)
                return tuple(limit.used for limit in status.limits)

        return asyncio.run(look())


@pytest.fixture
def twice(shared_redis: RedisServer, namespace: str) -> Twice:
    """Both on one server."""
    return Twice(shared_redis, namespace)


def numbered(number: int) -> Scope:
    """A key that shows whose answer it is: so many requests are allowed."""
    return Scope(f"key {number}", Limits(rpm=number + 1, tpm=1_000_000))


@on_asyncio
@pytest.mark.parametrize("moment", MOMENTS[:3])
@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_c55_another_caller_has_its_own_answer(
    moment: Moment, kind: str, twice: Twice, wires: Wires
) -> None:
    """C55: 100 times one of ten callers in one round trip is cancelled; nobody gets a strange answer."""
    async with twice.limiter as limiter:
        await limiter.peek(KEY)
        for number in range(100):
            hold = wires.hold(moment)
            scopes = [anyio.CancelScope() for _ in range(10)]
            got: dict[int, Reservation] = {}

            async def ask(
                which: int, scope: anyio.CancelScope, got: dict[int, Reservation]
            ) -> None:
                with scope:
                    got[which] = await limiter.pre_commit(numbered(which), tokens=which)

            asking = [
                asyncio.create_task(ask(which, scope, got)) for which, scope in enumerate(scopes)
            ]
            await hold.reached.wait()
            victim = number % 10
            if kind == "task":
                asking[victim].cancel()
            else:
                scopes[victim].cancel()
            hold.open()
            await asyncio.wait(asking)
            assert sorted(got) == [which for which in range(10) if which != victim]
            for which, reservation in got.items():
                (status,) = reservation.statuses
                requests, tokens = status.limits
                assert (requests.limit.amount, tokens.used) == (which + 1, which)
                assert await reservation.cancel() is True
        statuses = await limiter.peek(*map(numbered, range(10)))
        assert {limit.used for status in statuses for limit in status.limits} == {0}
        assert limiter.health().available


@on_asyncio
@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_r16_a_connection_that_breaks_under_a_cancelled_caller_is_no_outage(
    moment: Moment, twice: Twice, wires: Wires, shared_redis: RedisServer
) -> None:
    """R16, R9: one caller is cancelled, then the connection is cut: the other's message is sent again, counted once."""
    async with twice.limiter as limiter:
        await limiter.peek(KEY)
        hold = wires.hold(moment)
        going, staying = (
            asyncio.create_task(limiter.pre_commit(KEY, tokens=tokens)) for tokens in (30, 50)
        )
        await hold.reached.wait()
        going.cancel()
        with shared_redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        hold.open()
        reservation = await staying
        assert not reservation.degraded
        await asyncio.wait([going])
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [1, 50, 1]
        assert limiter.health().admitted_without_store == 0
        await reservation.cancel()


@on_asyncio
@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_r16_the_store_hangs_and_whoever_asked_first_is_gone(
    moment: Moment, shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R16: the deadline of the others still counts: it does not go by who has waited the longest and left."""
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, timeout=0.05, on_outage="closed"
    )
    async with Limiter(backend) as limiter:
        await limiter.peek(KEY)
        stuck = wires.hold(moment)
        gone = asyncio.create_task(limiter.pre_commit(KEY))
        await stuck.reached.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await limiter.pre_commit(KEY)
        gone.cancel()
        await asyncio.wait([gone])
        await until(lambda: limiter.health().available and not limiter.health().owed)
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [0, 0, 0]


kept: Final[list[object]] = []
"""What outlives a loop."""

Ending = Callable[[Limiter, Reservation], Coroutine[Any, Any, Any]]


async def settles(limiter: Limiter, reservation: Reservation) -> object:
    return await reservation.settle_success(12)


async def adds(limiter: Limiter, reservation: Reservation) -> None:
    await reservation.settle_success(10)
    await limiter.add_tokens_post_stream(KEY, 2)


async def settles_when_cancelled(limiter: Limiter, reservation: Reservation) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        await limiter.peek(KEY)
        await reservation.settle_success(12)


async def settles_when_shut_down(limiter: Limiter, reservation: Reservation) -> None:
    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await reservation.settle_success(12)

    generator = generate()
    kept.append(generator)
    assert await anext(generator) == 1


@pytest.mark.parametrize(
    ("ending", "moment"),
    [
        *itertools.product([settles, adds], [*MOMENTS[:3], None]),
        (settles_when_cancelled, None),
        (settles_when_shut_down, None),
    ],
)
def test_r16_a_loop_that_ends_right_after(
    ending: Ending, moment: Moment | None, twice: Twice, wires: Wires
) -> None:
    """R16: `asyncio.run` without `aclose`: a settlement that has begun is counted once, whatever it was about to do."""

    async def main() -> None:
        reservation = await twice.limiter.pre_commit(KEY, tokens=30)
        hold = wires.hold(moment) if moment else None
        ends = asyncio.create_task(ending(twice.limiter, reservation))
        if hold is None:
            await asyncio.sleep(0)
        else:
            await hold.reached.wait()
        kept.append(ends)

    asyncio.run(main())
    used = twice.used()
    kept.clear()
    if ending is adds and used == (1, 10, 0):
        return  # it had not come to the second yet
    assert used == (1, 12, 0)
    assert twice.limiter.health().owed == 0


def test_r16_a_loop_that_ends_with_blocks_open(twice: Twice) -> None:
    """R16, R15: what was at work in `async with` is abandoned with the loop, at once and not after a lease."""

    async def hold_one(begun: asyncio.Event) -> None:
        async with await twice.limiter.pre_commit(KEY, tokens=7):
            begun.set()
            await asyncio.Event().wait()

    async def main() -> None:
        begun = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(hold_one(one)) for one in begun]
        for one in begun:
            await one.wait()
        assert len(tasks) == 5

    asyncio.run(main())
    assert twice.used() == (5, 35, 0)


@on_asyncio
async def test_r16_a_program_that_cancels_every_task_goes_on(twice: Twice) -> None:
    """R16, R19: the line is among those that are cancelled; what comes later is served all the same."""
    limiter = twice.limiter
    reservation = await limiter.pre_commit(KEY, tokens=30)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("earmark."):
            task.cancel()
            await asyncio.wait([task])
    assert await reservation.settle_success(12) is True
    for _ in range(3):
        await (await limiter.pre_commit(KEY)).cancel()
    with pytest.raises(RateLimited):
        await limiter.pre_commit(KEY, tokens=10_000)
    assert limiter.health().admitted_without_store == 0
    await limiter.aclose()


@on_asyncio
@pytest.mark.parametrize("kind", ["task", "scope"])
async def test_r16_a_cancelled_aclose_leaves_nothing_behind(
    kind: str, twice: Twice, wires: Wires
) -> None:
    """R16: the line closes by itself, with what it is owed delivered, and the limiter can be used and closed again."""
    limiter = twice.limiter
    reservation = await limiter.pre_commit(KEY, tokens=30)
    hold = wires.hold("before")
    settling = asyncio.create_task(reservation.settle_success(12))
    await hold.reached.wait()
    settling.cancel()
    await asyncio.wait([settling])
    lines = [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis"]
    assert len(lines) == 1
    scope = anyio.CancelScope()

    async def close() -> None:
        with scope:
            await limiter.aclose()

    closing = asyncio.create_task(close())
    await asyncio.sleep(0)  # it waits for the settlement, which is held up
    if kind == "task":
        closing.cancel()
    else:
        scope.cancel()
    await asyncio.wait([closing])
    await asyncio.wait(lines)
    assert limiter.health().owed == 0
    (status,) = await limiter.peek(KEY)
    assert [limit.used for limit in status.limits] == [1, 12, 0]
    await limiter.aclose()


@on_asyncio
@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_r15_a_caller_that_is_dropped_in_flight(
    moment: Moment, twice: Twice, wires: Wires
) -> None:
    """R15, R9: a coroutine that is collected while its reserve is in flight: the next message takes it back."""
    async with twice.limiter as limiter:
        await limiter.peek(KEY)
        hold = wires.hold(moment)
        asking = limiter.pre_commit(KEY, tokens=30, request_id="dropped")
        asking.send(None)
        await hold.reached.wait()
        del asking
        gc.collect()
        hold.open()
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [0, 0, 0]
        reservation = await limiter.pre_commit(KEY, tokens=40, request_id="dropped")
        assert await reservation.settle_success(12) is True


@on_asyncio
async def test_r15_a_caller_that_is_dropped_while_the_store_fails(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R15: nobody is there any more to be told of the outage, and no future complains that it was not asked."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=0.05)
    async with Limiter(backend) as limiter:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        stuck = wires.hold("applied")
        works = [
            limiter.peek(KEY),
            reservation.renew(),
            reservation.settle_success(12),
            limiter.reset(KEY),
            limiter.pre_commit(KEY),
        ]
        for work in works:
            work.send(None)
        await stuck.reached.wait()
        works.clear()
        del work
        gc.collect()
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            await limiter.peek(KEY)
        await until(lambda: limiter.health().available and not limiter.health().owed)
        gc.collect()
        (status,) = await limiter.peek(KEY)
        assert status["concurrency"].used == 0
    assert not complaints


@on_asyncio
async def test_r15_handles_that_are_dropped_while_a_reserve_is_in_flight(
    twice: Twice, wires: Wires
) -> None:
    """R15: a handle that is collected while somebody else's message is under way is abandoned by the next."""
    async with twice.limiter as limiter:
        handles = [await limiter.pre_commit(KEY, tokens=10) for _ in range(3)]
        for moment in MOMENTS[:3]:
            hold = wires.hold(moment)
            asking = asyncio.create_task(limiter.pre_commit(KEY, tokens=1))
            await hold.reached.wait()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                handles.pop()
            hold.open()
            assert await (await asking).cancel() is True
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [3, 30, 0]
