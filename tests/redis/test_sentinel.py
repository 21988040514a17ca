"""B53: through redis-py's Sentinel client, and over a failover."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis.asyncio.sentinel

from earmark import Limiter, Limits, RedisBackend, Scope
from tests.servers import HOST, sentinel

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 30


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


async def test_b53_after_a_failover_the_next_calls_reach_the_new_master() -> None:
    """What was replicated still counts, what is settled over the failover counts once."""
    scope = Scope("alice", Limits(rpd=100, tpd=10_000, concurrency=5))
    with sentinel() as group:
        make: Any = redis.asyncio.sentinel.Sentinel
        clients = make([(HOST, group.port)])
        client = clients.master_for(group.name)
        async with Limiter(RedisBackend(client, on_outage="closed")) as limiter:
            first = await limiter.pre_commit(scope, tokens=500)
            second = await limiter.pre_commit(scope, tokens=700)
            await first.settle_success(100)
            group.replicate()
            group.fail_over()
            assert await second.settle_success(300) is True  # now, or owed
            with anyio.fail_after(PATIENCE_SECONDS):
                while not limiter.health().available or limiter.health().owed:
                    await anyio.lowlevel.checkpoint()
            third = await limiter.pre_commit(scope, tokens=50)
            (status,) = await limiter.peek(scope)
            assert status["requests"].used == 3
            assert status["tokens"].used == 100 + 300 + 50
            assert status["concurrency"].used == 1
            assert await third.cancel() is True
            with group.replica.client() as new:
                assert all(new.ttl(key) > 0 for key in new.scan_iter("earmark:*"))
        await client.aclose()
        for watcher in clients.sentinels:
            await watcher.aclose()
