"""R15, R10 over Redis: a generator is left in the midst of its block, and this process sends nothing further."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import anyio
import pytest

from earmark import Event, Limiter, Limits, RedisBackend, Scope
from tests.servers import RedisServer

KEY: Final = Scope("key", Limits(rpd=100, tpd=1_000, concurrency=2))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["block", "once"])
async def test_r15_another_process_sees_the_slot_free(
    how: str, shared_redis: RedisServer, namespace: str
) -> None:
    """R15: within a moment, and not with the lease, which nobody renews any more either (R10)."""
    told = anyio.Event()

    def hear(event: Event) -> None:
        if event.kind == "abandoned":
            told.set()

    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    elsewhere = RedisBackend.from_url(shared_redis.url, namespace=namespace, timeout=20)
    async with Limiter(backend, observers=[hear]) as mine, Limiter(elsewhere) as other:

        async def body() -> AsyncGenerator[None]:
            if how == "block":
                async with await mine.pre_commit(KEY, tokens=5):
                    yield
            else:
                async with mine.once(KEY, tokens=5) as once, await once.attempt():
                    yield

        generator = body()
        await anext(generator)
        (status,) = await other.peek(KEY)
        assert status["concurrency"].used == 1
        await generator.aclose()
        with anyio.fail_after(30):
            await told.wait()
        (status,) = await other.peek(KEY)
        assert [limit.used for limit in status.limits] == [1, 5, 0]
        assert not backend._lines.here().renewal._kept
