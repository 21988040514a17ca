"""B53: through redis-py's Sentinel client, over a failover, and what a failover costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis

from earmark import (
    BackendUnavailable,
    Limiter,
    Limits,
    RateLimited,
    RedisBackend,
    Reservation,
    Scope,
)
from tests.redis.proxy import Proxy
from tests.servers import (
    AT_ONCE,
    HOST,
    RedisServer,
    Sentinel,
    cut_replication,
    eventually,
    follows,
    redis_server,
    replicate,
    sentinel,
    told,
)
from tests.sites import limiter_at, master_of
from tests.versions import OLDEST, program_of

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 30


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@asynccontextmanager
async def through(group: Sentinel, **options: Any) -> AsyncIterator[Limiter]:
    """A limiter that asks the sentinel who is the master."""
    where = f"sentinel {group.port} {group.name}"
    async with limiter_at(where, **{"on_outage": "closed", **options}) as limiter:
        yield limiter


def there(server: RedisServer) -> Limiter:
    """A limiter on one side of a partition."""
    return Limiter(RedisBackend.from_url(server.url, on_outage="closed"))


async def reached(limiter: Limiter, scope: Scope) -> None:
    """Wait until the store can be reached, and is owed nothing."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                await limiter.peek(scope)
            except BackendUnavailable:
                continue
            if limiter.health().available and not limiter.health().owed:
                return


async def until_refused(limiter: Limiter, scope: Scope) -> list[Reservation]:
    """All that is admitted now."""
    admitted: list[Reservation] = []
    while True:
        try:
            admitted.append(await limiter.pre_commit(scope, tokens=100))
        except RateLimited:
            return admitted


async def until_unavailable(limiter: Limiter, scope: Scope) -> None:
    """Ask until the store takes nothing."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                reservation = await limiter.pre_commit(scope)
            except BackendUnavailable:
                return
            await reservation.close_reserved_only()


async def test_b53_after_a_failover_the_next_calls_reach_the_new_master() -> None:
    """What was replicated still counts, what is settled over the failover counts once."""
    scope = Scope("alice", Limits(rpd=100, tpd=10_000, concurrency=5))
    with sentinel() as group:
        async with through(group) as limiter:
            first = await limiter.pre_commit(scope, tokens=500)
            second = await limiter.pre_commit(scope, tokens=700)
            await first.settle_success(100)
            group.replicate()
            group.fail_over()
            assert await second.settle_success(300) is True  # now, or owed
            await reached(limiter, scope)
            third = await limiter.pre_commit(scope, tokens=50)
            (status,) = await limiter.peek(scope)
            assert status["requests"].used == 3
            assert status["tokens"].used == 100 + 300 + 50
            assert status["concurrency"].used == 1
            assert await third.cancel() is True
            with group.master.client() as new:
                assert all(new.ttl(key) > 0 for key in new.scan_iter("earmark:*"))


async def test_a_sentinel_that_knows_no_master_is_an_outage() -> None:
    """B52: the master is down, and nobody can take its place; then it is there again, and then the sentinel goes."""
    scope = Scope("alice", Limits(rpd=100))
    with sentinel() as group:
        async with through(group) as limiter:
            held = await limiter.pre_commit(scope)
            group.replica.kill()
            group.master.kill()
            await until_unavailable(limiter, scope)
            assert await held.cancel() is True
            assert limiter.health().owed
            group.master.start()
            await reached(limiter, scope)
            group.close()
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(scope)
            assert not limiter.health().available


@pytest.mark.parametrize("lost", [1, 8])
async def test_a_failover_admits_once_more_what_was_not_replicated(lost: int) -> None:
    """B53: so many requests and slots, and no more; a settlement that the old master took with it is undone."""
    scope = Scope("alice", Limits(rpd=20, tpd=10_000, concurrency=20))
    with sentinel() as group:
        async with through(group) as limiter:
            kept = [await limiter.pre_commit(scope, tokens=100) for _ in range(20 - lost)]
            group.replicate()
            group.cut()
            gone = await until_refused(limiter, scope)
            assert len(gone) == lost
            assert await kept[0].settle_success(300) is True
            group.fail_over()
            await reached(limiter, scope)
            again = await until_refused(limiter, scope)
            assert len(again) == lost  # the measured overshoot: 20 + lost were admitted of 20
            (status,) = await limiter.peek(scope)
            assert status["requests"].used == 20
            assert status["tokens"].used == 20 * 100  # the 200 more of that settlement are lost
            assert status["concurrency"].used == 20  # its slot is held until its lease ends
            assert [await one.settle_success(50) for one in gone] == [False] * lost
            for one in [*kept[1:], *again]:
                assert await one.settle_success(50) is True
            (status,) = await limiter.peek(scope)
            assert status["tokens"].used == 100 + 19 * 50
            assert status["concurrency"].used == 1


@asynccontextmanager
async def detour(group: Sentinel) -> AsyncIterator[tuple[Limiter, Proxy]]:
    """A limiter that has a proxy before the first master, and a straight way to the second."""
    first = group.master.port
    async with Proxy(group.master) as way:

        def remap(port: int) -> int:
            return way.port if port == first else port

        async with (
            master_of(group.port, group.name, remap) as client,
            Limiter(RedisBackend(client, timeout=20, on_outage="closed")) as limiter,
        ):
            await limiter.peek(Scope("nobody", Limits(rpd=1)))
            yield limiter, way


@pytest.mark.parametrize("kept", [True, False])
async def test_a_master_dies_with_the_replies_of_a_round_trip(kept: bool) -> None:
    """B53, R9: whether its replica had heard of it or not, all is sent again to the new master, and counts once."""
    scope = Scope("alice", Limits(rpd=100, tpd=10_000, concurrency=5))
    with sentinel() as group:
        async with detour(group) as (limiter, way):
            first, second = [await limiter.pre_commit(scope, tokens=500) for _ in range(2)]
            await asyncio.gather(limiter.peek(scope), limiter.peek(scope))  # nobody is alone
            group.replicate()
            if not kept:
                group.cut()
            fault = way.fault("hold reply", b" reserve ")
            asked = asyncio.gather(
                limiter.pre_commit(scope, tokens=300),
                first.settle_success(70),
                second.cancel(),
            )
            await fault.happened()
            assert [verb in way.requests[-1] for verb in (b"settle", b"cancel")] == [True] * 2
            if kept:
                group.replicate()
            await asyncio.to_thread(group.fail_over)
            await way.cut()
            third, settled, cancelled = await asked
            assert (third.degraded, settled, cancelled) == (False, True, True)
            assert await used(limiter, scope) == [2, 70 + 300, 1]
            assert await third.settle_success(50) is True
            assert await used(limiter, scope) == [2, 70 + 50, 0]
            assert limiter.health().available
            assert limiter.health().admitted_without_store == 0


async def used(limiter: Limiter, scope: Scope) -> list[int]:
    """Requests, tokens and slots."""
    (status,) = await limiter.peek(scope)
    return [limit.used for limit in status.limits]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_master_that_lives_on_behind_a_partition(guarded: bool) -> None:
    """B53: each side admits the whole of what was left; a master that needs its replica soon takes nothing."""
    await partition(guarded=guarded)


def needs_more(master: RedisServer) -> bool:
    """Whether a master has too few replicas to write."""
    with master.client() as client:
        try:
            client.set("written-alone", "", px=1)
        except redis.ResponseError as error:
            return "NOREPLICAS" in str(error)
    return False


async def test_what_needs_its_replica_takes_all_the_same_before_7_0() -> None:
    """B53: Redis 6.2 does not hold scripts to `min-replicas-to-write`: each side admits the whole of what was left."""
    await partition(guarded=True, program=program_of(OLDEST))


async def partition(*, guarded: bool, program: str | None = None) -> None:
    """Both sides of it, where the master is told to need its replica or not."""
    refuses = guarded and program is None
    scope, small = Scope("alice", Limits(rpd=10_000_000)), Scope("bob", Limits(rpd=10))
    settings = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1") if guarded else ()
    with (
        redis_server(*AT_ONCE, *settings, program=program) as master,
        redis_server("--replicaof", HOST, str(master.port), program=program) as replica,
    ):
        eventually(lambda: follows(replica), "the replica does not follow")
        async with there(master) as old, there(replica) as new:
            await reached(old, scope)
            held = [await old.pre_commit(small) for _ in range(4)]
            replicate(master)
            cut_replication(master, replica)
            told(replica, "REPLICAOF", "NO", "ONE")
            if guarded:
                eventually(lambda: needs_more(master), "the master does not miss its replica")
            if refuses:
                await until_unavailable(old, scope)
                with pytest.raises(BackendUnavailable):
                    await old.pre_commit(small)
                assert "NOREPLICAS" in (old.health().reason or "")
                told(master, "CONFIG", "SET", "min-replicas-to-write", 0)  # to let go of all below
                await reached(old, small)
            else:
                held += await until_refused(old, small)
                assert len(held) == 10
            held_there = await until_refused(new, small)
            assert len(held_there) == 6
            for one in [*held, *held_there]:
                assert await one.abandon() is True
