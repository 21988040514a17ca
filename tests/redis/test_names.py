"""R9, R13: names that clients choose and ids that the library makes share a server, and none is taken for another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from earmark import Limiter, Limits, RedisBackend, RequestIdConflict, Reservation, Scope
from earmark.testing import ManualClock
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

NOW: Final = 1_000.0
VICTIM: Final = Scope("victim", Limits(rpm=90, concurrency=50))
MALLORY: Final = Scope("mallory", Limits(rpm=90, concurrency=50))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def two(shared_redis: RedisServer, namespace: str) -> AsyncIterator[tuple[Limiter, Limiter]]:
    """Two limiters that share nothing but the server."""
    limiters = [
        Limiter(
            RedisBackend.from_url(
                shared_redis.url, namespace=namespace, clock=ManualClock(NOW), timeout=20
            )
        )
        for _ in range(2)
    ]
    yield limiters[0], limiters[1]
    for limiter in limiters:
        await limiter.aclose()


async def used(limiter: Limiter) -> list[int]:
    """Requests of the victim and of the other, and their slots."""
    seen = await limiter.peek(VICTIM, MALLORY)
    return [status[metric].used for metric in ("requests", "concurrency") for status in seen]


async def taken_ahead(limiter: Limiter, count: int) -> dict[str, Reservation]:
    """Reservations under names that the library will give to others: some of them soon."""
    first = await limiter.pre_commit(MALLORY)
    nonce, _, number = first.request_id.partition(".")
    await first.cancel()
    names = [f"{nonce}.{int(number) + count + ahead}" for ahead in range(count)]
    return {name: await limiter.pre_commit(MALLORY, request_id=name) for name in names}


async def test_r9_the_next_ids_of_the_library_can_be_chosen_by_anybody(
    two: tuple[Limiter, Limiter],
) -> None:
    """R9: nobody is refused for it, nor given what is not theirs; each resolves its own, by handle and by token."""
    one, other = two
    chosen = await taken_ahead(one, 20)
    plain = [await one.pre_commit(VICTIM) for _ in range(30)]
    twins = [handle for handle in plain if handle.request_id in chosen]
    assert len(twins) >= 10, "none of the names that were chosen has come"
    assert await used(one) == [30, 20, 30, 20]
    adopted: list[Reservation] = []
    for handle in twins:
        # The library's own id is meant, in this process and in another one.
        assert await one.pre_commit(VICTIM, request_id=handle.request_id) is handle
        found = await other.pre_commit(VICTIM, request_id=handle.request_id)
        assert (found.request_id, found.scopes) == (handle.request_id, (VICTIM,))
        adopted.append(found)
        with pytest.raises(RequestIdConflict):
            await one.pre_commit(MALLORY, request_id=handle.request_id)
    assert await used(one) == [30, 20, 30, 20]
    for number, handle in enumerate(twins):
        if number % 2:
            assert await other.cancel(handle.token()) is True
        else:
            assert await handle.cancel() is True
    assert not any([await found.cancel() for found in adopted])
    left = 30 - len(twins)
    assert await used(one) == [left, 20, left, 20]
    for handle in twins:  # the id is over, and the name is still what it was
        name = handle.request_id
        assert await one.pre_commit(MALLORY, request_id=name) is chosen[name]
    for handle in chosen.values():
        assert await handle.renew() is True
        assert await handle.cancel() is True
    assert await used(one) == [left, 0, left, 0]
    for handle in plain:
        await handle.close_reserved_only()


async def test_r9_an_id_can_be_asked_for_again_when_it_is_over(
    two: tuple[Limiter, Limiter],
) -> None:
    """R9: then it is a name like any other, with a reservation of its own, which another process adopts by it."""
    one, other = two
    first = await one.pre_commit(VICTIM)
    name = first.request_id
    assert await first.settle_success(0) is True
    second = await one.pre_commit(MALLORY, request_id=name)
    assert second.request_id == name
    assert await used(one) == [1, 1, 0, 1]
    assert await first.cancel() is False
    third = await other.pre_commit(MALLORY, request_id=name)
    assert await third.renew() is True
    assert await third.cancel() is True
    assert await second.cancel() is False
    assert await used(one) == [1, 0, 0, 0]


async def test_r9_whoever_is_given_the_id_that_it_chose_has_one_reservation(
    two: tuple[Limiter, Limiter],
) -> None:
    """R9: a caller may guess what its own reservation will be called."""
    one, other = two
    first = await one.pre_commit(MALLORY)
    nonce, _, number = first.request_id.partition(".")
    guesses = [f"{nonce}.{int(number) + ahead}" for ahead in range(1, 4)]
    chosen = [await one.pre_commit(MALLORY, request_id=name) for name in guesses]
    assert len(set(chosen)) == len(guesses)
    for name, handle in zip(guesses, chosen, strict=True):
        assert await one.pre_commit(MALLORY, request_id=name) is handle
        found = await other.pre_commit(MALLORY, request_id=name)
        assert await found.cancel() is True
        assert await handle.cancel() is False
    assert await used(one) == [0, 1, 0, 1]
    await first.cancel()
