"""Where the demo's limits are kept: in memory, or on a Redis server. Nothing else knows the difference."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from earmark import Limits, MemoryBackend, RedisBackend, Scope
from earmark.backends import Backend
from earmark.testing import ManualClock


@asynccontextmanager
async def memory(clock: ManualClock) -> AsyncIterator[Backend]:
    """The memory of this process."""
    yield MemoryBackend(clock=clock)


@asynccontextmanager
async def redis(url: str, clock: ManualClock) -> AsyncIterator[Backend]:
    """A Redis server, under a namespace of the demo's own, which is empty again afterwards.

    Raises:
        BackendUnavailable: the server cannot be reached.
        EarmarkError, RedisError: it cannot be used as it is.
        ValueError: the URL is none.
    """
    namespace = f"demo-{secrets.token_hex(8)}"
    backend = RedisBackend.from_url(
        url, namespace=namespace, clock=clock, timeout=5, on_outage="closed"
    )
    async with Redis.from_url(url) as client:
        try:
            await backend.peek(
                (Scope("anybody", Limits(rpm=1)),)
            )  # says so now if the server is not there
            yield backend
        finally:
            await backend.aclose()
        # The clock stood still, and so would these keys for a day.
        async for key in client.scan_iter(f"{namespace}:*"):
            await client.delete(key)
