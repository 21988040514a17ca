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
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
import pytest
import trio

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
from tests.rows import quiet
from tests.streams.toys import DONE, SAY, USAGE, Toy
from tests.suspending import Drive, Kind, Place, Plan, Suspending, drive, quiesce

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
    """A limiter on a backend that suspends, 40 tokens that somebody else has used, and what observers are told.

    Args:
        instant: the limiter is on the plain memory backend, which never suspends.
    """

    def __init__(self, *, instant: bool) -> None:
        self.memory = MemoryBackend(clock=ManualClock())
        self.events: list[Any] = []
        backend = self.memory if instant else Suspending(self.memory)
        self.limiter = Limiter(backend, observers=(self.events.append,))
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
        seen = await self.memory.peek((KEY,))
        (status,) = statuses((KEY,), None, seen.states, seen.at)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    async def spare_slots(self) -> int:
        """The slots of the key that a finaliser has left."""
        seen = await self.memory.peek((SPARE,))
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
        collected: what else it may lead to where the caller is collected before the first message is on its way.
        held: a reservation of 30 tokens is there before.
    """

    work: Callable[[Scene], Coroutine[Any, Any, None]]
    points: int
    end: End
    stopped: tuple[End, ...] = ()
    collected: tuple[End, ...] = ()
    held: bool = True

    @property
    def name(self) -> str:
        return self.work.__name__

    @property
    def is_stream(self) -> bool:
        return self.name.startswith("stream")

    def allows(self, look: Look, told: tuple[str, ...], one: Drive) -> bool:
        """Whether a run may have led to this."""
        if "all" not in one.made:
            ends = (self.end, *self.stopped) if one.made else (self.end,)
            if "close" in one.made:
                ends += self.collected
            return (look, told) in ends
        # What was at work is cut off as well: the message was applied or not, and nobody learned of it.
        before = HELD if self.held else NOTHING
        return look in {before, HELD, KEPT, self.end[0]} and len(told) <= 2


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
    Row(block_that_settles, 3, (SETTLED, ("settled",)), collected=(ABANDONED,)),
    Row(stream_to_its_end, 8, (SETTLED, ("settled",)), (ABANDONED,)),
    Row(stream_that_just_stops, 6, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_fails, 6, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_is_closed, 5, (KEPT, ("closed",)), (ABANDONED,)),
    Row(stream_that_is_closed_at_once, 4, (KEPT, ("closed",))),
    Row(stream_that_is_left, 1, ABANDONED),
)


async def run(row: Row, plan: Plan = (), *, dropped: bool = False, instant: bool = False) -> Drive:
    """Do the work of a row in a scene of its own, interrupted as planned, and check what it has led to.

    `dropped`: a finaliser has left work, which whoever comes first does; then nobody else is there.
    """
    scene = await Scene(instant=instant).set_up(row, dropped=dropped)
    alone = dropped or any(kind == "all" for _, kind in plan)
    one = await drive(partial(row.work, scene), plan, beside=None if alone else scene.be_beside)
    try:
        await check(row, scene, one)
    except BaseException as error:
        error.add_note(f"{row.name}, interrupted by {plan} of {one.points}")
        raise
    return one


async def check(row: Row, scene: Scene, one: Drive) -> None:
    """Hold what was left against the row."""
    if one.error is not None:
        raise one.error
    at_once = "all" in one.made
    if row.is_stream:
        scene.streams.clear()
        scene.handles.clear()
        await quiesce()
        assert len(scene.told) == 1 or at_once
        assert scene.upstream.asked_to_close == 1 or at_once
        # asyncio's own cancellation reaches into whatever the source does while it closes.
        assert scene.upstream.closed == 1 or not {"scope", "outer"}.issuperset(one.made)
    if at_once:
        # An error that ended a stream has a traceback, and that has the stream.
        scene.told.clear()
        scene.upstream = Upstream(())
        gc.collect()
    await Limiter(scene.memory).peek(SPARE)  # the next message does what finalisers noted
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


def pairs(loop: str) -> tuple[tuple[Kind, Kind], ...]:
    """What comes twice in a row."""
    if loop == "trio":
        return (("scope", "outer"),)
    return (("task", "task"), ("task", "scope"), ("scope", "task"), ("scope", "outer"))


def loop_of(one: str) -> tuple[Kind, ...]:
    """How a caller is cancelled, once."""
    return ("scope",) if one == "trio" else ("task", "scope")


CUT_OFF: Final[Mapping[str, tuple[Kind, ...]]] = {"asyncio": ("all", "close"), "trio": ()}
"""How a caller is interrupted who is not meant to go on."""


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


async def test_r16_cancelled_twice_at_every_two_suspension_points(
    row: Row, anyio_backend: str
) -> None:
    """R16: the second comes at the same point, or while the first one is waited out under a shield."""
    points = len((await run(row)).points)
    for point, (kind, again) in product(range(points + 1), pairs(anyio_backend)):
        later = len((await run(row, ((point, kind),))).points)
        for second in range(point, later + 1):
            plan: Plan = ((point, kind), (second, again))
            note(await run(row, plan), plan)


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


async def test_r16_in_memory_nothing_suspends(row: Row, anyio_backend: str) -> None:
    """R16: on the memory backend only a stream, or the caller's own block, can be interrupted at all."""
    points = len((await run(row, instant=True)).points)
    assert points == (1 if "block" in row.name and points else points if row.is_stream else 0)
    kinds: tuple[Kind, ...] = (*loop_of(anyio_backend), *CUT_OFF[anyio_backend])
    for point, kind in product(range(points + 1), kinds):
        if point or kind != "close":
            plan: Plan = ((point, kind),)
            note(await run(row, plan, instant=True), plan)


# R9: a reserve whose caller was cancelled is taken back by its id, unless somebody else has been given it.


class Race:
    """Two callers with one request id on a backend that suspends.

    Attributes:
        got: what each caller was given, by its name.
    """

    def __init__(self) -> None:
        self.memory = MemoryBackend(clock=ManualClock())
        self.backend = Suspending(self.memory)
        self.events: list[Any] = []
        self.limiter = Limiter(self.backend, observers=(self.events.append,))
        self.got: dict[str, Reservation] = {}

    async def ask(self, caller: str, scope: anyio.CancelScope | None = None) -> None:
        """Ask for 30 tokens under the one id."""
        with scope or anyio.CancelScope():
            self.got[caller] = await self.limiter.pre_commit(KEY, tokens=30, request_id="q")

    async def look(self) -> Look:
        """What the next message of another limiter finds."""
        (status,) = await Limiter(self.memory).peek(KEY)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    async def is_whole(self, caller: str) -> None:
        """That caller has the one reservation, of which observers have heard once, and can settle it."""
        await quiesce()
        assert await self.look() == (1, 30, 1)
        assert await self.got[caller].settle_success(12) is True
        assert await self.look() == (1, 12, 0)
        assert [event.kind for event in self.events] == ["admitted", "settled"]


async def test_r9_a_withdrawal_spares_what_another_caller_has_adopted() -> None:
    """R9: A is cancelled while its reply is on its way; B, who was answered with the same reservation, keeps it."""
    race, first = Race(), anyio.CancelScope()
    reply = race.backend.gate("reserve", "after")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.ask, "a", first)
        await reply.reached.wait()
        await race.ask("b")
        first.cancel()
    assert set(race.got) == {"b"}
    await race.is_whole("b")


async def test_r9_a_withdrawal_on_its_way_spares_what_is_adopted_meanwhile() -> None:
    """R9: A's withdrawal was sent before B asked, and comes to the store after."""
    race, first = Race(), anyio.CancelScope()
    reply = race.backend.gate("reserve", "after")
    withdrawal = race.backend.gate("resolve", "before")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.ask, "a", first)
        await reply.reached.wait()
        first.cancel()
        await withdrawal.reached.wait()
        await race.ask("b")
        withdrawal.open()
    await race.is_whole("b")


async def test_r9_what_was_withdrawn_first_is_reserved_anew() -> None:
    """R9: A's withdrawal comes to the store before B does: there is one debit, and it is B's."""
    race, first = Race(), anyio.CancelScope()
    reply = race.backend.gate("reserve", "after")
    withdrawal = race.backend.gate("resolve", "after")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.ask, "a", first)
        await reply.reached.wait()
        first.cancel()
        await withdrawal.reached.wait()
        await race.ask("b")
        withdrawal.open()
    await race.is_whole("b")


async def test_r9_two_callers_that_adopt_have_one_object_and_one_admission() -> None:
    """R9: B is answered before A is; both have the same object, and observers hear of one admission."""
    race = Race()
    reply = race.backend.gate("reserve", "after")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.ask, "a")
        await reply.reached.wait()
        await race.ask("b")
        reply.open()
    assert race.got["a"] is race.got["b"]
    await race.is_whole("a")


async def test_r9_where_all_who_asked_are_cancelled_nothing_is_held() -> None:
    """R9, R16: A and B are cancelled in flight; whoever asks again under the id has a reservation of his own."""
    race, scope = Race(), anyio.CancelScope()
    replies = [race.backend.gate("reserve", "after") for _ in "ab"]
    async with anyio.create_task_group() as tasks:
        for caller, reply in zip("ab", replies, strict=True):
            tasks.start_soon(race.ask, caller, scope if caller == "a" else None)
            await reply.reached.wait()
        tasks.cancel_scope.cancel()
    assert not race.got
    assert await race.look() == (0, 0, 0)
    await race.ask("c")
    await race.is_whole("c")


@pytest.mark.parametrize(
    ("place", "beside"), [("before", False), ("after", False), ("after", True)]
)
async def test_r9_what_a_finaliser_noted_is_not_done_to_whoever_adopted_it(
    place: Place, beside: bool
) -> None:
    """R9, R15: A's handle is collected while B's request for its id is on its way, or the reply.

    `beside`: somebody else's message comes in between, and would do what was noted.
    """
    race = Race()
    await race.ask("a")
    message = race.backend.gate("reserve", place)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.ask, "b")
        await message.reached.wait()
        with pytest.warns(ResourceWarning):
            del race.got["a"]
        if beside:
            await race.limiter.peek(OTHER)
        message.open()
    await race.is_whole("b")
    assert not any(event.dropped for event in race.events)


# What R16 says of the rest.


async def test_r9_a_withdrawal_that_fails_is_made_again_by_the_next_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R9, R10: the store cannot be reached for a while: that is logged once, and a lease governs the slot."""
    clock = ManualClock()
    memory = MemoryBackend(clock=clock, lease=30)
    backend, other = Suspending(memory), Limiter(memory)
    reply = backend.gate("reserve", "after")
    for _ in range(3):
        backend.fail("resolve")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(Limiter(backend).pre_commit, KEY, tokens=30))
        await reply.reached.wait()
        tasks.cancel_scope.cancel()
    for at, left in ((29, [1, 30, 1]), (30, [1, 30, 0]), (31, [0, 0, 0])):
        clock.set(at)
        (status,) = await other.peek(KEY)
        assert [limit.used for limit in status.limits] == left
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_r16_a_settlement_that_fails_does_not_hide_the_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R16, C24: the cancellation comes out, the failure is logged, and the reservation can be settled again."""
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    reservation = await Limiter(backend).pre_commit(KEY, tokens=30)
    backend.fail("resolve")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await reservation.settle_success(12)
    assert scope.cancelled_caught
    assert "failed" in caplog.text
    assert reservation.state == "open"
    assert await reservation.settle_success(12) is True


@ON_ASYNCIO
async def test_r16_a_cancelled_caller_is_let_go_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R16: a store that does not answer keeps a cancelled caller for a bounded time; the settlement finishes alone."""
    monkeypatch.setattr("earmark.shielding.PATIENCE", 0.0)
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    reservation = await Limiter(backend).pre_commit(KEY, tokens=30)
    stuck = backend.gate("resolve", "before")
    settling = asyncio.ensure_future(reservation.settle_success(12))
    await stuck.reached.wait()
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert "outlives its cancelled caller" in caplog.text
    stuck.open()
    await quiesce()
    assert reservation.state == "settled"


@ON_ASYNCIO
async def test_r16_a_task_that_is_cancelled_before_its_first_step_has_begun_nothing() -> None:
    """R16: nothing was called yet: the reservation is open, and no coroutine is left behind to warn of itself."""
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    limiter = Limiter(backend)
    reservation = await limiter.pre_commit(KEY, tokens=30)
    works = [
        limiter.pre_commit(KEY),
        reservation.settle_success(12),
        reservation.cancel(),
        limiter.add_tokens_post_stream(KEY, 5),
    ]
    with quiet():
        while works:
            task = asyncio.ensure_future(works.pop())
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            del task
    assert backend.applied == {"reserve": 1}
    assert await reservation.settle_success(12) is True


@ON_ASYNCIO
async def test_r16_a_timeout_of_asyncio_lets_the_settlement_finish() -> None:
    """R16: `asyncio.timeout` cancels the task and turns that into its own error; so it does here."""
    backend = Suspending(MemoryBackend(clock=ManualClock()))
    reservation = await Limiter(backend).pre_commit(KEY, tokens=30)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await reservation.settle_success(12)
    assert reservation.state == "settled"


def test_r16_trio_as_a_guest_of_asyncio() -> None:
    """R16: under trio as a guest, asyncio's loop runs as well, and is not the one that runs the caller."""

    async def settle_cancelled(limiter: Limiter) -> str:
        reservation = await limiter.pre_commit(KEY, tokens=30)
        with trio.CancelScope() as scope:
            scope.cancel()
            await reservation.settle_success(12)
        assert scope.cancelled_caught
        other = await limiter.pre_commit(KEY, tokens=30)
        assert [item async for item in other.stream(Upstream([SAY]), dialect=Toy)] == [SAY]
        return f"{reservation.state}, {other.state}"

    async def host() -> str:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            partial(settle_cancelled, Limiter(Suspending(MemoryBackend()))),
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=outcome.set_result,
        )
        # The host is at work as well, and it is asyncio's.
        beside = await Limiter(Suspending(MemoryBackend())).pre_commit(KEY, tokens=30)
        assert [item async for item in beside.stream(Upstream([SAY]), dialect=Toy)] == [SAY]
        states: str = (await outcome).unwrap()
        return f"{states}, {beside.state}"

    assert asyncio.run(host()) == "settled, closed, closed"
