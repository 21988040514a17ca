"""R16, R9 over a real server: what callers leave that go, and what is left where all tasks were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis import loops
from tests.redis.proxy import Proxy
from tests.redis.wire import MOMENTS, Moment, Wires, call_after, run_and_leave, until, wires
from tests.scale import examples
from tests.servers import RedisServer, eventually, redis_server

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(rpm=1_000, tpm=10_000, concurrency=5))
WIDE: Final = Scope("wide", Limits(rpd=10**9, tpd=10**9, concurrency=5))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def limiter_of(
    server: RedisServer, namespace: str, *, timeout: float = 20, outbox: int = 100
) -> Limiter:
    """One under test."""
    url = server.url
    return Limiter(RedisBackend.from_url(url, namespace=namespace, timeout=timeout, outbox=outbox))


async def gone(work: Coroutine[Any, Any, object]) -> None:
    """Begin something, and interrupt it while it waits for the store."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_r9_what_is_asked_after_a_settlement_comes_after_it(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R9, R16: a settlement whose caller has gone keeps its place, so that its id is free for who comes next."""
    async with limiter_of(shared_redis, namespace) as limiter:
        first = await limiter.pre_commit(KEY, tokens=1)
        job = await limiter.pre_commit(KEY, tokens=100, request_id="job")
        peeks, settles_first = wires.hold("before"), wires.hold("before")
        peek = asyncio.create_task(limiter.peek(KEY))
        await peeks.reached.wait()
        await gone(first.settle_success(2))
        peeks.open()
        await peek
        await settles_first.reached.wait()
        await gone(job.settle_success(90))
        again = asyncio.create_task(limiter.pre_commit(KEY, tokens=100, request_id="job"))
        await asyncio.sleep(0)
        settles_first.open()
        reservation = await again
        assert reservation is not job
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [3, 192, 1]
        assert await reservation.settle_success(50) is True
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [3, 142, 0]


async def test_r16_callers_that_go_need_no_outbox(
    shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R16: of any number that are interrupted at once, in flight or before, each is sent once, and none is owed."""
    wide = Scope("wide", Limits(tpd=1_000_000, concurrency=300))
    async with limiter_of(shared_redis, namespace, outbox=1) as limiter:
        taken = [await limiter.pre_commit(wide, tokens=10) for _ in range(300)]
        begun = wires.hold("sent")
        in_flight = asyncio.create_task(taken.pop().settle_success(1))
        await begun.reached.wait()
        before = wires.sent["round trips"]
        resolves = [asyncio.create_task(one.settle_success(1)) for one in taken]
        await asyncio.sleep(0)
        for task in (in_flight, *resolves):
            task.cancel()
        await asyncio.wait([in_flight, *resolves])
        begun.open()
        (status,) = await limiter.peek(wide)
        # They go before it, and 128 in one round trip: none of them needs two.
        assert [limit.used for limit in status.limits] == [300, 0]
        assert wires.sent["round trips"] - before == 3
        assert (limiter.health().owed, limiter.health().lost) == (0, 0)


@pytest.mark.parametrize("moment", MOMENTS[:3])
async def test_r16_what_a_caller_has_left_is_owed_where_it_fails(
    moment: Moment, shared_redis: RedisServer, namespace: str, wires: Wires
) -> None:
    """R16, R9: its caller has gone, and then the store is: what it was to say is kept, and counts once."""
    async with limiter_of(shared_redis, namespace, timeout=0.05) as limiter:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        stuck = wires.hold(moment)
        settling = asyncio.create_task(reservation.settle_success(12))
        await stuck.reached.wait()
        adding = asyncio.create_task(limiter.add_tokens_post_stream(KEY, 5))
        await asyncio.sleep(0)
        assert limiter.health().owed == 0
        for task in (settling, adding):
            task.cancel()
        await asyncio.wait([settling, adding])
        await until(lambda: limiter.health().owed == 2)
        await until(lambda: limiter.health().available and not limiter.health().owed)
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [1, 17, 0]


async def test_r19_a_loop_whose_tasks_were_all_cancelled_is_served_as_before(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R19, R16: it goes on over a connection that stays, with one round trip for each message, time and again."""
    async with Proxy(shared_redis) as proxy:
        limiter = Limiter(RedisBackend.from_url(proxy.url, namespace=namespace, timeout=20))
        await limiter.peek(KEY)
        lines = [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis"]
        for connections in (2, 3):
            for task in lines:
                task.cancel()
            await asyncio.wait(lines)
            await limiter.peek(KEY)
            before = len(proxy.requests)
            for _ in range(5):
                await (await limiter.pre_commit(KEY)).cancel()
            assert (proxy.connections, len(proxy.requests) - before) == (connections, 10)
            lines = [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis"]
        await limiter.aclose()


def test_r19_a_loop_that_ends_renews_nothing_any_more(
    shared_redis: RedisServer, namespace: str, wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19, R10: however long a line is at work still, and in the turns of the loop between its end and the loop's."""
    monkeypatch.setattr(loops, "_INTERRUPTED", 0.0)
    limiter = limiter_of(shared_redis, namespace)
    kept: list[Any] = []

    async def never_closes() -> None:
        held = await limiter.pre_commit(KEY, tokens=30)
        await held.__aenter__()
        begun, again = wires.hold("before"), wires.hold("before")
        kept.extend((held, asyncio.create_task(limiter.add_tokens_post_stream(KEY, 5))))
        await begun.reached.wait()
        call_after(100, again.reached.is_set, again.open)

    async def look() -> list[int]:
        async with limiter:
            assert await kept[0].settle_success(12) is True
            (status,) = await limiter.peek(KEY)
            return [limit.used for limit in status.limits]

    run_and_leave(never_closes)
    assert asyncio.run(look()) == [1, 17, 0]


async def settles(limiter: Limiter) -> None:
    """All is said when its loop ends."""
    await (await limiter.pre_commit(WIDE, tokens=30)).settle_success(12)


async def leaves_a_settlement(limiter: Limiter) -> object:
    """Its loop ends while that is on its way."""
    reservation = await limiter.pre_commit(WIDE, tokens=30)
    task = asyncio.create_task(reservation.settle_success(12))
    await asyncio.sleep(0)
    return task


async def leaves_holders(limiter: Limiter) -> object:
    """Its loop ends with blocks open, each of which says so in two steps."""
    begun = asyncio.Event()

    async def hold() -> None:
        async with await limiter.pre_commit(WIDE, tokens=30) as reservation:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await limiter.peek(WIDE)
                await reservation.settle_success(12)

    task = asyncio.create_task(hold())
    await begun.wait()
    return task


async def closes(limiter: Limiter) -> None:
    """It ends in order."""
    async with limiter:
        await settles(limiter)


@pytest.mark.parametrize("main", [settles, leaves_a_settlement, leaves_holders, closes])
def test_r19_a_loop_has_one_connection_and_takes_it_along(
    main: Callable[[Limiter], Coroutine[Any, Any, object]],
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R19: each loop has made one and closed it; nothing of a loop is kept, and nobody takes its end for an outage."""
    loops = examples(100)
    with redis_server() as server, server.client(single_connection_client=True) as look:
        limiter = limiter_of(server, namespace)

        def received() -> int:
            return int(look.info("stats")["total_connections_received"])

        before = received()
        for _ in range(loops):
            run_and_leave(lambda: main(limiter))
        assert received() - before == loops
        eventually(lambda: look.info("clients")["connected_clients"] == 1, "one is open still")
        backend: Any = limiter._backend
        assert len(backend._lines._posts) <= 1
        assert len(limiter._backend.desk.loops) <= 1
        assert not caplog.records
        health = limiter.health()
        assert health.available
        assert (health.owed, health.lost, health.admitted_without_store) == (0, 0, 0)

        async def used() -> list[int]:
            async with limiter:
                (status,) = await limiter.peek(WIDE)
                return [limit.used for limit in status.limits]

        assert asyncio.run(used()) == [loops, 12 * loops, 0]
