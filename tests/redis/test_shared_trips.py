"""Two processes whose callers share round trips, on a server, a cluster and through a Sentinel (R9, C55).

A round trip carries the messages of many callers. Where its reply is lost all of them are sent again, and each counts
once, whatever the other process does meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from earmark.testing import ManualClock
from tests.redis.crossing import crossing
from tests.redis.others import OtherProcess, other_process
from tests.redis.proxy import Fault, Kind, Proxy, until
from tests.servers import RedisCluster, RedisServer, Sentinel, sentinel
from tests.sites import limiter_at, master_of

pytestmark = pytest.mark.anyio

NOW: Final = 1_000_000.0  # no window ends while a test runs
WIDE: Final[dict[str, Any]] = {"rpd": 1_000, "tpd": 1_000_000, "concurrency": 200}

CALLERS: Final = 20
OTHERS: Final = 30
HELD: Final = 50
USED: Final = 7


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="module")
def group() -> Iterator[Sentinel]:
    """A pair that is well."""
    with sentinel() as group:
        yield group


@dataclass
class Site:
    """Where both processes are.

    Attributes:
        limiter: this process's, which may lose its way.
        straight: another one, which may not.
        ways: the proxies before every master.
        keys: of a scope on each master.
        other: the other process.
    """

    limiter: Limiter
    straight: Limiter
    ways: list[Proxy]
    keys: list[str]
    other: OtherProcess


@asynccontextmanager
async def on_server(server: RedisServer, namespace: str) -> AsyncIterator[Site]:
    """A proxy before a server."""
    settings: dict[str, Any] = {"namespace": namespace, "clock": ManualClock(NOW)}
    where = f"server {server.url}"
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(Proxy(server))
        limiter = await stack.enter_async_context(
            limiter_at(f"server {way.url}", on_outage="closed", **settings)
        )
        straight = await stack.enter_async_context(limiter_at(where, **settings))
        other = await stack.enter_async_context(other_process(where, namespace, now=NOW))
        yield Site(limiter, straight, [way], ["k"], other)


@asynccontextmanager
async def on_cluster(cluster: RedisCluster, namespace: str) -> AsyncIterator[Site]:
    """A proxy before each master."""
    where = f"cluster {cluster.url}"
    async with (
        crossing(cluster, namespace) as cross,
        other_process(where, namespace, now=cross.clock()) as other,
    ):
        yield Site(cross.limiter, cross.straight, cross.ways, cross.keys, other)


@asynccontextmanager
async def through_sentinel(group: Sentinel, namespace: str) -> AsyncIterator[Site]:
    """A proxy before the master that the sentinel tells of."""
    settings: dict[str, Any] = {"namespace": namespace, "clock": ManualClock(NOW), "timeout": 20}
    where = f"sentinel {group.port} {group.name}"
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(Proxy(group.master))
        client = await stack.enter_async_context(
            master_of(group.port, group.name, lambda _: way.port)
        )
        backend = RedisBackend(client, on_outage="closed", **settings)
        limiter = await stack.enter_async_context(Limiter(backend))
        straight = await stack.enter_async_context(limiter_at(where, **settings))
        other = await stack.enter_async_context(other_process(where, namespace, now=NOW))
        yield Site(limiter, straight, [way], ["k"], other)


@pytest.fixture(params=["server", "cluster", "sentinel"])
async def site(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[Site]:
    """One of the three; every connection is made, every script is known, and nobody was alone."""
    made: Any = {
        "server": lambda: on_server(request.getfixturevalue("shared_redis"), namespace),
        "cluster": lambda: on_cluster(request.getfixturevalue("shared_cluster"), namespace),
        "sentinel": lambda: through_sentinel(request.getfixturevalue("group"), namespace),
    }[request.param]()
    async with made as site:
        for limiter in (site.limiter, site.straight):
            for key in site.keys:
                scope = Scope(key, Limits(**WIDE))
                two = await asyncio.gather(limiter.pre_commit(scope), limiter.pre_commit(scope))
                await asyncio.gather(*(one.cancel() for one in two))
        assert await site.other("work", site.keys, WIDE, 0, 0, 1) == [True]
        yield site


async def test_a_batch_whose_reply_is_lost_is_sent_again_and_counts_once(site: Site) -> None:
    """R9, C55: of reserves and of settlements, each caller its own, while another process does the same."""
    scopes = [Scope(key, Limits(**WIDE)) for key in site.keys]
    for rounds, lose in enumerate((lost("cut before"), lost("cut after"), never), 1):
        site.other.tell("work", site.keys, WIDE, HELD, USED, OTHERS)
        await lose(site, scopes)
        assert await site.other.hear() == [True] * OTHERS
        await until(lambda: not site.limiter.health().owed)
        statuses = await site.straight.peek(*scopes)
        # One of the other process's went before.
        requests, tokens = rounds * (CALLERS + OTHERS) + 1, rounds * (CALLERS + OTHERS) * USED
        assert [[limit.used for limit in one.limits] for one in statuses] == (
            [[requests, tokens, 0]] * len(scopes)
        )
        assert site.limiter.health().lost == 0
        assert site.limiter.health().admitted_without_store == 0


def lost(kind: Kind) -> Callable[[Site, list[Scope]], Awaitable[None]]:
    """The connection of every master is cut on a batch of reserves, and on one of settlements."""

    async def lose(site: Site, scopes: list[Scope]) -> None:
        faults = lay(site, kind, b" reserve ")
        held = await take(site, scopes)
        assert all(fault.met.is_set() for fault in faults)
        assert carried(site, b" reserve ") == [[CALLERS, CALLERS]] * len(scopes)
        faults = lay(site, kind, b'"settle"')
        assert await asyncio.gather(*(one.settle_success(USED) for one in held)) == (
            [True] * len(held)
        )
        assert all(fault.met.is_set() for fault in faults)
        assert carried(site, b'"settle"') == [[CALLERS, CALLERS]] * len(scopes)

    return lose


async def never(site: Site, scopes: list[Scope]) -> None:
    """Every master has applied the settlements, and cannot be reached before it has said so: they are owed."""
    held = await take(site, scopes)
    faults = lay(site, "hold reply", b'"settle"')
    settling = [asyncio.create_task(one.settle_success(USED)) for one in held]
    for way, fault in zip(site.ways, faults, strict=True):
        await fault.happened()
        await way.refuse()
    assert await asyncio.gather(*settling) == [True] * len(held)
    assert site.limiter.health().owed == len(held)
    for way in site.ways:
        await way.accept()
    await until(lambda: site.limiter.health().available and not site.limiter.health().owed)


async def take(site: Site, scopes: list[Scope]) -> list[Reservation]:
    """So many at once of every scope."""
    return await asyncio.gather(
        *(site.limiter.pre_commit(scope, tokens=HELD) for scope in scopes for _ in range(CALLERS))
    )


def lay(site: Site, kind: Kind, on: bytes) -> list[Fault]:
    """A fault for the next request of this kind to each master."""
    for way in site.ways:
        way.requests.clear()
    return [way.fault(kind, on) for way in site.ways]


def carried(site: Site, what: bytes) -> list[list[int]]:
    """How many messages each of its round trips has carried to each master."""
    return [[one.count(what) for one in way.requests if what in one] for way in site.ways]
