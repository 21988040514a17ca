"""A slot that is moved from one master to another: MOVED, ASK, TRYAGAIN, at rest and under load.

Whatever was sent elsewhere has counted nothing, and is sent again as it was.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from earmark import BackendUnavailable, Limiter, Limits, RedisBackend, Scope
from earmark.backends.redis.fleet import Fleet
from earmark.backends.redis.routed import Routed
from tests.cluster import keys_on, slot_of
from tests.redis.proxy import until
from tests.servers import RedisCluster, RedisServer, redis_cluster, told
from tests.versions import VERSIONS, program_of

pytestmark = pytest.mark.anyio

LIMITS: Final = Limits(rpd=100_000, tpd=10**9, concurrency=50)

_numbers: Final = itertools.count()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """One whose slots these tests move; the servers that are supported send elsewhere by different rules."""
    with redis_cluster(program=program_of(request.param)) as cluster:
        yield cluster


class Move:
    """A scope whose slot goes from the first master to the second, and another one on the third.

    Attributes:
        slot: that of the first scope.
        held: a reservation that was made before, over the first scope alone.
    """

    def __init__(self, cluster: RedisCluster, limiter: Limiter, straight: Limiter) -> None:
        self.cluster = cluster
        self.limiter = limiter
        self.straight = straight
        source, self.target, third = cluster.masters
        prefix = f"move{next(_numbers)}-"
        self.scope = Scope(self._on(source, prefix), LIMITS)
        self.other = Scope(self._on(third, prefix), LIMITS)
        self.slot = slot_of(self.scope.key)
        self.source = source

    def _on(self, server: RedisServer, prefix: str) -> str:
        return next(key for key, owner in keys_on(self.cluster, prefix) if owner is server)

    def begin(self) -> None:
        self.cluster.begin_move(self.slot, self.target)

    def bring(self, count: int = 1_000) -> int:
        return self.cluster.move_keys(self.slot, self.source, self.target, count)

    def end(self) -> None:
        self.cluster.end_move(self.slot, self.source, self.target)

    async def used(self, scope: Scope | None = None) -> tuple[int, ...]:
        (status,) = await self.straight.peek(scope or self.scope)
        return tuple(limit.used for limit in status.limits)


@pytest.fixture
async def move(cluster: RedisCluster, namespace: str) -> AsyncIterator[Move]:
    """Two limiters that know where the slot is before it is moved; it is there at the end."""

    def limiter(timeout: float) -> Limiter:
        options: Any = {"namespace": namespace, "on_outage": "closed", "timeout": timeout}
        return Limiter(RedisBackend.from_url(cluster.url, cluster=True, **options))

    async with limiter(0.5) as one, limiter(20.0) as straight:
        move = Move(cluster, one, straight)
        for each in (one, straight):
            reservation = await each.pre_commit(move.scope, move.other)
            await reservation.cancel()
        yield move
        if cluster.owner(move.slot) is move.source:
            move.begin()
            move.end()


async def test_a_slot_that_was_moved_is_found(move: Move) -> None:
    """B53: MOVED: sent again as it was, counted once, no outage; the next one goes there at once."""
    held = await move.limiter.pre_commit(move.scope, move.other, tokens=300)
    move.begin()
    move.end()
    assert await held.settle_success(120) is True
    fresh = await move.limiter.pre_commit(move.scope, move.other, tokens=50, request_id="q")
    assert not fresh.degraded
    assert await fresh.settle_success(30) is True
    assert await move.used() == (2, 150, 0)
    assert await move.used(move.other) == (2, 150, 0)
    assert move.limiter.health().available
    commands = told(move.source, "INFO", "COMMANDSTATS")
    again = await move.limiter.pre_commit(move.scope)
    assert await again.cancel() is True
    assert evals(told(move.source, "INFO", "COMMANDSTATS")) == evals(commands)


def evals(stats: bytes) -> list[bytes]:
    """How often scripts were called, by what the server tells."""
    return [line.split(b",")[0] for line in stats.split() if line.startswith(b"cmdstat_evalsha")]


async def test_what_is_all_there_is_settled_where_it_is(move: Move) -> None:
    """While its keys have not been moved; the script empties none of them half-way."""
    plain = await move.limiter.pre_commit(move.scope, tokens=300)
    travels = await move.limiter.pre_commit(move.scope, tokens=300)
    token = travels.token()
    move.begin()
    assert await move.limiter.settle_success(token, 120) is True
    assert await plain.renew() is True
    assert await plain.settle_success(100) is True
    move.end()
    assert await move.used() == (2, 220, 0)


async def test_what_has_been_moved_is_settled_there(move: Move) -> None:
    """ASK: its keys are with the other master, the slot is not yet."""
    held = await move.limiter.pre_commit(move.scope, tokens=300)
    move.begin()
    assert move.bring() == 3
    assert await held.settle_success(120) is True
    assert move.limiter.health().owed == 0
    asked = told(move.target, "INFO", "COMMANDSTATS")
    assert b"cmdstat_asking" in asked
    move.end()
    assert await move.used() == (1, 120, 0)


async def test_a_slot_on_its_way_is_an_outage_of_that_slot_alone(move: Move) -> None:
    """TRYAGAIN: until the deadline; other scopes and other masters are served meanwhile."""
    held = await move.limiter.pre_commit(move.scope, tokens=300)
    move.begin()
    assert move.bring(1) == 1
    with pytest.raises(BackendUnavailable):
        await move.limiter.pre_commit(move.scope, move.other)
    assert await held.settle_success(120) is True  # owed
    health = move.limiter.health()
    assert (health.available, health.owed) == (False, 1)
    assert f"slot {move.slot}" in (health.reason or "")
    other = await move.limiter.pre_commit(move.other)
    assert await other.cancel() is True
    move.end()
    await until(lambda: not move.limiter.health().owed)
    assert await move.used() == (1, 120, 0)
    assert await move.used(move.other) == (0, 0, 0)
    assert move.limiter.health().lost == 0


async def test_nobody_waits_a_second_time_for_a_slot_that_stays_on_its_way(
    move: Move, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B52: after the first deadline who asks is answered at once, and one warning names the slot."""
    await (await move.limiter.pre_commit(move.scope)).settle_success(5)
    move.begin()
    assert move.bring(1) == 1
    pauses = 0
    go_on = Fleet._go_on

    def counted(fleet: Fleet, asked: Routed) -> None:
        nonlocal pauses
        pauses += 1
        go_on(fleet, asked)

    monkeypatch.setattr(Fleet, "_go_on", counted)
    with pytest.raises(BackendUnavailable):
        await move.limiter.pre_commit(move.scope)
    assert pauses > 0
    waited = pauses
    for number in range(20):
        scopes = (move.scope, move.other) if number % 2 else (move.scope,)
        with pytest.raises(BackendUnavailable):
            await move.limiter.pre_commit(*scopes)
    assert pauses == waited
    warnings = [one.message for one in caplog.records if "cannot be reached" in one.message]
    assert len(warnings) == 1
    assert f"slot {move.slot}: " in warnings[0]
    move.end()
    await until(lambda: move.limiter.health().available and not move.limiter.health().owed)
    assert await (await move.limiter.pre_commit(move.scope, move.other)).cancel() is True
    assert await move.used() == (1, 5, 0)


async def test_who_asks_while_a_slot_is_on_its_way_waits_for_it(move: Move) -> None:
    """TRYAGAIN: it is tried again within the deadline."""
    held = await move.limiter.pre_commit(move.scope, tokens=300)
    move.begin()
    move.bring(1)
    line: Any = move.straight._backend
    asked = asyncio.create_task(move.straight.pre_commit(move.scope, tokens=50))
    await until(lambda: bool(line._line()._pausing))
    move.end()
    fresh = await asked
    assert await fresh.settle_success(30) is True
    assert await held.settle_success(120) is True
    await until(lambda: not move.limiter.health().owed)
    assert await move.used() == (2, 150, 0)


async def test_a_caller_that_goes_while_a_slot_is_on_its_way_leaves_nothing(move: Move) -> None:
    """R16: what waits to be tried again is forgotten, and what was taken elsewhere is given back."""
    await (await move.limiter.pre_commit(move.scope)).settle_success(5)
    move.begin()
    line: Any = move.limiter._backend
    asked = asyncio.create_task(move.limiter.pre_commit(move.other, move.scope, tokens=50))
    await until(lambda: bool(line._line()._pausing))
    asked.cancel()
    await asyncio.wait([asked])
    move.end()
    await until(lambda: not move.limiter.health().owed)
    assert await move.used() == (1, 5, 0)
    assert await move.used(move.other) == (0, 0, 0)


async def test_a_slot_is_moved_under_load(move: Move) -> None:
    """B53, R5, R9: back and forth, a few keys at a time, while callers come and go: each settlement counts once."""
    settled = 0
    stop = asyncio.Event()

    async def caller(number: int) -> None:
        nonlocal settled
        scopes = (move.scope, move.other) if number % 2 else (move.scope,)
        while not stop.is_set():
            name = f"n{number}-{settled}" if number % 3 else None
            try:
                reservation = await move.limiter.pre_commit(*scopes, tokens=9, request_id=name)
            except BackendUnavailable:
                continue
            assert await reservation.settle_success(3) is True
            settled += 1

    callers = [asyncio.create_task(caller(number)) for number in range(20)]
    for _ in range(2):
        done = settled
        await until(lambda done=done: settled > done + 200)  # type: ignore[misc]
        await asyncio.to_thread(move.begin)
        for _ in range(20):
            await asyncio.to_thread(move.bring, 2)
        await asyncio.to_thread(move.end)
        move.source, move.target = move.target, move.source
    stop.set()
    await asyncio.gather(*callers)
    await until(lambda: not move.limiter.health().owed)
    requests, tokens, slots = await move.used()
    assert (requests, tokens, slots) == (settled, 3 * settled, 0)
    assert move.limiter.health().lost == 0
