"""Where limits are kept, as a word that another process can be told: a server, a cluster, or a Sentinel's master.

server redis://127.0.0.1:6379/0
cluster redis://127.0.0.1:6379/0
sentinel 26379 watched
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio.sentinel

from earmark import Limiter, RedisBackend
from tests.servers import HOST


@asynccontextmanager
async def limiter_at(where: str, **options: Any) -> AsyncIterator[Limiter]:
    """A limiter there, by the options of its backend."""
    kind, _, there = where.partition(" ")
    if kind == "sentinel":
        options.setdefault("timeout", 2)
        port, name = there.split(" ")
        async with (
            master_of(int(port), name) as client,
            Limiter(RedisBackend(client, **options)) as limiter,
        ):
            yield limiter
        return
    options.setdefault("timeout", 20)
    backend = RedisBackend.from_url(there, cluster=kind == "cluster", **options)
    async with Limiter(backend) as limiter:
        yield limiter


@asynccontextmanager
async def master_of(
    port: int, name: str, remap: Callable[[int], int] | None = None
) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of redis-py's that asks a sentinel who is the master.

    Args:
        port: of the sentinel.
        name: what it calls the master.
        remap: by which port a master is reached, by its own.
    """
    pool: Any = redis.asyncio.sentinel.SentinelConnectionPool
    make: Any = redis.asyncio.sentinel.Sentinel

    class Remapped(pool):  # type: ignore[misc]
        async def get_master_address(self) -> tuple[str, int]:
            host, port = await super().get_master_address()
            return host, remap(port) if remap else port

    clients = make([(HOST, port)])
    client = clients.master_for(name, connection_pool_class=Remapped)
    try:
        yield client
    finally:
        await client.aclose()
        for watcher in clients.sentinels:
            await watcher.aclose()
