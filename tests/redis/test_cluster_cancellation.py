"""R16 over a cluster: what is over three slots, interrupted at every moment of every round trip, by every kind.

Nothing is left on any of them, or the same on all, and somebody governs it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import pytest

from earmark import RateLimited, Reservation, Scope
from tests.reached import Reached
from tests.redis.crossing import LIMITS, NOTHING, Crossing, crossing
from tests.redis.wire import Wires, until, wires
from tests.servers import RedisCluster
from tests.suspending import Drive, Kind

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

reached = Reached("cancellation over a cluster")

HELD: Final = {"requests": 1, "tokens": 300, "concurrency": 1}
SETTLED: Final = {"requests": 1, "tokens": 120, "concurrency": 0}

KINDS: Final[tuple[Kind, ...]] = ("task", "scope", "close")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class Scene:
    """A limiter whose every round trip is told of, and who was on his way.

    Attributes:
        open: the reservation that is to be resolved.
    """

    def __init__(self, cross: Crossing, wires: Wires, name: str | None) -> None:
        self.cross = cross
        self.wires = wires
        self.name = name
        self.open: Reservation | None = None
        self._others = asyncio.all_tasks()

    async def reserve(self) -> Reservation:
        return await self.cross.limiter.pre_commit(
            *self.cross.scopes, tokens=300, request_id=self.name
        )

    async def be_refused(self) -> bool:
        """The third slot has no room: what the others took is given back."""
        narrow = Scope(self.cross.keys[2], type(LIMITS)(rpd=10, tpd=200, concurrency=2))
        try:
            await self.cross.limiter.pre_commit(
                *self.cross.scopes[:2], narrow, tokens=300, request_id=self.name
            )
        except RateLimited:
            return True
        raise AssertionError

    async def settle(self) -> bool:
        assert self.open is not None
        return await self.open.settle_success(120)

    async def interrupted(
        self, work: Callable[[], Coroutine[Any, Any, Any]], point: int, kind: Kind
    ) -> Drive:
        """Do something, interrupted at one point, and wait until all that it began is over."""
        one = Drive(((point, kind),))
        self.wires.report = one._at_point
        await one.run(work, None)
        await self.rest()
        self.wires.report = None
        reached.count("interruptions", len(one.made))
        if one.error is not None:
            raise one.error
        assert one.propagated
        return one

    async def rest(self) -> None:
        """Wait until nobody is at work, and nobody is owed anything."""
        gc.collect(0)
        for _ in range(4):
            await until(lambda: not (self._at_work() or self.cross.limiter.health().owed))
            await asyncio.sleep(0)

    def _at_work(self) -> bool:
        tasks = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        return any(not task.get_name().startswith("earmark.redis") for task in tasks)

    async def used(self) -> list[Any]:
        """What is used of each scope; the message of this limiter before it does what finalisers noted."""
        await self.cross.limiter.peek(self.cross.scopes[0])
        await self.rest()
        return list(await self.cross.used())

    async def resolved(self, used: list[Any]) -> None:
        """So much is used, nothing is owed or lost, and everything begins with nothing again."""
        assert await self.used() == used
        health = self.cross.limiter.health()
        assert (health.available, health.owed, health.lost) == (True, 0, 0)
        assert health.admitted_without_store == 0
        self.cross.check_ttls()
        self.cross.forget()


async def reserving(scene: Scene, point: int, kind: Kind) -> Drive:
    """Nothing was taken, or it is held by whoever was told so."""
    one = await scene.interrupted(scene.reserve, point, kind)
    if one.result is not None:
        assert await scene.used() == [HELD] * 3
        assert await one.result.cancel() is True
    await scene.resolved([NOTHING] * 3)
    return one


async def refused(scene: Scene, point: int, kind: Kind) -> Drive:
    """Nothing is left, whoever goes while it is given back."""
    one = await scene.interrupted(scene.be_refused, point, kind)
    await scene.resolved([NOTHING] * 3)
    return one


async def settling(scene: Scene, point: int, kind: Kind) -> Drive:
    """What has begun finishes, on every slot; what has not can be done again."""
    scene.open = await scene.reserve()
    one = await scene.interrupted(scene.settle, point, kind)
    if scene.open.state == "open":
        assert await scene.used() == [HELD] * 3
        assert await scene.settle() is True
    await scene.resolved([SETTLED] * 3)
    assert await scene.settle() is False
    return one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [False, True], ids=["", "named"])
@pytest.mark.parametrize("play", [reserving, refused, settling])
async def test_r16_interrupted_at_every_moment(
    shared_cluster: RedisCluster,
    namespace: str,
    wires: Wires,
    play: Callable[[Scene, int, Kind], Awaitable[Drive]],
    named: bool,
    kind: Kind,
) -> None:
    """R16, C14, C54: of a task, of a scope that is cancelled at every await, and of a coroutine that is closed."""
    async with crossing(shared_cluster, namespace, proxied=False) as cross:
        points = 0
        for point in itertools.count(kind == "close"):
            scene = Scene(cross, wires, f"q{point}" if named else None)
            one = await play(scene, point, kind)
            points = max(points, len(one.points))
            if not one.made:
                break
        reached.count("suspension points", points)
        assert points >= 6
