"""Reservations that travel through Redis: one process admits, another settles by the token."""

from __future__ import annotations

import pytest

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis.messages import Message
from earmark.testing import ManualClock
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

ALICE = Scope("api_key:alice", Limits(rph=10, tph=1_000, concurrency=2))
MODEL = Scope("model", Limits(tph=5_000))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.mark.parametrize("request_id", [None, "mine"])
async def test_a_worker_settles_by_the_token(
    shared_redis: RedisServer, namespace: str, request_id: str | None
) -> None:
    """The first one wins, the token or the handle, and the other one is told so (R5)."""
    url = shared_redis.url
    async with (
        Limiter(RedisBackend.from_url(url, namespace=namespace), secret=b"ours") as gateway,
        Limiter(RedisBackend.from_url(url, namespace=namespace), secret=b"ours") as worker,
    ):
        reservation = await gateway.pre_commit(ALICE, MODEL, tokens=400, request_id=request_id)
        token = reservation.token()
        assert await worker.settle_success(token, 150) is True
        assert await worker.cancel(token) is False
        assert await reservation.cancel() is False
        alice, model = await gateway.peek(ALICE, MODEL)
        assert [status.used for status in alice.limits] == [1, 150, 0]
        assert model["tokens"].used == 150
        handle = await gateway.pre_commit(ALICE, tokens=5)
        token = handle.token()
        assert await handle.settle_success(7) is True
        assert await worker.abandon(token) is False


async def test_a_settlement_by_token_that_comes_twice_is_told_the_truth(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R9: the copy of the winner's message is told that it won, anybody else's that it did not."""
    clock = ManualClock(1_000_000)
    backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, clock=clock)
    async with Limiter(backend) as limiter:
        reservation = await limiter.pre_commit(ALICE, tokens=400)
        reservation.token()
        hold = reservation._hold

        def settlement() -> Message:
            return backend._messages.resolve(hold, "settle", {"tokens": 9}, {})

        won, lost = settlement(), settlement()
        line = backend._line()
        assert await line.ask(won) == "done"
        assert await line.ask(lost) == "gone"
        assert await line.ask(won, again=True) == "done"
        assert await line.ask(lost, again=True) == "gone"
        clock.advance(61)
        assert await line.ask(won, again=True) == "gone"
        assert (await limiter.peek(ALICE))[0]["tokens"].used == 9


async def test_a_token_of_another_namespace_is_an_error(
    shared_redis: RedisServer, namespace: str
) -> None:
    """It names a reservation that this store has never known."""
    url = shared_redis.url
    async with (
        Limiter(RedisBackend.from_url(url, namespace=namespace)) as one,
        Limiter(RedisBackend.from_url(url, namespace=f"{namespace}-other")) as other,
    ):
        token = (await one.pre_commit(ALICE)).token()
        with pytest.raises(ValueError, match="store"):
            await other.settle_success(token, 1)
        assert await one.settle_success(token, 1) is True
