"""Which master of a cluster has which slot: what is not known of it, and who is asked (B52, B53)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from redis.asyncio import RedisCluster as AsyncRedisCluster

from earmark import BackendUnavailable, RedisBackend
from earmark.backends.redis.chart import SLOTS, Chart, Range
from earmark.backends.redis.dialing import slots_of
from earmark.backends.redis.survey import Survey
from tests.cluster import slot_of
from tests.redis.proxy import until
from tests.redis.test_cluster_nodes import limiter_on, scopes_on, used
from tests.servers import RedisCluster, redis_cluster, told

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Gap:
    """What nodes tell leaves one slot out, until somebody closes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
        self.slot = slot_of(key)
        self.closed = False
        self.asked = 0
        monkeypatch.setattr("earmark.backends.redis.carriers.slots_of", self._slots_of)

    async def _slots_of(self, client: Any, address: Any) -> list[Range]:
        self.asked += 1
        ranges = await slots_of(client, address)
        return list(ranges) if self.closed else without(ranges, self.slot)


def without(ranges: Iterable[Range], slot: int) -> list[Range]:
    """The same, but for one slot."""
    return [
        Range(first, last, one.nodes)
        for one in ranges
        for first, last in (
            (one.first, min(one.last, slot - 1)),
            (max(one.first, slot + 1), one.last),
        )
        if first <= last
    ]


async def test_a_slot_that_nobody_knows_of_is_an_outage_of_its_own_messages(
    shared_cluster: RedisCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B52: the others go on, and it is found as soon as anybody tells, whether anybody asks for it or not."""
    here, there, _ = scopes_on(shared_cluster, namespace)
    gap = Gap(monkeypatch, there.key)
    async with limiter_on(shared_cluster, namespace) as limiter:
        with pytest.raises(BackendUnavailable):
            await limiter.pre_commit(there)
        await limiter.add_tokens_post_stream(there, 5)
        for _ in range(20):
            assert await (await limiter.pre_commit(here)).settle_success(1) is True
        with pytest.raises(BackendUnavailable):
            await limiter.pre_commit(there)
        health = limiter.health()
        assert (health.available, health.owed) == (False, 1)
        assert str(gap.slot) in (health.reason or "")
        asked = gap.asked
        await until(lambda: gap.asked >= asked + 2)
        gap.closed = True
        await until(lambda: limiter.health().available and not limiter.health().owed)
        assert await used(limiter, there) == (0, 5, 0)
        assert await (await limiter.pre_commit(here, there)).cancel() is True
        asked = gap.asked
        assert await used(limiter, here) == (20, 20, 0)
        assert gap.asked == asked  # nothing is missing any more


async def test_closing_delivers_what_was_owed_to_nobody(
    shared_cluster: RedisCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: who has the slot is told while the limiter closes, to a loop that nobody has asked for it."""
    scope = scopes_on(shared_cluster, namespace)[1]
    gap = Gap(monkeypatch, scope.key)
    limiter = limiter_on(shared_cluster, namespace)
    await limiter.add_tokens_post_stream(scope, 5)
    assert limiter.health().owed == 1

    async def close() -> None:
        gap.asked = 0
        closing = asyncio.create_task(limiter.aclose())
        await until(lambda: gap.asked >= 2)
        assert not closing.done()
        gap.closed = True
        await closing

    await asyncio.to_thread(asyncio.run, close())
    assert limiter.health().owed == 0
    assert await used(limiter, scope) == (0, 5, 0)
    await limiter.aclose()


async def test_a_slot_that_no_master_has_for_a_while(namespace: str) -> None:
    """B52: what it is owed goes to the master that has it then."""
    with redis_cluster() as cluster:
        here, there, _ = scopes_on(cluster, namespace)
        async with limiter_on(cluster, namespace) as limiter:
            assert await (await limiter.pre_commit(here, there)).cancel() is True
            slot = slot_of(there.key)
            for master in cluster.masters:
                told(master, "CLUSTER", "DELSLOTS", slot)
            with pytest.raises(BackendUnavailable):
                await limiter.pre_commit(there)
            await limiter.add_tokens_post_stream(there, 5)
            assert await (await limiter.pre_commit(here)).cancel() is True
            assert limiter.health().owed > 0
            told(cluster.masters[2], "CLUSTER", "ADDSLOTS", slot)
            await until(lambda: not limiter.health().owed)
            assert await used(limiter, there) == (0, 5, 0)
            assert await (await limiter.pre_commit(here, there)).cancel() is True


def test_what_a_node_does_not_tell_stays_as_it_was() -> None:
    """A slot that is left out has its master still; a node that is told of no more is asked no more, but for seeds."""
    seed, one, two, three = (("host", port) for port in range(4))
    chart = Chart([seed])
    chart.learn([Range(0, 99, [one, three]), Range(100, SLOTS - 1, [two])])
    assert set(chart.nodes) == {seed, one, two, three}
    chart.learn([Range(0, 49, [two]), Range(51, SLOTS - 1, [two])])
    assert [chart.owner(slot) for slot in (49, 50, 51)] == [two, one, two]
    assert chart.masters == {one, two}
    assert set(chart.nodes) == {seed, two}
    chart.learn([])
    assert chart.owner(50) == one


@pytest.mark.parametrize("is_enough", [True, False])
async def test_who_is_at_work_is_believed_before_others(is_enough: bool) -> None:
    """A seed may be another cluster's by now; where something is missing, a seed may be who knows."""
    seeds = [("seed", port) for port in range(2)]
    well = [("well", port) for port in range(2)]
    chart = Chart(seeds)
    chart.learn([Range(0, SLOTS - 1, well)])
    asked: list[tuple[str, int]] = []
    failed: list[Exception] = []
    learned = asyncio.Event()

    async def ask(address: tuple[str, int]) -> list[Range]:
        asked.append(address)
        return [Range(0, SLOTS - 1, [address])]

    def learn() -> None:
        nonlocal is_enough
        is_enough = True
        learned.set()

    survey = Survey(
        chart,
        ask,
        well.__contains__,
        learn,
        lambda: is_enough,
        failed.append,
        lambda: None,
        timeout=20.0,
    )
    expected = set(well) if is_enough else {*seeds, *well}
    survey.begin()
    async with asyncio.timeout(20):
        await learned.wait()
    await survey.aclose()
    assert not failed
    assert len(asked) == min(len(expected), 3)
    assert set(asked) <= expected
    assert any(one in seeds for one in asked) == (expected != set(well))


def test_b53_an_older_client_of_a_cluster_says_which_one_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B53: redis-py's tells the nodes that it was given since 7.1."""
    client = AsyncRedisCluster(host="127.0.0.1", port=1)
    monkeypatch.delattr(client, "startup_nodes")
    with pytest.raises(TypeError, match=r"needs redis-py 7\.1 or later"):
        RedisBackend(client)
