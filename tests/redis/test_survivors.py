"""R10, R19: all tasks of a loop are cancelled, and it goes on: what serves its holders does as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import pytest

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from earmark.backends.redis import line, loops
from earmark.backends.redis.keys import TaggedKeys
from earmark.testing import ManualClock
from tests.cluster import Look
from tests.redis.wire import until
from tests.servers import RedisCluster, RedisServer

pytestmark = pytest.mark.anyio

LEASE: Final = 30.0
SLOT: Final = Scope("slot", Limits(concurrency=1))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Holders:
    """Tasks that are at work with a slot, and do not go when they are told to."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.interrupted = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.done.set()  # else the loop would wait for them for ever

    async def hold(self, reservation: Reservation) -> None:
        """Be at work until all is done, whoever cancels this."""
        async with reservation:
            while not self.done.is_set():
                try:
                    await self.done.wait()
                except asyncio.CancelledError:
                    self.interrupted += 1
            await reservation.settle_success(1)


async def cancel_all() -> None:
    """Cancel every task but this one, and let them take that in."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=0.01)


@asynccontextmanager
async def stage(
    server: RedisServer | RedisCluster, namespace: str, **options: Any
) -> AsyncIterator[tuple[Limiter, Limiter, ManualClock]]:
    """A limiter, and another process's eyes, on one clock that only the test moves."""
    clock = ManualClock(start=1_000)
    settings: dict[str, Any] = {
        "namespace": namespace,
        "clock": clock,
        "lease": LEASE,
        "timeout": 20,
        **options,
    }
    limiter, other = (Limiter(RedisBackend.from_url(server.url, **settings)) for _ in range(2))
    async with limiter, other:
        await limiter.peek(SLOT)
        yield limiter, other, clock


async def slots(other: Limiter) -> int:
    """How many are taken, as another process sees it."""
    (status,) = await other.peek(SLOT)
    return status["concurrency"].used


async def test_r10_a_holder_that_survives_a_cancellation_of_all_tasks_keeps_its_slot(
    shared_redis: RedisServer, namespace: str
) -> None:
    """R10: it is marked as being cancelled for good, as those of a loop that ends are, and is at work all the same."""

    async def program() -> None:
        async with stage(shared_redis, namespace) as (limiter, other, clock), Holders() as holders:
            reservation = await limiter.pre_commit(SLOT)
            holder = asyncio.create_task(holders.hold(reservation))
            await asyncio.sleep(0)
            for times in (1, 2):
                await cancel_all()
                assert (holders.interrupted, holder.cancelling()) == (times, times)
                for _ in range(4):
                    clock.advance(LEASE / 3)
                    await until(lambda: lasts(shared_redis, namespace) == clock() + LEASE)
                    await until(lambda: next_renewal(limiter) > clock())
                assert await slots(other) == 1
            holders.done.set()
            await holder
            assert reservation.state == "settled"
            assert await slots(other) == 0

    await asyncio.to_thread(asyncio.run, program())


def next_renewal(limiter: Limiter) -> float:
    """When anything is renewed next."""
    backend: Any = limiter._backend
    due: float = min(kept.due for kept in backend._lines.here().renewal._kept.values())
    return due


def next_word(limiter: Limiter) -> float:
    """When a process says next that it is alive."""
    backend: Any = limiter._backend
    due: float = backend._lines.here().presence._due
    return due


def lasts(server: RedisServer, namespace: str) -> float:
    """When the lease of the one slot ends."""
    with server.client() as client:
        found: Any = client.zrange(f"{namespace}:s:slot", 0, -1, withscores=True)
    return float(found[0][1]) / 1_000_000


async def test_a_line_beside_a_survivor_does_not_look_all_the_time(
    shared_redis: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19: whether others are going is seen ever more rarely, and the connection stays."""
    looks = 0
    others_are_going = loops.others_are_going

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return others_are_going()

    monkeypatch.setattr(line, "others_are_going", counted)

    async def program() -> None:
        async with stage(shared_redis, namespace) as (limiter, _, _), Holders() as holders:
            holder = asyncio.create_task(holders.hold(await limiter.pre_commit(SLOT)))
            await asyncio.sleep(0)
            await cancel_all()
            begun = asyncio.get_running_loop().time()
            await until(lambda: looks >= 10)  # each pause is twice the one before
            assert asyncio.get_running_loop().time() - begun >= 0.001 * (2**7 - 1)
            holders.done.set()
            await holder

    await asyncio.to_thread(asyncio.run, program())


@pytest.mark.parametrize("survivors", [0, 1])
@pytest.mark.parametrize("topology", ["server", "cluster"])
async def test_c57_a_process_is_counted_again_after_its_tasks_were_all_cancelled(
    topology: str, survivors: int, request: pytest.FixtureRequest, namespace: str
) -> None:
    """C57: a loop that goes on says with its next message that the process is alive, and every third of a lease."""
    server = request.getfixturevalue(f"shared_{'cluster' if topology == 'cluster' else 'redis'}")

    async def program() -> None:
        cluster = topology == "cluster"
        auto = stage(server, namespace, cluster=cluster, local_share="auto")
        async with auto as (limiter, other, clock), Holders() as holders:
            await other.peek(SLOT)

            async def both_are_heard() -> None:
                await until(lambda: heard(server, namespace) == [clock() + LEASE] * 2)
                await until(lambda: min(map(next_word, (limiter, other))) > clock())

            await both_are_heard()
            holding = [
                asyncio.create_task(holders.hold(await limiter.pre_commit(SLOT)))
                for _ in range(survivors)
            ]
            await asyncio.sleep(0)
            await cancel_all()
            for one in (limiter, other):
                await one.peek(SLOT)
            for _ in range(6):
                await until(lambda: min(map(next_word, (limiter, other))) > clock())
                clock.advance(LEASE / 3)
                await both_are_heard()
            holders.done.set()
            await asyncio.gather(*holding)

    await asyncio.to_thread(asyncio.run, program())


def heard(server: RedisServer | RedisCluster, namespace: str) -> list[float]:
    """Until when each process counts."""
    if isinstance(server, RedisServer):
        with server.client() as client:
            found: Any = client.zrange(f"{namespace}:n", 0, -1, withscores=True)
    else:
        key = TaggedKeys(namespace).beside("replicas").replicas
        found = Look(server).zrange(key, 0, -1, withscores=True)
    return [float(end) / 1_000_000 for _, end in found]
