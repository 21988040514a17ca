"""B53: the whole way over a cluster of three masters, from `pre_commit` to the settlement."""

from __future__ import annotations

import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope, Usage
from earmark.backends.redis.keys import tag_of
from tests.servers import RedisCluster

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


LIMITS = Limits(rph=10, tph=1_000, concurrency=1)


async def test_a_reservation_over_three_slots(shared_cluster: RedisCluster, namespace: str) -> None:
    """B53, C54: reserved, refused, settled; what one limiter takes, the other sees."""
    scopes = (Scope("a", LIMITS), Scope("b", LIMITS), Scope("c", LIMITS))
    owners = {shared_cluster.owner(int(tag_of(scope.key))).port for scope in scopes}
    assert len(owners) == 3

    def limiter() -> Limiter:
        backend = RedisBackend.from_url(shared_cluster.url, namespace=namespace, cluster=True)
        return Limiter(backend)

    async with limiter() as one, limiter() as other:
        reservation = await one.pre_commit(*scopes, tokens=600)
        assert not reservation.degraded
        with pytest.raises(RateLimited) as refused:
            await other.pre_commit(scopes[1], tokens=500)
        assert [denial.limit.metric for denial in refused.value.denials] == [
            "tokens",
            "concurrency",
        ]
        assert await reservation.settle_success(Usage(input_tokens=90, output_tokens=10))
        second = await other.pre_commit(*scopes, tokens=900, request_id="q")
        adopted = await one.pre_commit(*scopes, tokens=900, request_id="q")
        for status in await one.peek(*scopes):
            assert (status["tokens"].used, status["concurrency"].used) == (1_000, 1)
        assert await adopted.cancel()
        assert await second.cancel() is False
        for status in await one.peek(*scopes):
            assert (status["tokens"].used, status["concurrency"].used) == (100, 0)
