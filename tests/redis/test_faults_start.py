"""What is looked at when a connection is made: the clock of the server's scripts (C59), and its eviction policy."""

from __future__ import annotations

import asyncio

import pytest

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis import dialing
from earmark.backends.redis.connection import load
from earmark.backends.redis.failures import StoreError
from earmark.backends.redis.scripts import Scripts
from earmark.backends.redis.wire import Wire, command
from earmark.testing import ManualClock
from tests.redis.proxy import Proxy
from tests.servers import RedisServer, redis_server

pytestmark = pytest.mark.anyio

SCOPE = Scope("alice", Limits(rpm=10))

ZERO = "return {'0', '0'}"
NEAR = "local time = redis.call('TIME') return {time[1] - 4, time[2]}"
FAR = "local time = redis.call('TIME') return {time[1] + 7, time[2]}"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.mark.parametrize("clock", [ZERO, FAR])
async def test_a_server_whose_scripts_have_no_clock_is_refused(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """C59: every window would be window 0; that is a mistake to be seen, which nobody decides without."""
    monkeypatch.setattr(dialing, "_CLOCK", clock)
    async with Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as limiter:
        for _ in range(2):
            with pytest.raises(StoreError, match=r"clock=time\.time"):
                await limiter.pre_commit(SCOPE)
        assert limiter.health().admitted_without_store == 0
        assert not limiter.health().available
    with shared_redis.client() as client:
        assert not list(client.scan_iter(f"{namespace}:*"))


async def test_a_script_clock_may_be_read_a_little_later(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C59: within some seconds the two agree."""
    monkeypatch.setattr(dialing, "_CLOCK", NEAR)
    async with Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as limiter:
        reservation = await limiter.pre_commit(SCOPE)
        assert not reservation.degraded
        assert await reservation.cancel()


async def test_scripts_that_are_forgotten_at_once_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody flushes them between two commands of a connection that is being made: that is nobody's mistake."""

    async def load_in_vain(wire: Wire, scripts: Scripts) -> None:
        await load(wire, scripts)
        await command(wire, "SCRIPT", "FLUSH")

    monkeypatch.setattr(dialing, "load", load_in_vain)
    with redis_server() as server:
        async with Limiter(RedisBackend.from_url(server.url)) as limiter:
            reservation = await limiter.pre_commit(SCOPE)
            assert not reservation.degraded
            assert await reservation.cancel()


async def test_a_clock_of_ones_own_needs_no_clock_of_the_server(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C59: the way out that the error names."""
    monkeypatch.setattr(dialing, "_CLOCK", ZERO)
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, clock=ManualClock(1_000.0)
    )
    async with Limiter(backend) as limiter:
        reservation = await limiter.pre_commit(SCOPE)
        assert not reservation.degraded
        assert await reservation.cancel()


@pytest.mark.parametrize(
    ("policy", "memory", "warnings"),
    [
        ("allkeys-lru", "100mb", 1),
        ("volatile-ttl", "100mb", 1),
        ("allkeys-lru", "0", 0),
        ("noeviction", "100mb", 0),
    ],
)
async def test_a_server_that_evicts_is_warned_of_once(
    policy: str, memory: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Limits would be dropped when its memory is full; said once, however often it is connected to, on all loops."""
    with redis_server("--maxmemory-policy", policy, "--maxmemory", memory) as server:
        async with (
            Proxy(server) as proxy,
            Limiter(RedisBackend.from_url(proxy.url)) as limiter,
        ):
            for _ in range(3):
                await limiter.peek(SCOPE)
                await proxy.cut()
            assert proxy.connections == 3
            await asyncio.to_thread(asyncio.run, _looked(limiter))
    said = [record for record in caplog.records if "maxmemory-policy" in record.message]
    assert [record.levelname for record in said] == ["WARNING"] * warnings
    assert all(policy in record.message for record in said)


async def _looked(limiter: Limiter) -> None:
    await limiter.peek(SCOPE)
    await limiter.aclose()
