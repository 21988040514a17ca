"""R16 over a real server: every verb, interrupted at every moment of every round trip, by every kind of interruption.

The pieces of work and what each may lead to are those of tests/test_cancellation.py. What waits for the answer is one
await; where the message is at that moment is another matter, which the wires tell (tests/redis/wire.py).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from functools import partial
from typing import Final, Self

import pytest

from earmark import Limiter, RedisBackend
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.redis.wire import Wires, until, wires
from tests.servers import RedisServer
from tests.suspending import Drive, Kind, Plan
from tests.test_cancellation import KEY, ROWS, SPARE, Look, Row, Scene, Upstream

__all__ = ["wires"]

pytestmark = pytest.mark.anyio

reached = Reached("cancellation over Redis")

_numbers: Final = itertools.count()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    """Each piece of work in turn."""
    one: Row = request.param
    return one


class RedisScene(Scene):
    """The same scene on a server."""

    def __init__(self, server: RedisServer, wires: Wires) -> None:
        super().__init__(instant=True)
        self.wires = wires
        namespace = f"cancel{next(_numbers)}"
        self.limiter = Limiter(
            RedisBackend.from_url(
                server.url, namespace=namespace, clock=ManualClock(1_000), timeout=10
            ),
            observers=(self.events.append,),
        )
        self._others = asyncio.all_tasks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.wires.report = None
        await self.limiter.aclose()

    async def look(self) -> Look:
        """What the store shows of the key."""
        (status,) = await self.limiter.peek(KEY)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    async def spare_slots(self) -> int:
        """The slots of the key that a finaliser has left."""
        (status,) = await self.limiter.peek(SPARE)
        return status["concurrency"].used

    async def rest(self) -> None:
        """Wait until all that was begun is done, and the store is owed nothing."""
        for _ in range(4):  # what a callback begins may take another turn or two
            await until(lambda: not (self._at_work() or self.limiter.health().owed))
            await asyncio.sleep(0)

    def _at_work(self) -> bool:
        tasks = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        return any(not task.get_name().startswith("earmark.redis") for task in tasks)


async def check(row: Row, scene: RedisScene, one: Drive) -> None:
    """Hold what was left against the row."""
    if one.error is not None:
        raise one.error
    if row.is_stream:
        scene.streams.clear()
        scene.handles.clear()
        gc.collect(0)
        await scene.rest()
        assert len(scene.told) == 1
        assert scene.upstream.asked_to_close == 1
        scene.told.clear()
        scene.upstream = Upstream(())
    await scene.limiter.peek(SPARE)  # the next message does what finalisers noted
    await scene.rest()
    look = await scene.look()
    assert row.allows(look, tuple(scene.kinds()), one), (look, scene.kinds())
    assert one.propagated
    assert await scene.spare_slots() == 0
    if look[2]:
        # Somebody has to be able to resolve it, and it gives back what it took (C14).
        assert await scene.handle.cancel() is True
        used = (0, 0) if look == (0, 0, 1) else (look[0] - 1, look[1] - 30)
        assert await scene.look() == (*used, 0)
    for handle in scene.handles:
        assert await handle.settle_success(99) is False
        assert handle.state != "open"
    health = scene.limiter.health()
    assert (health.available, health.owed, health.lost, health.admitted_without_store) == (
        True,
        0,
        0,
        0,
    )


async def run(
    row: Row, server: RedisServer, wires: Wires, plan: Plan = (), *, dropped: bool = False
) -> Drive:
    """Do the work of a row in a scene of its own, interrupted as planned, and check what it has led to."""
    async with RedisScene(server, wires) as scene:
        await scene.set_up(row, dropped=dropped)
        one = Drive(plan)
        wires.report = one._at_point
        await one.run(partial(row.work, scene), None if dropped else scene.be_beside)
        await scene.rest()
        wires.report = None
        try:
            await check(row, scene, one)
        except BaseException as error:
            error.add_note(f"{row.name}, interrupted by {plan} of {one.points}")
            raise
    reached.count("interruptions", len(one.made))
    return one


async def everywhere(
    row: Row, server: RedisServer, wires: Wires, *kinds: Kind, dropped: bool = False, apart: int = 0
) -> None:
    """Interrupt a row once at each point, by all kinds one after another, each so many points later."""
    points = 0
    for point in itertools.count(kinds[0] == "close"):
        plan: Plan = tuple((point + apart * number, kind) for number, kind in enumerate(kinds))
        one = await run(row, server, wires, plan, dropped=dropped)
        points = max(points, len(one.points))
        if not one.made:
            break
    reached.count("suspension points", points)
    assert points >= row.points


@pytest.mark.parametrize("dropped", [False, True], ids=["", "after a drop"])
@pytest.mark.parametrize("kind", ["task", "scope", "close"])
async def test_r16_interrupted_at_every_moment(
    row: Row, kind: Kind, dropped: bool, shared_redis: RedisServer, wires: Wires
) -> None:
    """R16, R15: nothing was taken, or a resolver governs it; what has begun counts once; others are not disturbed."""
    await everywhere(row, shared_redis, wires, kind, dropped=dropped)


@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("kinds", [("task", "task"), ("task", "scope"), ("scope", "outer")])
async def test_r16_interrupted_twice(
    row: Row, kinds: tuple[Kind, Kind], apart: int, shared_redis: RedisServer, wires: Wires
) -> None:
    """R16: the second comes at the same point, or while the first one is taken in."""
    await everywhere(row, shared_redis, wires, *kinds, apart=apart)
