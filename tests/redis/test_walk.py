"""The whole way once: a reservation through Redis, from `pre_commit` to the settlement."""

from __future__ import annotations

import anyio
import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope, Usage
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


async def test_two_limiters_share_every_limit(shared_redis: RedisServer, namespace: str) -> None:
    """B50: what one takes and settles, the other sees; slots as well."""
    scope = Scope("alice", Limits(rph=10, tph=1_000, concurrency=1))
    async with (
        Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as one,
        Limiter(RedisBackend.from_url(shared_redis.url, namespace=namespace)) as other,
    ):
        reservation = await one.pre_commit(scope, tokens=600)
        with pytest.raises(RateLimited) as refused:
            await other.pre_commit(scope, tokens=500)
        assert [denial.limit.metric for denial in refused.value.denials] == [
            "tokens",
            "concurrency",
        ]
        assert await reservation.settle_success(Usage(input_tokens=90, output_tokens=10))
        second = await other.pre_commit(scope, tokens=900)
        (status,) = await one.peek(scope)
        assert (status["tokens"].used, status["concurrency"].used) == (1_000, 1)
        assert await second.cancel()


def test_trio_is_told_that_redis_needs_asyncio(shared_redis: RedisServer) -> None:
    """R19: a clear error."""

    async def main() -> None:
        limiter = Limiter(RedisBackend.from_url(shared_redis.url))
        await limiter.pre_commit(Scope("alice", Limits(rpm=1)))

    with pytest.raises(RuntimeError, match="asyncio"):
        anyio.run(main, backend="trio")
