"""What callers of one loop share: their own queue is no outage, and the line keeps nothing of them."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import deque
from contextvars import ContextVar
from typing import Any

import pytest
import redis

from earmark import BackendUnavailable, Limit, Limiter, Limits, RateLimited, RedisBackend, Scope
from earmark.backends.redis.asked import MAX_BATCH, MAX_KEYS, Asked, board, share_of
from earmark.backends.redis.messages import Message
from tests.redis.proxy import PATIENT, SCOPE, Proxy, proxied
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


async def test_a_burst_of_callers_is_no_outage(shared_redis: RedisServer, namespace: str) -> None:
    """Some wait for the others for longer than the deadline of one, and the limit holds."""
    heavy = Limits(also=[Limit("tokens", 10**9, 3_600 + more) for more in range(12)])
    scopes = (Scope("shared", Limits(rpd=300)), Scope("a", heavy), Scope("b", heavy))
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=1.0)
    async with Limiter(backend) as limiter:
        await limiter.peek(*scopes)

        async def one() -> bool:
            try:
                reservation = await limiter.pre_commit(*scopes, tokens=1)
            except RateLimited:
                return False
            assert not reservation.degraded
            return await reservation.close_reserved_only()

        admitted = await asyncio.gather(*(one() for _ in range(3_000)))
        assert sum(admitted) == 300
        assert limiter.health().admitted_without_store == 0


async def test_who_waits_too_long_is_decided_without_the_store(
    shared_redis: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was sent for it, and the store counts as well; a settlement is sent however long it has waited."""
    async with (
        Proxy(shared_redis) as proxy,
        proxied(shared_redis, namespace, proxy, timeout=PATIENT, on_outage="closed") as way,
    ):
        reservation = await way.limiter.pre_commit(SCOPE, tokens=100)
        held = proxy.fault("hold request", b"peek ")
        peek = asyncio.create_task(way.limiter.peek(SCOPE))
        await held.happened()
        settles = asyncio.create_task(reservation.settle_success(30))
        early = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=100))
        await asyncio.sleep(0)
        line: Any = way.backend._line()
        for asked in line._waiting:
            asked.deadline -= 4 * PATIENT  # so long ago they came
        late = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=50))
        await asyncio.sleep(0)
        held.release()
        await peek
        assert await settles
        with pytest.raises(BackendUnavailable, match="not sent within 2 s"):
            await early
        await (await late).cancel()
        assert proxy.asked(b"reserve ") == 3  # the first to connect, and two
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert way.limiter.health().available
        await way.check(requests=1, tokens=30)


async def test_time_that_the_loop_is_blocked_is_no_waiting(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R19: who waits while the application blocks the loop for two seconds, is sent all the same."""
    async with (
        Proxy(shared_redis) as proxy,
        proxied(shared_redis, namespace, proxy, timeout=0.3, on_outage="closed") as way,
    ):
        held = proxy.fault("hold request", b"peek ")
        peek = asyncio.create_task(way.limiter.peek(SCOPE))
        await held.happened()
        asked = asyncio.create_task(way.limiter.pre_commit(SCOPE, tokens=100))
        await asyncio.sleep(0)
        held.release()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            pass
        await peek
        await (await asked).cancel()


def test_a_call_is_bounded_by_its_messages_and_by_their_keys() -> None:
    """A script holds up the whole server."""

    def waiting(count: int, keys: int) -> Any:
        loop = asyncio.new_event_loop()
        message = Message("peek", "x.1", ("key",) * keys, "")
        try:
            return [Asked(message, loop.create_future(), 0.0, again=False) for _ in range(count)]
        finally:
            loop.close()

    assert len(board(deque(waiting(1_000, 2)), MAX_BATCH, 1.0, 0.0)[0]) == MAX_BATCH
    assert len(board(deque(waiting(1_000, MAX_KEYS // 4)), MAX_BATCH, 1.0, 0.0)[0]) == 4
    assert len(board(deque(waiting(3, 2 * MAX_KEYS)), MAX_BATCH, 1.0, 0.0)[0]) == 1


@pytest.mark.parametrize(
    ("waiting", "others", "share"),
    [
        pytest.param(1, 0, 32, id="few go together"),
        pytest.param(100, 0, 50, id="many begin as two halves"),
        pytest.param(50, 50, 50, id="which go on taking turns"),
        pytest.param(10, 91, 51, id="and become even where they are not"),
        pytest.param(1_000, 128, MAX_BATCH, id="a script holds up the whole server"),
    ],
)
def test_many_go_in_two_halves(waiting: int, others: int, share: int) -> None:
    """While the store sees to the one half, the callers of the other go on: neither waits for the other."""
    assert share_of(waiting, others) == share


async def test_the_line_keeps_no_context_of_its_first_caller(
    shared_redis: RedisServer, namespace: str
) -> None:
    """It lives as long as the loop, and a request's context does not."""

    class Tenant:
        pass

    variable: ContextVar[Tenant] = ContextVar("tenant")
    tenant = Tenant()
    kept = weakref.ref(tenant)
    scope = Scope("alice", Limits(rpd=10, concurrency=2))
    async with Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as limiter:

        async def request(tenant: Tenant) -> None:
            variable.set(tenant)
            async with await limiter.pre_commit(scope):
                pass

        await asyncio.create_task(request(tenant))
        del tenant
        await asyncio.sleep(0)  # the loop itself holds on to what it has just run
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("client", ["redis://localhost", None, redis.Redis()])
def test_another_kind_of_client_is_an_error(client: Any) -> None:
    """It says what would be right."""
    with pytest.raises(TypeError, match="from_url"):
        RedisBackend(client)
