"""R16, R19 over a cluster: a loop ends, and its lines to the masters end together, when none of them has more to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from earmark.backends.redis import line
from tests.cluster import spread
from tests.redis.wire import Wires, call_after, run_and_leave, wires
from tests.servers import RedisCluster, redis_cluster

__all__ = ["wires"]

LIMITS: Final = Limits(rpd=1_000, tpd=10**9, concurrency=50)

# So many turns of the loop, lines that look at every turn would take to end.
TURNS: Final = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """One whose masters these tests kill; each is there again at the end."""
    with redis_cluster() as cluster:
        yield cluster


def limiter_on(cluster: RedisCluster, namespace: str, **options: Any) -> Limiter:
    return Limiter(
        RedisBackend.from_url(
            cluster.url, cluster=True, namespace=namespace, on_outage="closed", **options
        )
    )


def scopes_on(cluster: RedisCluster, namespace: str) -> tuple[Scope, ...]:
    """One on each master."""
    return tuple(Scope(key, LIMITS) for key in spread(cluster, f"{namespace}-"))


async def used(limiter: Limiter, scopes: tuple[Scope, ...]) -> list[list[int]]:
    """What every limit has used, and the limiter is closed, with what was owed delivered."""
    async with limiter:
        return [[one.used for one in scope.limits] for scope in await limiter.peek(*scopes)]


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are ending look at every turn of the loop whether they may."""
    monkeypatch.setattr(line, "_END_PAUSE", 0.0)
    monkeypatch.setattr(line, "_LONGEST_END_PAUSE", 0.0)


@pytest.mark.usefixtures("prompt")
def test_r16_what_follows_when_a_loop_ends_finds_the_lines_that_it_needs(
    cluster: RedisCluster, namespace: str, wires: Wires
) -> None:
    """R16: a name is resolved long after all else is done there, and only then are the other masters to be told."""
    limiter = limiter_on(cluster, namespace, timeout=20)
    scopes = scopes_on(cluster, namespace)
    kept: list[object] = []

    async def never_closes() -> None:
        settled = await limiter.pre_commit(*scopes, tokens=300, request_id="q")
        begun, again = wires.hold("before"), wires.hold("before")
        kept.append(asyncio.create_task(settled.settle_success(120)))
        await begun.reached.wait()
        call_after(TURNS, again.reached.is_set, again.open)

    run_and_leave(never_closes)
    assert limiter.health().owed == 0
    assert asyncio.run(used(limiter, scopes)) == [[1, 120, 0]] * 3


def test_r16_lines_that_are_begun_as_a_loop_ends_are_waited_for(
    cluster: RedisCluster, namespace: str
) -> None:
    """R16: the resolution of a name is the first that this loop sends; what follows goes to masters it never asked."""
    limiter = limiter_on(cluster, namespace, timeout=20)
    scopes = scopes_on(cluster, namespace)
    kept: list[object] = []

    async def take() -> Reservation:
        async with limiter:
            return await limiter.pre_commit(*scopes, tokens=300, request_id="q")

    async def settle_and_leave() -> None:
        kept.append(asyncio.create_task(held.settle_success(120)))

    held = asyncio.run(take())
    run_and_leave(settle_and_leave)
    assert limiter.health().owed == 0
    assert asyncio.run(used(limiter, scopes)) == [[1, 120, 0]] * 3


@pytest.mark.usefixtures("prompt")
def test_r19_a_loop_that_ends_begins_no_line_to_a_master_that_is_lost(
    cluster: RedisCluster, namespace: str, wires: Wires
) -> None:
    """R19: its line goes at once, and what it is owed is for another loop, also where others are told things still."""
    limiter = limiter_on(cluster, namespace, timeout=0.5)
    here, lost, there = scopes_on(cluster, namespace)
    kept: list[object] = []

    async def never_closes() -> None:
        settled, held = await limiter.pre_commit(here, there), await limiter.pre_commit(lost)
        cluster.masters[1].kill()
        assert await held.settle_success(120) is True
        assert limiter.health().owed == 1
        begun, again = wires.hold("before"), wires.hold("before")
        kept.append(asyncio.create_task(settled.settle_success(120)))
        await begun.reached.wait()
        call_after(TURNS, again.reached.is_set, again.open)

    try:
        run_and_leave(never_closes)
        assert limiter.health().owed == 1
    finally:
        cluster.masters[1].start()
    asyncio.run(limiter.aclose())
    assert limiter.health().owed == 0
