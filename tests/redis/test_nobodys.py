"""R9, R16 over real servers: callers who ask by one name at the same moment are all cancelled, and nothing is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import permutations, product
from typing import Any, Final

import anyio
import pytest

from earmark import Limiter, Limits, MemoryBackend, RedisBackend, Reservation, Scope
from earmark.core.hold import Hold
from earmark.testing import ManualClock
from earmark.testing.contract.messages import hold_of
from tests.cluster import spread
from tests.reached import Reached
from tests.redis.wire import MOMENTS, Moment, Wires, until, wires
from tests.rivals import KINDS, Goes, Kind, rivals
from tests.servers import RedisCluster, RedisServer

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

LIMITS: Final = Limits(rpm=60, tpm=1_000, concurrency=5)
SLOT: Final = Scope("slot", Limits(rpm=60, concurrency=5))

# A reserve takes so many turns of the loop on a server, and so many over three slots of a cluster.
ON_A_SERVER: Final = range(0, 24, 2)
ON_A_CLUSTER: Final = range(0, 120, 9)

reached = Reached("rivals over Redis")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Scene:
    """Limiters of two processes, and the scopes for which all ask, in another order each."""

    def __init__(self, url: str, namespace: str, keys: Sequence[str], *, cluster: bool) -> None:
        self.limiters = [
            Limiter(
                RedisBackend.from_url(
                    url, namespace=namespace, cluster=cluster, clock=ManualClock(1_000), timeout=20
                )
            )
            for _ in range(2)
        ]
        self.scopes = [Scope(key, LIMITS) for key in keys]
        self._number = 0

    async def used(self) -> set[int]:
        """What is used by all that is held, of each limit."""
        for limiter in self.limiters:
            await limiter.peek(*self.scopes)
            await until(lambda limiter=limiter: not limiter.health().owed)  # type: ignore[misc]
        statuses = await self.limiters[1].peek(*self.scopes)
        return {one.used for status in statuses for one in status.limits}

    async def end(self, goes: tuple[Goes, ...], *, apart: bool) -> None:
        """Have them ask and go; whoever was given it holds it, or nobody does.

        Args:
            goes: how, and when.
            apart: whether they ask in two processes.
        """
        self._number += 1
        asks = [
            partial(
                self.limiters[apart and number % 2].pre_commit,
                *self.scopes[:: -1 if number % 2 else 1],
                tokens=30,
                request_id=f"q{self._number}",
            )
            for number in range(len(goes))
        ]
        got = await rivals(asks, goes)
        reached.count(f"{len(got)} of {len(goes)} are given it")
        await self.holds(got)

    async def holds(self, got: list[Reservation]) -> None:
        """Everything is held, or nothing, and can be given back."""
        assert await self.used() == ({1, 30} if got else {0})
        if got:
            assert await got[0].cancel() is True
            assert await self.used() == {0}
            assert {await one.cancel() for one in got} == {False}


@asynccontextmanager
async def scene(
    url: str, namespace: str, keys: Sequence[str], *, cluster: bool = False
) -> AsyncIterator[Scene]:
    """Everything, with connections."""
    one = Scene(url, namespace, keys, cluster=cluster)
    async with one.limiters[0], one.limiters[1]:
        assert await one.used() == {0}
        yield one


@pytest.mark.parametrize("apart", [False, True])
async def test_r9_a_name_that_all_who_asked_have_left(
    shared_redis: RedisServer, namespace: str, apart: bool
) -> None:
    """R9, R16: in one process and in two, by both kinds of cancellation, at every turn of the loop."""
    async with scene(shared_redis.url, namespace, ("a", "b")) as one:
        for kinds in product(KINDS, KINDS):
            for turns in product(ON_A_SERVER, ON_A_SERVER):
                await one.end(tuple(zip(kinds, turns, strict=True)), apart=apart)


@pytest.mark.parametrize("apart", [False, True])
async def test_r9_a_name_on_a_cluster_that_all_who_asked_have_left(
    shared_cluster: RedisCluster, namespace: str, apart: bool
) -> None:
    """R9, R16: the same over three slots, all of which are free then."""
    keys = spread(shared_cluster, f"{namespace}-")
    async with scene(shared_cluster.url, namespace, keys, cluster=True) as one:
        for kind in KINDS:
            for turns in product(ON_A_CLUSTER, ON_A_CLUSTER):
                await one.end(((kind, turns[0]), (kind, turns[1])), apart=apart)


@pytest.mark.parametrize("moment", MOMENTS[:3])
@pytest.mark.parametrize("kind", KINDS)
async def test_r9_a_name_that_all_have_left_who_share_a_round_trip(
    shared_redis: RedisServer, namespace: str, moment: Moment, kind: Kind, wires: Wires
) -> None:
    """R9, R16: both are cancelled at each moment of it."""
    async with scene(shared_redis.url, namespace, ("a", "b")) as one:
        hold, scopes = wires.hold(moment), [anyio.CancelScope() for _ in range(2)]

        async def ask(scope: anyio.CancelScope) -> None:
            with scope:
                await one.limiters[0].pre_commit(*one.scopes, tokens=30, request_id="q")

        asking = [asyncio.create_task(ask(scope)) for scope in scopes]
        await hold.reached.wait()
        for one_of_them in asking if kind == "task" else scopes:
            one_of_them.cancel()
        hold.open()
        await asyncio.wait(asking)
        await one.holds([])


# What a store is told, one message after another.


@pytest.fixture(params=["memory", "redis"])
async def backend(
    request: pytest.FixtureRequest, shared_redis: RedisServer, namespace: str
) -> AsyncIterator[Any]:
    """Either of those that know whom they have given what."""
    clock = ManualClock(1_000)
    if request.param == "memory":
        yield MemoryBackend(clock=clock)
        return
    backend = RedisBackend.from_url(
        shared_redis.url, namespace=namespace, clock=clock, timeout=20, on_outage="closed"
    )
    yield backend
    await backend.aclose()


async def open_slots(backend: Any) -> int:
    """How many slots are taken."""
    seen = await backend.peek((SLOT,))
    return int(seen.states[-1])


async def ask_of(backend: Any, *scopes: Scope) -> Hold:
    """One more who asks by the name, and has a hold of its own."""
    hold = hold_of(*scopes, request_id="q")
    assert await backend.reserve(hold) is not None
    return hold


async def withdraw(backend: Any, hold: Hold) -> bool:
    won: bool = await backend.resolve(hold, "withdraw", {}, {})
    return won


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
async def test_r9_the_last_who_withdraws_gives_it_back(
    backend: Any, order: tuple[int, ...]
) -> None:
    """R9: whether that is who has made it or not; each may say so twice, and nobody else is given what has gone."""
    holds = [await ask_of(backend, SLOT) for _ in range(3)]
    for left, number in zip((1, 1, 0), order, strict=True):
        assert await withdraw(backend, holds[number]) is (not left)
        assert await withdraw(backend, holds[number]) is False
        assert await open_slots(backend) == left
    again = await ask_of(backend, SLOT)
    assert await open_slots(backend) == 1
    assert await withdraw(backend, again) is True


async def test_r9_who_was_given_it_may_resolve_it_once_its_maker_has_left(backend: Any) -> None:
    """R9: it is as good as ever."""
    made, _ = await ask_of(backend, SLOT), await ask_of(backend, SLOT)
    assert await withdraw(backend, made) is False
    assert await backend.resolve(made, "settle", {"requests": 1}, {}) is True
    assert await open_slots(backend) == 0


async def test_r9_more_than_are_told_apart(backend: Any) -> None:
    """R9, R10: of so many callers some are not known by name: a lease governs what they may have."""
    holds = [await ask_of(backend, SLOT) for _ in range(40)]
    assert not any([await withdraw(backend, hold) for hold in holds])
    assert await open_slots(backend) == 1


async def test_r9_what_its_last_caller_cannot_reach_stays_for_a_lease(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R9, R10: his message has no key for the slots that another has asked for."""
    async with scene(shared_redis.url, namespace, ("a",)) as one:
        backend: Any = one.limiters[0]._backend
        made = await ask_of(backend, SLOT)
        other = await ask_of(backend, Scope(SLOT.key, Limits(rpm=60)))
        assert await withdraw(backend, made) is False
        assert await withdraw(backend, other) is False
        assert await open_slots(backend) == 1
        assert await withdraw(backend, await ask_of(backend, SLOT)) is True
        assert await open_slots(backend) == 0


async def test_r9_a_late_copy_of_what_all_have_left_takes_nothing(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R9: of the reserve that made it, and of one that was given it."""
    async with scene(shared_redis.url, namespace, ("a",)) as one:
        backend: Any = one.limiters[0]._backend
        holds = [await ask_of(backend, SLOT) for _ in range(2)]
        for hold in holds:
            await withdraw(backend, hold)
        for hold in holds:
            copy = backend._messages.reserve(hold)
            assert await backend._line().ask(copy, again=True) == "gone"
        assert await open_slots(backend) == 0


async def test_r9_one_that_was_sent_again_is_withdrawn_for_its_late_copy_alone(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R9: it was answered all the same, and its caller has what it was given."""
    async with scene(shared_redis.url, namespace, ("a",)) as one:
        backend: Any = one.limiters[0]._backend
        made, given = await ask_of(backend, SLOT), hold_of(SLOT, request_id="q")
        answer = await backend._line().ask(backend._messages.reserve(given), again=True)
        assert answer.startswith("adopted ")
        assert await withdraw(backend, given) is False
        assert await withdraw(backend, made) is False
        assert await open_slots(backend) == 1
