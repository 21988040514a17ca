"""`aclose` over a real server: what is under way is answered, and what comes later too, on another connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from earmark import (
    BackendUnavailable,
    Limiter,
    Limits,
    MemoryBackend,
    RedisBackend,
    Reservation,
    Scope,
)
from earmark.backends.redis import backend as redis_backend
from tests.redis.wire import Moment, Wires, until, wires
from tests.servers import RedisCluster, RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(rpd=1_000, tpd=10_000, concurrency=500))
OTHER: Final = Scope("other", Limits(rpd=1_000))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(params=["server", "cluster"])
def store(request: pytest.FixtureRequest, namespace: str) -> dict[str, Any]:
    """What `from_url` takes: everything on one server, or spread over the masters of a cluster."""
    cluster = request.param == "cluster"
    server: RedisServer | RedisCluster = request.getfixturevalue(
        "shared_cluster" if cluster else "shared_redis"
    )
    return {"url": server.url, "namespace": namespace, "cluster": cluster, "timeout": 20}


@asynccontextmanager
async def limiter_of(store: dict[str, Any], **options: Any) -> AsyncIterator[Limiter]:
    """One whose `aclose` is the test's matter; what is left open is closed."""
    limiter = Limiter(RedisBackend.from_url(**(store | options)))
    await limiter.peek(KEY, OTHER)
    try:
        yield limiter
    finally:
        await limiter.aclose()


def lines() -> list[asyncio.Task[Any]]:
    """Those that use a connection."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "earmark.redis"]


async def used(store: dict[str, Any], scope: Scope) -> list[int]:
    """What another process sees."""
    async with Limiter(RedisBackend.from_url(**store)) as other:
        (status,) = await other.peek(scope)
        return [limit.used for limit in status.limits]


@pytest.mark.parametrize("moment", ["before", "sent", "applied"])
async def test_what_is_under_way_when_it_is_closed_is_answered(
    store: dict[str, Any], moment: Moment, wires: Wires
) -> None:
    """Closing is no outage: the store answers who is on board, and who waits to be, before the connection goes."""
    async with limiter_of(store, on_outage="closed") as limiter:
        settled = await limiter.pre_commit(KEY, tokens=30)
        kept = await limiter.pre_commit(KEY, tokens=5)
        stuck = wires.hold(moment)
        on_board = asyncio.create_task(limiter.pre_commit(KEY, tokens=100))
        await stuck.reached.wait()
        waiting: list[asyncio.Task[object]] = [
            asyncio.create_task(work)
            for work in (
                limiter.pre_commit(OTHER, KEY, tokens=1_000),
                settled.settle_success(20),
                kept.renew(),
                limiter.peek(KEY),
                limiter.add_tokens_post_stream(KEY, 7),
            )
        ]
        await asyncio.sleep(0)
        closing = asyncio.create_task(limiter.aclose())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        stuck.open()
        await closing
        assert not lines()
        first = await on_board
        second, *answers = [await one for one in waiting]
        assert [answers[0], answers[1], answers[3]] == [True, True, None]
        assert isinstance(second, Reservation)
        assert [first.degraded, second.degraded] == [False, False]
        assert (limiter.health().owed, limiter.health().admitted_without_store) == (0, 0)
        assert await used(store, KEY) == [4, 100 + 1_000 + 20 + 5 + 7, 3]
        for reservation in (kept, first, second):
            assert await reservation.cancel() is True


async def test_who_goes_on_while_it_is_closed_is_answered_and_nothing_stays_open(
    store: dict[str, Any], wires: Wires
) -> None:
    """A request whose next message comes while the last ones are being answered: the store has all of it."""
    async with limiter_of(store, on_outage="closed") as limiter:
        stuck = wires.hold("sent")

        async def request() -> None:
            async with await limiter.pre_commit(KEY, tokens=100) as reservation:
                await reservation.settle_success(40)

        requests = [asyncio.create_task(request()) for _ in range(20)]
        await stuck.reached.wait()
        closing = asyncio.create_task(limiter.aclose())
        await asyncio.sleep(0)
        stuck.open()
        await asyncio.gather(closing, *requests)
        await until(lambda: not lines())
        assert await used(store, KEY) == [20, 800, 0]


async def test_what_the_store_does_not_answer_in_time_is_decided_without_it(
    store: dict[str, Any], wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for so long and no longer: then it is as in an outage."""
    monkeypatch.setattr(redis_backend, "CLOSING_SECONDS", 0.01)
    async with limiter_of(store, on_outage="closed") as limiter:
        stuck = wires.hold("before")
        asked = asyncio.create_task(limiter.pre_commit(KEY))
        await stuck.reached.wait()
        await limiter.aclose()
        with pytest.raises(BackendUnavailable):
            await asked
        stuck.open()


@pytest.mark.parametrize("backend", ["memory", "redis"])
async def test_who_asks_after_it_was_closed_is_served_as_before(
    backend: str, shared_redis: RedisServer, namespace: str
) -> None:
    """A stream that ends after the shutdown has begun still settles: in memory and in Redis closing forbids nothing."""
    limiter = Limiter(
        MemoryBackend()
        if backend == "memory"
        else RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    )
    before = await limiter.pre_commit(KEY, tokens=10)
    for times in (1, 2):
        await limiter.aclose()
        assert not lines()
        after = await limiter.pre_commit(KEY, tokens=100)
        assert not after.degraded
        assert await after.settle_success(50) is True
        (status,) = await limiter.peek(KEY)
        assert [limit.used for limit in status.limits] == [1 + times, 10 + 50 * times, 1]
    assert await before.settle_success(3) is True
    await limiter.aclose()
    assert not lines()
