"""R9, R5: a `pre_commit` by the id of a reservation that this process resolves at the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import anyio
import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, Reservation, Scope
from earmark.testing import ManualClock
from tests.redis.wire import MOMENTS, Wires, wires
from tests.servers import RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

NOW: Final = 1_000.0
KEY: Final = Scope("key", Limits(rpd=90, tpd=10_000, concurrency=1))
RESOLVERS: Final[dict[str, Callable[[Reservation], Awaitable[bool]]]] = {
    "settled": lambda handle: handle.settle_success(1),
    "closed": lambda handle: handle.close_reserved_only(),
    "cancelled": lambda handle: handle.cancel(),
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def limiter(shared_redis: RedisServer, namespace: str) -> AsyncIterator[Limiter]:
    """For each test, with a connection."""
    clock = ManualClock(NOW)
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, clock=clock, timeout=20, on_outage="closed"
    )
    async with Limiter(backend) as limiter:
        await (await limiter.pre_commit(KEY)).cancel()
        yield limiter


def ask(limiter: Limiter, **options: Any) -> Awaitable[Reservation]:
    """By the same name each time."""
    return limiter.pre_commit(KEY, tokens=10, request_id="job", **options)


async def holds_all_that_it_says(limiter: Limiter, handle: Reservation) -> None:
    """It is open, has the one slot, and its settlement counts."""
    assert (handle.state, dict(handle.held)) == ("open", {"requests": 1, "tokens": 10})
    assert await handle.renew() is True
    with pytest.raises(RateLimited):
        await limiter.pre_commit(KEY)
    before = (await limiter.peek(KEY))[0]["tokens"].used
    assert await handle.settle_success(3) is True
    (status,) = await limiter.peek(KEY)
    assert (status["tokens"].used, status["concurrency"].used) == (before - 7, 0)


@pytest.mark.parametrize("verb", RESOLVERS)
@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("wait", [None, 5.0], ids=["", "waiting"])
async def test_r9_who_asks_while_it_is_resolved_is_decided_afresh(
    limiter: Limiter, turns: int, verb: str, wait: float | None
) -> None:
    """R9: at each moment of the asking; the slot is free by then, and nobody is given what is over."""
    first = await ask(limiter)
    asking = asyncio.ensure_future(ask(limiter, wait=wait))
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await RESOLVERS[verb](first) is True
    second = await asking
    assert second is not first or second.state == verb
    if second is first:  # it was found before it was resolved
        second = await ask(limiter)
    await holds_all_that_it_says(limiter, second)


@pytest.mark.parametrize("by", ["handle", "token", "library's id"])
async def test_r9_it_was_resolved_on_another_loop_before_the_answer_is_heard(
    wires: Wires, limiter: Limiter, by: str
) -> None:
    """R9, R19: the store has said that it is open; by the time that is heard another thread has settled it."""
    name = None if by == "library's id" else "job"
    first = await limiter.pre_commit(KEY, tokens=10, request_id=name)
    name = first.request_id
    token = first.token() if by == "token" else None
    if token is not None:
        del first

    async def settle() -> bool:
        try:
            return await (
                first.settle_success(1) if token is None else limiter.settle_success(token, 1)
            )
        finally:
            await limiter.aclose()  # the line of this loop

    won: list[bool] = []
    thread = threading.Thread(target=lambda: won.append(asyncio.run(settle())))
    hold = wires.hold("applied")
    asking = asyncio.ensure_future(limiter.pre_commit(KEY, tokens=10, request_id=name))
    await hold.reached.wait()
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    assert won == [True]
    hold.open()
    second = await asking
    await holds_all_that_it_says(limiter, second)


async def test_r9_what_the_store_is_owed_is_over(limiter: Limiter) -> None:
    """R9: a settlement that the store has yet to hear of is one: its name is asked for again when that is delivered."""
    first = await ask(limiter)
    backend = limiter._backend
    assert isinstance(backend, RedisBackend)
    message = backend._messages.resolve(first._hold, "settle", {"tokens": 1}, {})
    backend.desk.handles.clear()  # as if it were concluded
    backend._outbox.add(message)  # and nobody woken
    second = await ask(limiter)
    await holds_all_that_it_says(limiter, second)
    assert await first.settle_success(5) is False


async def test_r9_a_finalisers_note_that_is_done_meanwhile(wires: Wires, limiter: Limiter) -> None:
    """R9, R15: the handle was dropped, and its abandonment crosses who asks by its name."""
    for moment in MOMENTS[:3]:
        first = await ask(limiter)
        with pytest.warns(ResourceWarning):
            del first
        hold = wires.hold(moment)
        tidying = asyncio.ensure_future(limiter.peek(KEY))
        await asyncio.sleep(0)
        asking = asyncio.ensure_future(ask(limiter))
        await asyncio.sleep(0)
        hold.open()
        await tidying
        await holds_all_that_it_says(limiter, await asking)
