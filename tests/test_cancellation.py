"""R16 at every suspension point: of each verb, of the context manager and of a stream, by both kinds of cancellation.

A table says for each piece of work what the store looks like once it has run, and what it looks like where it was
stopped before it took or gave anything. The driver of tests/suspending.py finds the suspension points and cancels at
each: once, twice, at one point and at two. Then it must hold that

* the cancellation has come out at the caller;
* the store is in one of the two states, the observers were told of what happened, once, and of nothing else;
* a reservation that is still open can be resolved, and gives back what it held and no more (C14);
* another caller, who is at work at the same time, has had its own replies.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
import pytest

from earmark import (
    Limiter,
    Limits,
    MemoryBackend,
    Observed,
    RateLimited,
    Reservation,
    Scope,
    observe_stream,
)
from earmark.core.admission import statuses
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.streams.toys import DONE, SAY, USAGE, Toy
from tests.suspending import Drive, Kind, Plan, Suspending, drive, quiesce

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(rpm=60, tpm=100, concurrency=3))
OTHER: Final = Scope("other", Limits(rpm=1, tpm=100))
SPARE: Final = Scope("spare", Limits(concurrency=1))

Look = tuple[int, int, int]
"""What the store shows of the key: requests and tokens used, slots taken."""

reached = Reached("cancellation")


class Upstream:
    """A source that suspends before each item and while it is closed.

    Args:
        items: what it gives.
        error: what it raises after them; None: it stops.
    """

    def __init__(self, items: Sequence[bytes], error: Exception | None = None) -> None:
        self._items = iter(items)
        self._error = error
        self.asked_to_close = self.closed = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for item in self._items:
            return item
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.asked_to_close += 1
        await anyio.lowlevel.checkpoint()
        self.closed += 1


class Scene:
    """A limiter on a suspending backend, 40 tokens that somebody else has used, and what observers are told."""

    def __init__(self) -> None:
        self.backend = Suspending(MemoryBackend(clock=ManualClock()))
        self.events: list[Any] = []
        self.limiter = Limiter(self.backend, observers=(self.events.append,))
        self.handles: list[Reservation] = []
        self.told: list[Observed] = []
        self.streams: list[Any] = []
        self.upstream = Upstream(())

    async def set_up(self, row: Row, *, dropped: bool) -> Self:
        """Hold 30 tokens where the row wants it; `dropped`: a finaliser has left work to whoever comes first."""
        await self.limiter.add_tokens_post_stream(KEY, 40)
        if row.held:
            self.handles.append(await self.limiter.pre_commit(KEY, tokens=30, request_id="held"))
        if dropped:
            await self.drop_one()
        self.events.clear()
        return self

    async def drop_one(self) -> None:
        """Leave a slot of another key to a finaliser."""
        dropped = [await self.limiter.pre_commit(SPARE)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            dropped.clear()

    @property
    def handle(self) -> Reservation:
        """The one reservation that is at stake."""
        (handle,) = self.handles
        return handle

    async def look(self) -> Look:
        """What the store shows; it is not a message, and nothing is tidied up for it."""
        seen = await self.backend.inner.peek((KEY,))
        (status,) = statuses((KEY,), None, seen.states, seen.at)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    async def spare_slots(self) -> int:
        """The slots of the key that a finaliser has left."""
        seen = await self.backend.inner.peek((SPARE,))
        (status,) = statuses((SPARE,), None, seen.states, seen.at)
        return status.limits[0].used

    async def be_beside(self) -> None:
        """Somebody else, with a key of their own: every reply has to be theirs."""
        reservation = await self.limiter.pre_commit(OTHER, tokens=5)
        with pytest.raises(RateLimited):
            await self.limiter.pre_commit(OTHER, tokens=5)
        assert await reservation.settle_success(7) is True
        (status,) = await self.limiter.peek(OTHER)
        assert [limit.used for limit in status.limits] == [1, 7]

    def kinds(self) -> list[str]:
        """What observers were told about the request at stake."""
        return [event.kind for event in self.events if "key" in event.keys]

    def wrap(self, items: Sequence[bytes], error: Exception | None = None) -> Any:
        """A stream that has the reservation, over one that is observed by an async callback."""
        self.upstream = Upstream(items, error)

        async def tell(observed: Observed) -> None:
            await anyio.lowlevel.checkpoint()
            self.told.append(observed)

        inner = observe_stream(self.upstream, on_complete=tell, dialect=Toy)
        self.streams.append(self.handle.stream(inner, dialect=Toy))
        return self.streams[0]


# What is done.


async def pre_commit(scene: Scene) -> None:
    scene.handles.append(await scene.limiter.pre_commit(KEY, tokens=30))


async def pre_commit_by_id(scene: Scene) -> None:
    scene.handles.append(await scene.limiter.pre_commit(KEY, tokens=30, request_id="mine"))


async def refused(scene: Scene) -> None:
    with pytest.raises(RateLimited):
        await scene.limiter.pre_commit(KEY, tokens=61)


async def adopt(scene: Scene) -> None:
    again = await scene.limiter.pre_commit(KEY, tokens=30, request_id="held")
    assert again is scene.handle


async def settle(scene: Scene) -> None:
    assert await scene.handle.settle_success(12)


async def settle_by_limiter(scene: Scene) -> None:
    assert await scene.limiter.settle_success(scene.handle, {"tokens": 12})


async def close(scene: Scene) -> None:
    assert await scene.limiter.close_reserved_only(scene.handle)


async def abandon(scene: Scene) -> None:
    assert await scene.handle.abandon()


async def cancel(scene: Scene) -> None:
    assert await scene.limiter.cancel(scene.handle)


async def renew(scene: Scene) -> None:
    assert await scene.handle.renew()


async def add(scene: Scene) -> None:
    await scene.limiter.add_tokens_post_stream(KEY, 15)


async def add_by_id(scene: Scene) -> None:
    await scene.limiter.add_tokens_post_stream("key", 15, request_id="late")


async def peek(scene: Scene) -> None:
    (status,) = await scene.limiter.peek(KEY)
    assert status["tokens"].used == 70


async def reset(scene: Scene) -> None:
    await scene.limiter.reset(KEY)


async def block(scene: Scene) -> None:
    async with scene.handle:
        pass


async def block_of_its_own(scene: Scene) -> None:
    async with await scene.limiter.pre_commit(KEY, tokens=30) as reservation:
        scene.handles.append(reservation)
        await anyio.lowlevel.checkpoint()


async def block_that_fails(scene: Scene) -> None:
    with pytest.raises(LookupError):
        async with scene.handle:
            raise LookupError


async def block_that_settles(scene: Scene) -> None:
    async with scene.handle as reservation:
        assert await reservation.settle_success(12)
        await anyio.lowlevel.checkpoint()


async def stream_to_its_end(scene: Scene) -> None:
    assert [item async for item in scene.wrap([SAY, USAGE, DONE])] == [SAY, USAGE, DONE]


async def stream_that_just_stops(scene: Scene) -> None:
    assert [item async for item in scene.wrap([SAY])] == [SAY]


async def stream_that_fails(scene: Scene) -> None:
    with pytest.raises(LookupError):
        async for _ in scene.wrap([SAY], LookupError()):
            pass


async def stream_that_is_closed(scene: Scene) -> None:
    stream = scene.wrap([SAY, USAGE, DONE])
    assert await anext(stream) == SAY
    await stream.aclose()


async def stream_that_is_closed_at_once(scene: Scene) -> None:
    await scene.wrap([SAY]).aclose()


async def stream_that_is_left(scene: Scene) -> None:
    async for _ in scene.wrap([SAY, DONE]):
        break


NOTHING: Final[Look] = (0, 40, 0)
HELD: Final[Look] = (1, 70, 1)
KEPT: Final[Look] = (1, 70, 0)
SETTLED: Final[Look] = (1, 52, 0)

End = tuple[Look, tuple[str, ...]]
"""What the store shows of the key afterwards, and what observers are told of it."""


@dataclass(frozen=True)
class Row:
    """One piece of work.

    Attributes:
        work: what is done.
        points: the least number of its suspension points.
        end: what it leads to.
        stopped: what else it may lead to where it is interrupted; empty: once it is called, it finishes.
        held: a reservation of 30 tokens is there before.
    """

    work: Callable[[Scene], Coroutine[Any, Any, None]]
    points: int
    end: End
    stopped: tuple[End, ...] = ()
    held: bool = True

    @property
    def name(self) -> str:
        return self.work.__name__


ABANDONED: Final[End] = (KEPT, ("abandoned",))

ROWS: Final = (
    Row(pre_commit, 2, (HELD, ("admitted",)), ((NOTHING, ()),), held=False),
    Row(pre_commit_by_id, 2, (HELD, ("admitted",)), ((NOTHING, ()),), held=False),
    Row(refused, 2, (NOTHING, ("refused",)), ((NOTHING, ()),), held=False),
    Row(adopt, 2, (HELD, ())),
    Row(settle, 2, (SETTLED, ("settled",))),
    Row(settle_by_limiter, 2, (SETTLED, ("settled",))),
    Row(close, 2, (KEPT, ("closed",))),
    Row(abandon, 2, ABANDONED),
    Row(cancel, 2, (NOTHING, ("cancelled",))),
    Row(renew, 2, (HELD, ())),
    Row(add, 2, ((1, 85, 1), ("post_stream",))),
    Row(add_by_id, 2, ((1, 85, 1), ("post_stream",))),
    Row(peek, 2, (HELD, ())),
    Row(reset, 2, ((0, 0, 1), ()), ((HELD, ()),)),
    Row(block, 2, (KEPT, ("closed",))),
    Row(
        block_of_its_own,
        5,
        (KEPT, ("admitted", "closed")),
        ((NOTHING, ()), (KEPT, ("admitted", "abandoned"))),
        held=False,
    ),
    Row(block_that_fails, 2, (KEPT, ("closed",))),
    Row(block_that_settles, 3, (SETTLED, ("settled",))),
    Row(stream_to_its_end, 8, (SETTLED, ("settled",)), (ABANDONED,)),
    Row(stream_that_just_stops, 6, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_fails, 6, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_is_closed, 5, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_is_closed_at_once, 4, (KEPT, ("closed",))),
    Row(stream_that_is_left, 1, ABANDONED),
)


async def run(row: Row, plan: Plan = (), *, dropped: bool = False) -> Drive:
    """Do the work of a row in a scene of its own, interrupted as planned, and check what it has led to.

    `dropped`: a finaliser has left work, which whoever comes first does; then nobody else is there.
    """
    scene = await Scene().set_up(row, dropped=dropped)
    alone = dropped or any(kind == "all" for _, kind in plan)
    one = await drive(partial(row.work, scene), plan, beside=None if alone else scene.be_beside)
    try:
        if one.error is not None:
            raise one.error
        await check(row, scene, one)
    except BaseException as error:
        error.add_note(f"{row.name}, interrupted by {plan} of {one.points}")
        raise
    return one


async def check(row: Row, scene: Scene, one: Drive) -> None:
    """Hold what was left against the row."""
    scene.streams.clear()
    await quiesce()
    await Limiter(scene.backend.inner).peek(SPARE)  # the next message does what finalisers noted
    ends = (row.end, *row.stopped) if one.made else (row.end,)
    look = await scene.look()
    assert (look, tuple(scene.kinds())) in ends
    assert one.propagated
    assert await scene.spare_slots() == 0
    if row.name.startswith("stream"):
        assert len(scene.told) == 1
        assert scene.upstream.asked_to_close == 1
        # asyncio's own cancellation reaches into whatever the source does while it closes.
        assert scene.upstream.closed == 1 or not {"scope", "outer"}.issuperset(one.made)
    if look[2]:
        # Somebody has to be able to resolve it, and it gives back what it took (C14).
        assert await scene.handle.cancel() is True
        used = (0, 0) if look == (0, 0, 1) else (look[0] - 1, look[1] - 30)
        assert await scene.look() == (*used, 0)
    for handle in scene.handles:
        assert await handle.settle_success(99) is False
        assert handle.state != "open"


def pairs(loop: str) -> tuple[tuple[Kind, Kind], ...]:
    """What comes twice in a row."""
    if loop == "trio":
        return (("scope", "outer"),)
    return (("task", "task"), ("task", "scope"), ("scope", "task"), ("scope", "outer"))


def loop_of(one: str) -> tuple[Kind, ...]:
    """How a caller is cancelled, once."""
    return ("scope",) if one == "trio" else ("task", "scope")


def note(one: Drive, plan: Plan) -> Drive:
    """Count what was done, all of which was planned."""
    assert one.made == [kind for _, kind in plan]
    reached.count("interruptions", len(plan))
    return one


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    """Each piece of work in turn."""
    one: Row = request.param
    return one


@pytest.mark.parametrize("dropped", [False, True], ids=["", "after a drop"])
async def test_r16_cancelled_once_at_every_suspension_point(
    row: Row, dropped: bool, anyio_backend: str
) -> None:
    """R16: nothing was taken, or a resolver governs it; what has begun finishes; the cancellation propagates."""
    undisturbed = await run(row, dropped=dropped)
    points = len(undisturbed.points)
    assert points >= row.points
    reached.count(f"suspension points on {anyio_backend}", points)
    for point, kind in product(range(points + 1), loop_of(anyio_backend)):
        plan: Plan = ((point, kind),)
        note(await run(row, plan, dropped=dropped), plan)


@pytest.mark.parametrize("dropped", [False, True], ids=["", "after a drop"])
async def test_r16_cancelled_twice_at_every_two_suspension_points(
    row: Row, dropped: bool, anyio_backend: str
) -> None:
    """R16: the second comes at the same point, or while the first one is waited out under a shield."""
    points = len((await run(row, dropped=dropped)).points)
    for point, (kind, again) in product(range(points + 1), pairs(anyio_backend)):
        later = len((await run(row, ((point, kind),), dropped=dropped)).points)
        for second in range(point, later + 1):
            plan: Plan = ((point, kind), (second, again))
            note(await run(row, plan, dropped=dropped), plan)


ON_ASYNCIO: Final = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@ON_ASYNCIO
@pytest.mark.parametrize("dropped", [False, True], ids=["", "after a drop"])
async def test_r15_closed_at_every_suspension_point(row: Row, dropped: bool) -> None:
    """R15, C42: a coroutine that is collected where it waits is no place to wait: the next message does the work."""
    points = len((await run(row, dropped=dropped)).points)
    for point in range(1, points + 1):
        plan: Plan = ((point, "close"),)
        note(await run(row, plan, dropped=dropped), plan)


@ON_ASYNCIO
@pytest.mark.parametrize("dropped", [False, True], ids=["", "after a drop"])
async def test_r16_everything_cancelled_at_every_suspension_point(row: Row, dropped: bool) -> None:
    """R16, R15: a loop that ends takes what was at work with it; nothing is lost, and another loop goes on with it."""
    points = len((await run(row, dropped=dropped)).points)
    for point in range(points + 1):
        plan: Plan = ((point, "all"),)
        note(await run(row, plan, dropped=dropped), plan)
