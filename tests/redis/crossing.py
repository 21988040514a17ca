"""Limiters on a cluster, one of which has a proxy before each master, by the `address_remap` of redis-py's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self

from earmark import Limiter, Limits, RedisBackend, Scope
from earmark.testing import ManualClock
from tests.cluster import Look, client, slot_of, spread
from tests.redis.proxy import LEASE, Proxy, until
from tests.servers import HOST, RedisCluster

LIMITS: Final = Limits(rpd=10, tpd=1_000, concurrency=2)

NOTHING: Final = {"requests": 0, "tokens": 0, "concurrency": 0}


class Crossing:
    """Three scopes, one on each master, and two limiters: one that may lose its way, and one that goes straight.

    Attributes:
        scopes: in the order of the masters.
        ways: the proxies before them, in that order; nothing, where both go straight.
    """

    def __init__(
        self, cluster: RedisCluster, namespace: str, ways: list[Proxy], **options: Any
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.ways = ways
        self.look = Look(cluster)
        self.keys = spread(cluster, f"{namespace}-")
        self.scopes = tuple(Scope(key, LIMITS) for key in self.keys)
        self.clock = ManualClock(1_000_000.0)
        settings: dict[str, Any] = {"namespace": namespace, "clock": self.clock, "lease": LEASE}
        options = {"timeout": 20.0, "on_outage": "closed", **options}
        self.client = client(cluster, address_remap=self._remap if ways else None)
        self.backend = RedisBackend(self.client, **settings, **options)
        self.limiter = Limiter(self.backend)
        self.straight = Limiter(
            RedisBackend.from_url(cluster.url, cluster=True, timeout=20.0, **settings)
        )

    def _remap(self, address: tuple[str, int]) -> tuple[str, int]:
        for master, way in zip(self.cluster.masters, self.ways, strict=True):
            if address == (HOST, master.port):
                return HOST, way.port
        return address

    async def used(self) -> list[Mapping[str, int]]:
        """What is used of every metric of each scope, by its master."""
        return [
            {limit.limit.metric: limit.used for limit in status.limits}
            for status in await self.straight.peek(*self.scopes)
        ]

    async def delivered(self) -> None:
        """Wait until every master can be reached and is owed nothing."""
        await until(lambda: self.limiter.health().available and not self.limiter.health().owed)

    def under(self, kind: str) -> Iterator[str]:
        """The keys of one kind that are there."""
        for key in self.look.scan_iter(f"{self.namespace}{{*}}:{kind}:*"):
            yield key.decode()

    def check_ttls(self) -> None:
        """Nothing lives for ever (R14)."""
        keys = list(self.look.scan_iter(f"{self.namespace}{{*"))
        assert all(self.look.pttl(key) != -1 for key in keys)

    async def check(self, *used: Mapping[str, int]) -> None:
        """So much is used of each scope, nothing lives for ever, and one lease later no slot is held."""
        await self.delivered()
        assert await self.used() == [{**NOTHING, **one} for one in used]
        assert self.limiter.health().lost == 0
        self.check_ttls()
        self.clock.advance(LEASE)
        assert [one["concurrency"] for one in await self.used()] == [0, 0, 0]

    async def __aenter__(self) -> Self:
        """Connect, and have every master know all scripts."""
        for limiter in (self.limiter, self.straight):
            reservation = await limiter.pre_commit(*self.scopes)
            await reservation.cancel()
        self.forget()
        return self

    def forget(self) -> None:
        """Begin with nothing."""
        for key in self.look.scan_iter(f"{self.namespace}{{*"):
            self.look.delete(key)

    async def __aexit__(self, *_: object) -> None:
        await self.limiter.aclose()
        await self.straight.aclose()


@asynccontextmanager
async def crossing(
    cluster: RedisCluster, namespace: str, *, proxied: bool = True, **options: Any
) -> AsyncIterator[Crossing]:
    """Everything on a cluster that is not changed by it."""
    async with AsyncExitStack() as stack:
        masters = cluster.masters if proxied else []
        ways = [await stack.enter_async_context(Proxy(master)) for master in masters]
        yield await stack.enter_async_context(Crossing(cluster, namespace, ways, **options))


def name_on(cluster: RedisCluster, scope: Scope, prefix: str) -> str:
    """A name for a reservation that is on the master of a scope, on another slot."""
    home = cluster.owner(slot_of(scope.key)).port
    number = 0
    while cluster.owner(slot_of(f"{prefix}{number}")).port != home:
        number += 1
    return f"{prefix}{number}"
