"""A story that is told through a backend, in which every command of every script is used, with numbers at the edges."""

from __future__ import annotations

import asyncio
from typing import Final

import fakeredis
import pytest

from earmark import Limiter, Limits, RateLimited, RedisBackend, RequestIdConflict, Scope
from earmark.backends import Backend
from earmark.testing import ManualClock

START: Final = 1_700_000_000.123457  # whole microseconds since the epoch have 16 digits

ALICE: Final = Scope(
    "alice:ü", Limits(rpm=5, tpm=2**53 - 1, concurrency=2, algorithm="sliding_window")
)
TEAM: Final = Scope("team", Limits(tpd=10_000, algorithm="token_bucket"))
MODEL: Final = Scope("model", Limits(tph=5_000, rph=1_000), enforce=False)
SCOPES: Final = (ALICE, TEAM, MODEL)


async def tell(backend: Backend, clock: ManualClock) -> list[object]:
    """Send every message under every algorithm: names and slots, refusals, resets, leases that lapse.

    Returns all that was answered.
    """
    told: list[object] = []
    async with Limiter(backend) as limiter:

        async def look() -> None:
            told.extend(repr(limit) for one in await limiter.peek(*SCOPES) for limit in one.limits)

        first = await limiter.pre_commit(*SCOPES, tokens=4_321, request_id="first")
        clock.advance(7.654321)
        second = await limiter.pre_commit(*SCOPES, tokens=4_321)
        told += [repr(first.statuses), repr(second.statuses), await second.renew()]
        with pytest.raises(RateLimited) as refused:
            await limiter.pre_commit(*SCOPES, tokens=4_321)
        told.append(repr(refused.value.denials))
        await look()
        assert await limiter.pre_commit(*SCOPES, tokens=4_321, request_id="first") is first
        with pytest.raises(RequestIdConflict):
            await limiter.pre_commit(ALICE, request_id="first")
        told += [await second.settle_success(1_234), await second.cancel()]
        for _ in range(2):
            await limiter.add_tokens_post_stream(MODEL, 2**53 - 1, request_id="added")
        await limiter.add_tokens_post_stream("team", 5)
        clock.advance(61.000001)
        await look()
        told.append(await first.cancel())
        held = await limiter.pre_commit(ALICE, TEAM, tokens=1_000, lease=30)
        clock.advance(29.999999)
        told.append(await held.renew())
        clock.advance(30)
        told += [await held.renew(), await held.settle_success(2_345)]
        await limiter.reset(TEAM)
        await look()
        clock.advance(86_400)
        await look()
    return told


async def told_by_a_double() -> list[object]:
    """The story as fakeredis tells it."""
    clock = ManualClock(START)
    return await tell(RedisBackend(fakeredis.FakeAsyncRedis(), clock=clock), clock)


if __name__ == "__main__":
    for answer in asyncio.run(told_by_a_double()):
        print(answer)  # noqa: T201 - for whoever compares
