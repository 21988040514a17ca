"""With `local_share="auto"` the processes count one another, so that an outage admits about one limit (C57).

Each backend here stands for a process: what it gives out locally is its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from earmark import Limits, RateLimited, RedisBackend, Scope
from earmark.backends.protocol import Desk
from earmark.backends.redis.fallback import LocalShare
from earmark.backends.redis.replicas import Replicas
from earmark.clock import injected
from earmark.core.hold import Hold
from earmark.testing import ManualClock
from tests.redis.proxy import LEASE, PATIENT, Proxy, Way, proxied, until
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

TENS: Final = Scope("key", Limits(rpd=10))
NINETIES: Final = Scope("other", Limits(rpd=90))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
async def proxy(shared_redis: RedisServer) -> AsyncIterator[Proxy]:
    """The way to the server."""
    async with Proxy(shared_redis) as proxy:
        yield proxy


@asynccontextmanager
async def processes(
    server: RedisServer, namespace: str, proxy: Proxy, number: int
) -> AsyncIterator[list[Way]]:
    """So many, each of which has been heard of."""
    async with AsyncExitStack() as stack:
        ways: list[Way] = []
        for alive in range(1, number + 1):
            way = proxied(server, namespace, proxy, local_share="auto", timeout=PATIENT)
            ways.append(await stack.enter_async_context(way))
            await until(lambda alive=alive: counts(ways[-1]) == alive)  # type: ignore[misc]
        yield ways


def counts(way: Way) -> int:
    """How many processes one knows of, by what it says of the worst case."""
    words = way.limiter.health().worst_case.split()
    return int(words[2]) if words[0] == "each" else 1


async def pass_time(ways: Sequence[Way], seconds: float) -> None:
    """On the clocks of all of them."""
    for way in ways:
        way.clock.advance(seconds)


def are_heard_again(ways: Sequence[Way], namespace: str) -> bool:
    """Let some time pass; whether all have been heard of in the last half of a lease."""
    for way in ways:
        way.clock.advance(LEASE / 20)
    since = ways[0].clock() + LEASE / 2
    with ways[0].server.client() as client:
        return int(client.zcount(f"{namespace}:n", since * 1_000_000, "+inf")) == len(ways)


async def admitted(way: Way, scope: Scope) -> int:
    """How many requests of a hundred one admits."""
    number = 0
    for _ in range(100):
        try:
            await (await way.limiter.pre_commit(scope)).close_reserved_only()
        except RateLimited:
            return number
        number += 1
    return number


async def test_c57_an_outage_admits_one_limit(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """Three processes give out a third each: 3 of 10, and 30 of 90."""
    async with processes(shared_redis, namespace, proxy, 3) as ways:
        await until(
            lambda: are_heard_again(ways, namespace) and [counts(way) for way in ways] == [3, 3, 3]
        )
        assert "1/3 of every amount" in ways[0].limiter.health().worst_case
        await proxy.refuse()
        assert [await admitted(way, TENS) for way in ways] == [3, 3, 3]
        assert [await admitted(way, NINETIES) for way in ways] == [30, 30, 30]
        await proxy.accept()
        for way in ways:
            await way.delivered()


async def test_who_has_gone_counts_for_two_leases_more(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """R10: one that says nothing any more is forgotten; its key has a TTL from the start (B54)."""
    async with processes(shared_redis, namespace, proxy, 2) as (one, other):
        await other.limiter.aclose()
        key = f"{namespace}:n"
        with shared_redis.client() as client:
            assert client.zcard(key) == 2
            assert client.pttl(key) > 0
            await until(lambda: are_heard_again([one], namespace))
            assert counts(one) == 2
            gone_at = one.clock()
            await until(lambda: are_heard_again([one], namespace) and counts(one) == 1)
            assert one.clock() - gone_at <= 2 * LEASE
            assert client.zcard(key) == 1


async def test_during_an_outage_the_last_count_holds(
    shared_redis: RedisServer, namespace: str, proxy: Proxy
) -> None:
    """Who cannot be heard is not gone; afterwards all are heard of again."""
    async with processes(shared_redis, namespace, proxy, 2) as ways:
        await until(
            lambda: are_heard_again(ways, namespace) and [counts(way) for way in ways] == [2, 2]
        )
        await proxy.refuse()
        assert await admitted(ways[0], TENS) == 5
        await pass_time(ways, 3 * LEASE)
        assert [counts(way) for way in ways] == [2, 2]
        await proxy.accept()
        for way in ways:
            await way.delivered()
        await until(lambda: are_heard_again(ways, namespace))
        await until(lambda: [counts(way) for way in ways] == [2, 2])


@pytest.mark.parametrize(
    "options", [{"local_share": 0.5}, {"local_share": "auto", "on_outage": "closed"}]
)
async def test_nobody_is_counted_without_need(
    shared_redis: RedisServer, namespace: str, proxy: Proxy, options: dict[str, str]
) -> None:
    """A fixed share needs no count, and who admits nothing locally gives out no share."""
    async with proxied(shared_redis, namespace, proxy, timeout=PATIENT, **options) as way:
        await pass_time([way], LEASE)
        await way.limiter.peek(TENS)
        assert not proxy.asked(b" present ")


def test_a_share_is_a_number_or_auto() -> None:
    """Another word is a mistake that names what is right."""
    automatic: Any = "automatic"
    with pytest.raises(ValueError, match="or 'auto', not 'automatic'"):
        RedisBackend.from_url("redis://127.0.0.1:1", local_share=automatic)


def local_share() -> LocalShare:
    """What gives out the whole, until it is divided."""
    return LocalShare("auto", injected(ManualClock()), 60_000_000, Desk())


@pytest.mark.parametrize(
    ("heard", "parts"),
    [
        ([(0, 1), (20, 2), (40, 3)], [1, 2, 3]),
        ([(0, 3), (20, 1), (40, 2), (59, 1)], [3, 3, 3, 3]),  # a server that came back empty
        ([(0, 3), (20, 1), (80, 2)], [3, 3, 2]),
        ([(0, 3), (200, 1), (220, 3), (260, 2)], [3, 3, 3, 3]),  # after a long outage
        ([(0, 3), (59, 3), (60, 1), (119, 1), (120, 1)], [3, 3, 3, 3, 1]),
        ([(0, 1), (1, 1)], [1, 1]),
    ],
)
def test_a_smaller_count_is_believed_after_a_lease(
    heard: list[tuple[float, int]], parts: list[int]
) -> None:
    """A store that has forgotten everybody does not have each process give out the whole."""
    local = local_share()
    replicas = Replicas(local, 60.0)
    seen: list[int] = []
    for now, alive in heard:
        replicas.counted(alive, now)
        words = local.worst_case().split()
        seen.append(int(words[2]) if words[0] == "each" else 1)
    assert seen == parts


def test_r17_what_was_used_stays_used() -> None:
    """A part that grows or shrinks during an outage forgives nothing."""
    local = local_share()
    local.divide(2)
    for number in range(8):
        if number == 3:
            local.divide(1)
        hold = Hold()
        hold.id, hold.request_id, hold.lease_us = number, None, None
        hold.scopes, hold.asks = (TENS,), {}
        admitted = local.reserve(hold) is hold
        assert admitted
    local.divide(5)
    hold = Hold()
    hold.id, hold.request_id, hold.lease_us = 100, None, None
    hold.scopes, hold.asks = (TENS,), {}
    assert local.reserve(hold) is None
