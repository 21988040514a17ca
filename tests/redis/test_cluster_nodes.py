"""Masters of a cluster that die, freeze or give way to a replica: the others go on (B52, B53)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis.asyncio

from earmark import BackendUnavailable, EarmarkError, Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis.keys import tag_of
from tests.cluster import Look, slot_of, spread
from tests.redis.proxy import until
from tests.redis.rights import PASSWORD, rights
from tests.servers import HOST, RedisCluster, RedisServer, eventually, redis_cluster, told

pytestmark = pytest.mark.anyio


LIMITS: Final = Limits(rpd=1_000, tpd=10**9, concurrency=50)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """One whose masters these tests freeze and kill; each is there again at the end."""
    with redis_cluster() as cluster:
        yield cluster


def limiter_on(cluster: RedisCluster, namespace: str, **options: Any) -> Limiter:
    options = {"on_outage": "closed", "timeout": 0.4, **options}
    return Limiter(RedisBackend.from_url(cluster.url, cluster=True, namespace=namespace, **options))


def scopes_on(cluster: RedisCluster, namespace: str) -> tuple[Scope, ...]:
    """One on each master."""
    return tuple(Scope(key, LIMITS) for key in spread(cluster, f"{namespace}-"))


async def used(limiter: Limiter, scope: Scope) -> tuple[int, ...]:
    (status,) = await limiter.peek(scope)
    return tuple(limit.used for limit in status.limits)


async def test_a_master_that_is_frozen_is_an_outage_of_its_slots_alone(
    cluster: RedisCluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B52: the others are asked at once, what it is owed is delivered once, and one warning names it."""
    here, there, _ = scopes_on(cluster, namespace)
    async with limiter_on(cluster, namespace) as limiter:
        held = await limiter.pre_commit(here, there, tokens=300)
        frozen = cluster.masters[1]
        frozen.freeze()
        try:
            assert await held.settle_success(120) is True
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(here, there)
            for _ in range(20):
                assert await (await limiter.pre_commit(here)).settle_success(1) is True
            health = limiter.health()
            assert (health.available, health.owed > 0) == (False, True)
        finally:
            frozen.thaw()
        await until(lambda: limiter.health().available and not limiter.health().owed)
        assert await used(limiter, here) == (21, 140, 0)
        assert await used(limiter, there) == (1, 120, 0)
        warnings = [one.message for one in caplog.records if "cannot be reached" in one.message]
        assert len(warnings) == 1
        assert f"{HOST}:{frozen.port}" in warnings[0]


async def test_a_master_that_is_killed_is_an_outage_of_its_slots_alone(
    cluster: RedisCluster, namespace: str
) -> None:
    """B52: its scopes are decided locally, the others by their masters; it is found when it is back."""
    here, there, third = scopes_on(cluster, namespace)
    async with limiter_on(cluster, namespace, on_outage="local") as limiter:
        await (await limiter.pre_commit(here, there, third)).settle_success(5)
        killed = cluster.masters[1]
        killed.kill()
        local = await limiter.pre_commit(here, there, third, tokens=7)
        shared = await limiter.pre_commit(here, third, tokens=7)
        assert (local.degraded, shared.degraded) == (True, False)
        assert await local.settle_success(3) is True
        assert await shared.settle_success(3) is True
        assert limiter.health().admitted_without_store == 1
        killed.start()
        await until(lambda: limiter.health().available and not limiter.health().owed)
        assert await used(limiter, here) == (2, 8, 0)
        assert await used(limiter, there) == (0, 0, 0)  # it kept nothing
        again = await limiter.pre_commit(here, there)
        assert again.degraded is False
        assert await again.cancel() is True


async def test_no_node_can_be_reached(namespace: str) -> None:
    """B52: an outage as any other, from the first message on; found when they are there."""
    with redis_cluster() as cluster:
        scopes = scopes_on(cluster, namespace)
        for master in cluster.masters:
            master.kill()
        async with limiter_on(cluster, namespace) as limiter:
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(*scopes)
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(scopes[0])
            await limiter.add_tokens_post_stream(scopes[0], 5)
            assert (limiter.health().available, limiter.health().owed) == (False, 1)
            for master in cluster.masters:
                master.start()
            await until(lambda: limiter.health().available and not limiter.health().owed)
            assert await used(limiter, scopes[0]) == (0, 5, 0)


async def test_a_replica_takes_the_place_of_its_master(namespace: str) -> None:
    """B53: the next calls reach it, what was replicated counts, what is owed is delivered there."""
    with redis_cluster() as cluster:
        master = cluster.masters[1]
        replica = cluster.add(cluster.node())
        told(replica, "CLUSTER", "REPLICATE", told(master, "CLUSTER", "MYID"))
        eventually(lambda: b"master_link_status:up" in told(replica, "INFO"), "it does not follow")
        scopes = scopes_on(cluster, namespace)
        async with limiter_on(cluster, namespace) as limiter:
            first = await limiter.pre_commit(*scopes, tokens=300)
            second = await limiter.pre_commit(*scopes, tokens=300, request_id="q")
            assert await first.settle_success(120) is True
            replicate(master, scopes[1].key)
            master.kill()
            assert await second.settle_success(100) is True  # now, or owed
            await until(lambda: limiter.health().available and not limiter.health().owed)
            third = await limiter.pre_commit(*scopes, tokens=5)
            assert third.degraded is False
            for scope in scopes:
                assert await used(limiter, scope) == (3, 225, 1)
            assert await third.cancel() is True


def replicate(master: RedisServer, key: str) -> None:
    """Wait until its replica has all that was written so far."""
    with master.client(single_connection_client=True) as client:
        client.set(f"written-last{{{tag_of(key)}}}", "", px=1)
        assert client.wait(1, 10_000) == 1


async def test_a_plain_client_of_a_node_is_told_what_is_wrong(
    cluster: RedisCluster, namespace: str
) -> None:
    """A mistake, not an outage: keys are called otherwise on a cluster."""
    limiter = Limiter(RedisBackend.from_url(cluster.url, namespace=namespace))
    async with limiter:
        with pytest.raises(EarmarkError, match="cluster=True"):
            await limiter.pre_commit(Scope("a", LIMITS))


async def test_the_rights_that_are_documented_are_enough_on_a_cluster(
    cluster: RedisCluster, namespace: str
) -> None:
    """Those of docs/redis.md, ASKING and CLUSTER SLOTS among them; without CLUSTER SLOTS it is a mistake."""
    words = rights("gateway")
    words[words.index(f">{PASSWORD}")] = ">word"
    words[words.index("~earmark:*")] = f"~{namespace}{{*"
    for server in cluster.masters:
        told(server, "ACL", "SETUSER", "gateway", *words, "+asking", "+cluster|slots")
        told(server, "ACL", "SETUSER", "poor", *words)
    scope = scopes_on(cluster, namespace)[1]

    def limiter(user: str) -> Limiter:
        url = cluster.url.replace("://", f"://{user}:word@")
        backend = RedisBackend.from_url(
            url, cluster=True, namespace=namespace, on_outage="closed", timeout=5.0
        )
        return Limiter(backend)

    async with limiter("gateway") as one:
        held = await one.pre_commit(scope, tokens=9)
        slot = slot_of(scope.key)
        source = cluster.begin_move(slot, cluster.masters[0])
        cluster.move_keys(slot, source, cluster.masters[0])
        assert await held.settle_success(5) is True
        cluster.end_move(slot, source, cluster.masters[0])
        assert await used(one, scope) == (1, 5, 0)
        cluster.begin_move(slot, source)
        cluster.end_move(slot, cluster.masters[0], source)
    async with limiter("poor") as other:
        with pytest.raises(EarmarkError, match="cluster"):
            await other.pre_commit(scope)


async def test_a_server_that_is_no_cluster_says_so(
    shared_redis: RedisServer, namespace: str
) -> None:
    """A mistake as well."""
    async with Limiter(
        RedisBackend.from_url(shared_redis.url, cluster=True, namespace=namespace)
    ) as limiter:
        with pytest.raises(EarmarkError, match="cluster support disabled"):
            await limiter.pre_commit(Scope("a", LIMITS))


def test_a_client_of_a_cluster_that_was_handed_in_serves_one_loop(
    cluster: RedisCluster, namespace: str
) -> None:
    """R19: as every client that was handed in."""
    client = redis.asyncio.RedisCluster(host=HOST, port=cluster.masters[0].port)
    scopes = scopes_on(cluster, namespace)

    async def once() -> None:
        reservation = await limiter.pre_commit(*scopes)
        assert await reservation.cancel() is True

    with asyncio.Runner() as one, asyncio.Runner() as other:
        limiter = Limiter(RedisBackend(client, namespace=namespace, on_outage="closed"))
        one.run(once())
        with pytest.raises(RuntimeError, match="another event loop"):
            other.run(once())
        one.run(limiter.aclose())
        limiter = limiter_on(cluster, namespace)
        one.run(once())
        other.run(once())
        one.run(limiter.aclose())
        other.run(limiter.aclose())
    look = Look(cluster)
    assert all(look.pttl(key) != -1 for key in look.scan_iter(f"{namespace}*"))


def test_a_program_that_never_closes_leaves_nothing_undone(
    cluster: RedisCluster, namespace: str
) -> None:
    """R16, R19: what its callers leave when their loop ends is done, on every slot, before the lines end."""
    limiter = limiter_on(cluster, namespace, timeout=10.0)
    scopes = scopes_on(cluster, namespace)

    async def never_closes() -> None:
        settled = await limiter.pre_commit(*scopes, tokens=300, request_id="q")
        is_held = asyncio.Event()

        async def holds() -> None:
            async with await limiter.pre_commit(*scopes, tokens=7):
                is_held.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(holds())
        await is_held.wait()
        left = (holding, asyncio.create_task(settled.settle_success(120)))
        assert not any(task.done() for task in left)

    async def look() -> None:
        async with limiter:
            assert [await used(limiter, scope) for scope in scopes] == [(2, 127, 0)] * 3
            assert limiter.health().owed == 0

    asyncio.run(never_closes())
    asyncio.run(look())
