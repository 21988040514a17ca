"""Storms on a cluster: callers who are cancelled at any moment, processes that are killed, slots that are moved.

What each caller was told is compared with what the masters say: once of many callers of two limiters in this process,
where every count is exact, and once of two processes (tests/storm.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from earmark import (
    BackendUnavailable,
    Limit,
    Limiter,
    Limits,
    RateLimited,
    RedisBackend,
    RequestIdConflict,
    Scope,
)
from earmark.backends.redis.keys import TaggedKeys
from tests.cluster import Look, slot_of, spread
from tests.reached import Reached
from tests.redis.proxy import until
from tests.scale import examples
from tests.servers import RedisCluster, redis_cluster, told
from tests.storm import ALL, SCOPES
from tests.weather import Place, Weather, check, report

pytestmark = pytest.mark.anyio

TASKS: Final = 60
SLOTS: Final = 4
ASKED: Final = 50
LEASE: Final = 5.0
LONG_LEASE: Final = 600.0  # never lapses, however slow the machine is
REQUESTS: Final = examples(3_000)

# Of two processes: how long, how many callers in each, and how long one rests at most.
SECONDS: Final = min(max(examples(4), 3), 40)
PLACES: Final = 60
PACE: Final = 0.05

REACHED: Final = Reached("storm on a cluster")
REACHED_BY_TWO: Final = Reached("storm of two processes on a cluster")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """One that this test disturbs."""
    with redis_cluster() as cluster:
        yield cluster


class Storm:
    """The callers, and what they were told.

    Args:
        limiters: what they use.
        scopes: of requests without a name.
        shared: of requests under names that two callers ask for.

    Attributes:
        certain: by key, the tokens of reservations that nobody else knew, by how each has ended.
        possible: the most that those can have counted which two callers asked for under one name.
        holding: by key, who certainly holds a slot at this moment: no longer one who has begun to let go of it, since
            each slot of a cluster is free as soon as its own part is resolved.
        most: the most that certainly did.
    """

    def __init__(self, limiters: list[Limiter], scopes: list[Scope], shared: list[Scope]) -> None:
        self.limiters = limiters
        self.scopes = scopes
        self.shared = shared
        self.random = random.Random(11)
        self.certain: Counter[str] = Counter()
        self.possible: Counter[str] = Counter()
        self.holding: Counter[str] = Counter()
        self.most = 0
        self.met: Counter[str] = Counter()
        self.numbers = iter(range(REQUESTS))
        self.tasks: list[asyncio.Task[None] | None] = [None] * TASKS

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._again_and_again(place)) for place in range(TASKS)]
            cancelling = group.create_task(self._cancel_some())
            await asyncio.wait(work)
            cancelling.cancel()

    async def _again_and_again(self, place: int) -> None:
        for number in self.numbers:
            task = self.tasks[place] = asyncio.create_task(self._request(number))
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _cancel_some(self) -> None:
        while True:
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)
            task = self.random.choice(self.tasks)
            if task is not None and not task.done() and task.cancel():
                self.met["cancelled"] += 1

    async def _request(self, number: int) -> None:
        """One request; every fifth is asked under a name that another caller asks as well."""
        named = number % 10 < 2
        chosen = random.Random(number // 2 if named else number)
        scopes = chosen.sample(self.shared if named else self.scopes, chosen.choice((1, 2, 3)))
        name = f"req-{number // 2}" if named else None
        limiter = self.limiters[number % len(self.limiters)]
        try:
            reservation = await limiter.pre_commit(
                *scopes, tokens=ASKED, request_id=name, lease=LEASE if named else LONG_LEASE
            )
        except (RateLimited, RequestIdConflict, BackendUnavailable) as error:
            self.met[type(error).__name__] += 1
            return
        self.met[f"over {len(scopes)}"] += 1
        keys = [scope.key for scope in reservation.scopes]
        # Two limiters may hold one reservation: its slots are counted for whoever asked first.
        held = keys if not named else []
        self.holding.update(held)
        self.most = max((self.most, *self.holding.values()))
        used = chosen.randrange(1, 100)
        try:
            async with reservation:
                try:
                    for _ in range(chosen.choice((0, 1, 4))):
                        await limiter.peek(scopes[0])
                finally:
                    self.holding.subtract(held)
                if chosen.random() < 0.3:
                    await reservation.cancel()
                else:
                    await reservation.settle_success(used)
        finally:
            self.met[reservation.state] += 1
            if named:
                self.possible.update(dict.fromkeys(keys, max(used, ASKED)))
            else:  # what had begun finishes (R16)
                debit = {"settled": used, "cancelled": 0}.get(reservation.state, ASKED)
                self.certain.update(dict.fromkeys(keys, debit))


async def disturb(cluster: RedisCluster, slot: int, stop: asyncio.Event) -> int:
    """Move a slot back and forth and flush scripts; return how often."""
    moves = 0
    while not stop.is_set():
        source = cluster.owner(slot)
        target = next(one for one in cluster.masters if one is not source)
        await asyncio.to_thread(cluster.begin_move, slot, target)
        for _ in range(5):
            await asyncio.to_thread(cluster.move_keys, slot, source, target, 3)
        await asyncio.to_thread(cluster.end_move, slot, source, target)
        await asyncio.to_thread(told, target, "SCRIPT", "FLUSH")
        moves += 1
    return moves


async def test_a_storm_breaks_no_promise_on_a_cluster(cluster: RedisCluster) -> None:
    """R1, R2, R5, R9, R10, R14, R16: no slot too many, each settlement once on every slot, nothing left behind."""
    limits = Limits(concurrency=SLOTS, also=[Limit("tokens", 2**50, 4e9)])
    scopes, shared = (
        [Scope(key, limits) for prefix in prefixes for key in spread(cluster, prefix)]
        for prefixes in (("x", "y"), ("z",))
    )
    settings: dict[str, Any] = {
        "cluster": True,
        "timeout": 2.0,
        "on_outage": "closed",
        "lease": LEASE,
    }
    async with (
        Limiter(RedisBackend.from_url(cluster.url, **settings)) as one,
        Limiter(RedisBackend.from_url(cluster.url, **settings)) as other,
    ):
        storm = Storm([one, other], scopes, shared)
        stop = asyncio.Event()
        disturbing = asyncio.create_task(disturb(cluster, slot_of(scopes[0].key), stop))
        await storm.run()
        stop.set()
        moves = await disturbing
        for limiter in (one, other):
            await until(lambda limiter=limiter: not limiter.health().owed)  # type: ignore[misc]
            health = limiter.health()
            assert (health.available, health.lost) == (True, 0)
            assert health.admitted_without_store == 0
        for status in await one.peek(*scopes):
            assert status["concurrency"].used == 0
            assert status["tokens"].used == storm.certain[status.key]
        for status in await one.peek(*shared):
            assert status["tokens"].used <= storm.possible[status.key]
    assert storm.most <= SLOTS
    look = Look(cluster)
    for client in look.clients:
        assert all(client.pttl(key) != -1 for key in client.scan_iter("earmark*"))
    # Two callers of one name who are both cancelled leave a hold behind, for one lease.
    await until(lambda: not [*look.scan_iter("earmark*:s:*")])
    for what, count in (*storm.met.items(), ("moves of a slot", moves)):
        REACHED.count(what, count)
    wanted = {"cancelled", "RateLimited", "settled", "abandoned", "over 3"}
    assert not {what for what in wanted if not storm.met[what]}
    assert moves


class Cluster(Place):
    """Three masters, whose slots are moved, and whose scripts are flushed."""

    def __init__(self, cluster: RedisCluster) -> None:
        super().__init__(f"cluster {cluster.url}", TaggedKeys("earmark"))
        self._cluster = cluster
        self._random = random.Random(5)
        self._clients = {server.port: server.client() for server in cluster.masters}
        self._slots = {slot_of(scope.key) for scope in (ALL, *SCOPES)}
        self._owners = {slot: cluster.owner(slot) for slot in self._slots}
        self.moves = 0
        self.keys_moved = 0

    def clients(self) -> Sequence[redis.Redis]:
        return [*self._clients.values()]

    def at(self, key: str) -> redis.Redis:
        return self._clients[self._owners[slot_of(key)].port]

    def disturb(self) -> None:
        """Move two slots, each a few keys at a time: that of all requests, and another."""
        for slot in (slot_of(ALL.key), self._random.choice(sorted(self._slots))):
            source = self._owners[slot]
            target = self._random.choice([m for m in self._cluster.masters if m is not source])
            self._cluster.begin_move(slot, target)
            for _ in range(3):
                self.keys_moved += self._cluster.move_keys(slot, source, target, 2)
            self._cluster.end_move(slot, source, target)
            self._owners[slot] = target
            told(target, "SCRIPT", "FLUSH")
            self.moves += 1


async def test_a_storm_of_two_processes_breaks_no_promise_on_a_cluster(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    """R1, R2, R5, R9, R10, R14, R16: processes are killed at any moment, also between slots, which are moved."""
    place = Cluster(cluster)
    weather = Weather(place, tmp_path, tasks=PLACES, pace=PACE)
    with ExitStack() as stack:
        stack.callback(weather.end)
        weather.rage(SECONDS, troubles=3)
        logs = await check(weather, place, tmp_path, walks=True)
    assert weather.kills
    assert place.keys_moved
    REACHED_BY_TWO.count("seconds", SECONDS)
    REACHED_BY_TWO.count("moves of a slot", place.moves)
    REACHED_BY_TWO.count("keys moved one by one", place.keys_moved)
    report(REACHED_BY_TWO, weather, logs)
