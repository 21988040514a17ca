"""R16 at every suspension point of `once`, by both kinds of cancellation: what was taken is governed, or given back.

The driver of tests/suspending.py finds the suspension points and interrupts at each. Afterwards, whatever the work was
in the midst of, everything that it had is let go, and then

* the cancellation has come out at the caller;
* no slot is held and no reservation open: each was resolved, or noted by a finaliser and done by the next message;
* the request shows what it held or what was settled, a target the same or nothing, and nothing shows half of it.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, RateLimited, ReserveOnce, Scope
from earmark.core.admission import statuses
from earmark.core.hold import Hold
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.streams.toys import DONE, SAY, USAGE, Toy
from tests.suspending import Drive, Kind, Plan, Suspending, drive, quiesce

pytestmark = pytest.mark.anyio

USER: Final = Scope("user", Limits(rpm=60, tpm=100, concurrency=3))
P1: Final = Scope("p1", Limits(rpm=60, tpm=100, concurrency=3))
P2: Final = Scope("p2", Limits(rpm=60, tpm=100, concurrency=3))
FULL: Final = Scope("full", Limits(tpm=0))

reached = Reached("cancellation of once")

Look = tuple[int, int, int]


class Scene:
    """A limiter on a backend that suspends, and whatever the work keeps."""

    def __init__(self) -> None:
        self.memory = MemoryBackend(clock=ManualClock())
        self.limiter = Limiter(Suspending(self.memory))
        self.kept: list[Any] = []

    def once(self) -> ReserveOnce:
        return self.limiter.once(USER, tokens=30)

    async def look(self, scope: Scope) -> Look:
        """What the store shows; no message of the limiter."""
        seen = await self.memory.peek((scope,))
        (status,) = statuses((scope,), None, seen.states, seen.at)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots


class Source:
    """Gives its items, and suspends before each."""

    def __init__(self, *items: bytes) -> None:
        self._items = iter(items)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for item in self._items:
            return item
        raise StopAsyncIteration


async def one_that_settles(scene: Scene) -> None:
    async with scene.once() as once, await once.attempt(P1) as attempt:
        assert await attempt.settle_success(12)


async def one_that_is_left(scene: Scene) -> None:
    async with scene.once() as once, await once.attempt(P1):
        await anyio.lowlevel.checkpoint()


async def bare_ones_that_are_left(scene: Scene) -> None:
    async with scene.once() as once:
        await once.attempt(P1)
        await once.attempt(P2)


async def one_that_fails_over(scene: Scene) -> None:
    async with scene.once() as once:
        async with await once.attempt(P1) as attempt:
            assert await attempt.cancel()
        with pytest.raises(RateLimited):
            await once.attempt(FULL)
        async with await once.attempt(P2) as attempt:
            assert await attempt.settle_success(12)


async def two_at_once(scene: Scene) -> None:
    async def attempt(once: ReserveOnce, target: Scope) -> None:
        async with await once.attempt(target) as attempt:
            await attempt.settle_success(6)

    async with scene.once() as once, anyio.create_task_group() as tasks:
        tasks.start_soon(attempt, once, P1)
        tasks.start_soon(attempt, once, P2)


async def refused_together(scene: Scene) -> None:
    with pytest.raises(RateLimited):
        async with scene.once() as once:
            await once.attempt(FULL)


async def cancelled_whole(scene: Scene) -> None:
    async with scene.once() as once:
        await once.attempt(P1)
        assert await once.cancel()


async def handed_over(scene: Scene) -> None:
    async with scene.once() as once:
        stream = (await once.attempt(P1)).stream(Source(SAY, USAGE, DONE), dialect=Toy)
        scene.kept.append(stream)
    assert [item async for item in stream] == [SAY, USAGE, DONE]


async def handed_over_and_closed(scene: Scene) -> None:
    async with scene.once() as once:
        stream = (await once.attempt(P1)).stream(Source(SAY, DONE), dialect=Toy)
        scene.kept.append(stream)
        assert await anext(stream) == SAY
        await stream.aclose()


NOTHING: Final[Look] = (0, 0, 0)
KEPT: Final[Look] = (1, 30, 0)
SETTLED: Final[Look] = (1, 12, 0)

Work = Callable[[Scene], Coroutine[Any, Any, None]]

# What is done, the least number of its suspension points, and what the user and the targets show in the end.
ROWS: Final[tuple[tuple[Work, int, Look, Look, Look], ...]] = (
    (one_that_settles, 6, SETTLED, SETTLED, NOTHING),
    (one_that_is_left, 7, KEPT, KEPT, NOTHING),
    (bare_ones_that_are_left, 6, KEPT, KEPT, KEPT),
    (one_that_fails_over, 10, SETTLED, NOTHING, SETTLED),
    (two_at_once, 4, (1, 12, 0), (1, 6, 0), (1, 6, 0)),
    (refused_together, 2, NOTHING, NOTHING, NOTHING),
    (cancelled_whole, 5, NOTHING, NOTHING, NOTHING),
    (handed_over, 8, SETTLED, SETTLED, NOTHING),
    (handed_over_and_closed, 5, KEPT, KEPT, NOTHING),
)
NAMES: Final = [row[0].__name__ for row in ROWS]


async def run(work: Work, plan: Plan, looks: tuple[Look, ...]) -> Drive:
    """Do the work in a scene of its own, interrupted as planned, and check what is left when all is let go."""
    scene = Scene()
    with warnings.catch_warnings():
        # Whoever is collected where it waits can only be noted, and bare attempts warn of that.
        warnings.simplefilter("ignore" if plan else "error", ResourceWarning)
        one = await drive(partial(work, scene), plan)
        if one.error is not None:
            raise one.error
        scene.kept.clear()
        await quiesce()
        if scene.memory.instant._book.open:
            gc.collect()  # the traceback of whoever was interrupted may be in a cycle with it
        await Limiter(scene.memory).peek(P1)  # the next message does what finalisers noted
    assert one.propagated
    found = [await scene.look(scope) for scope in (USER, P1, P2)]
    try:
        check(found, looks, one)
        assert not scene.memory.instant._book.open
    except AssertionError as error:
        error.add_note(f"{work.__name__}, interrupted by {plan} of {one.points}")
        raise
    return one


def check(found: list[Look], looks: tuple[Look, ...], one: Drive) -> None:
    """Whether the work may have led to this."""
    if not one.made:
        assert tuple(found) == looks
        return
    assert all(slots == 0 for _, _, slots in found), found
    half = {(1, 6, 0), (1, 36, 0), (1, 12, 0)}  # of two at once one may have been settled
    for look, end in zip(found, looks, strict=True):
        assert look in {NOTHING, KEPT, SETTLED, end} | half, found
    user, *targets = found
    if "all" in one.made:
        return  # what was at work is cut off as well, and one of two messages may have come through
    # A target is never held without its request; and who settled a target has charged the request.
    if user == NOTHING:
        assert targets == [NOTHING, NOTHING], found
    if user == KEPT:
        assert all(target in {NOTHING, KEPT} for target in targets), found


def kinds(loop: str) -> tuple[Kind, ...]:
    return ("task", "scope", "close", "all") if loop == "asyncio" else ("scope",)


@pytest.mark.parametrize(("work", "points", "user", "p1", "p2"), ROWS, ids=NAMES)
async def test_r16_at_every_suspension_point(
    work: Work, points: int, user: Look, p1: Look, p2: Look, anyio_backend_name: str
) -> None:
    """R16: cancelled anywhere, once or at two points in a row, nothing is leaked and nothing is counted by halves."""
    looks = (user, p1, p2)
    plain = await run(work, (), looks)
    assert len(plain.points) >= points
    for kind in kinds(anyio_backend_name):
        if kind in {"close", "all"} and work is two_at_once:
            continue  # a task group is neither collected where it waits, nor are its tasks cancelled one by one
        for point in range(kind == "close", len(plain.points) + 1):
            one = await run(work, ((point, kind),), looks)
            reached.count("suspension points")
            reached.count(f"interrupted by {kind}", bool(one.made))
            assert one.made or kind == "close"
            if kind in {"task", "scope"}:
                await run(work, ((point, kind), (point + 1, "scope")), looks)


@pytest.mark.parametrize("first", [True, False])
async def test_r16_the_block_is_left_while_an_attempt_is_on_its_way(first: bool) -> None:
    """R16: what comes back too late is given back at once, and its caller told."""
    scene = Scene()
    once = scene.once()
    raised: list[RuntimeError] = []

    async def attempt() -> None:
        try:
            await once.attempt(P1)
        except RuntimeError as error:
            raised.append(error)

    async with once, anyio.create_task_group() as tasks:
        if not first:
            await once.attempt(P2)
        backend = scene.limiter._backend
        assert isinstance(backend, Suspending)
        gate = backend.gate("reserve", "after")
        tasks.start_soon(attempt)
        await gate.reached.wait()
        await once.__aexit__(None, None, None)
        gate.open()
    assert len(raised) == 1
    assert await scene.look(P1) == NOTHING
    assert await scene.look(USER) == (NOTHING if first else KEPT)
    assert not scene.memory.instant._book.open


async def test_r16_what_comes_back_as_the_block_is_left_is_given_back_and_not_closed() -> None:
    """R16: its caller never had it, so that whoever resolves what is open leaves it alone."""
    scene = Scene()
    once = scene.once()
    backend = scene.limiter._backend
    assert isinstance(backend, Suspending)
    raised: list[RuntimeError] = []

    async def attempt() -> None:
        try:
            await once.attempt(P1)
        except RuntimeError as error:
            raised.append(error)

    async with anyio.create_task_group() as tasks, once:
        await once.attempt(P2)
        gate = backend.gate("reserve", "after")
        tasks.start_soon(attempt)
        await gate.reached.wait()
        gate.open()  # its task goes on before one does that is made from here on
        await once.__aexit__(None, None, None)
    assert len(raised) == 1
    assert await scene.look(P1) == NOTHING
    assert await scene.look(P2) == await scene.look(USER) == KEPT
    assert not scene.memory.instant._book.open


class _Owed(NamedTuple):
    """What a finaliser has noted, and takes its time: money of somebody else, in a ledger."""

    hold: Hold
    reached: anyio.Event

    async def do(self) -> bool:
        self.reached.set()
        await anyio.sleep_forever()
        return False


@pytest.mark.parametrize("suspending", [False, True], ids=["memory", "suspending"])
@pytest.mark.parametrize("ending", ["settle", "settle and leave", "leave", "cancel"])
async def test_r16_what_was_noted_comes_between_no_two_parts(ending: str, suspending: bool) -> None:
    """R16, R15: cancelled while a message does what finalisers have noted, the message itself is done whole."""
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory) if suspending else memory)
    owed = _Owed(
        Hold.restored("of another", None, (P2,), {}, lease_us=None, seen=(), at=0), anyio.Event()
    )
    kept: list[Any] = []

    async def work() -> None:
        async with limiter.once(USER, tokens=30) as once:
            attempt = await once.attempt(P1)
            kept.append(attempt)
            if ending != "settle and leave":
                limiter._backend.desk.dropped.append(owed)
            if ending.startswith("settle"):
                assert await attempt.settle_success(12)
            if ending == "cancel":
                await once.cancel()
            limiter._backend.desk.dropped.append(owed)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        with anyio.fail_after(10):
            await owed.reached.wait()
        tasks.cancel_scope.cancel()
    limiter._backend.desk.dropped.clear()
    looks = [tuple(limit.used for limit in one.limits) for one in await limiter.peek(USER, P1)]
    wanted = {"leave": KEPT, "cancel": NOTHING}.get(ending, SETTLED)
    assert looks == [wanted, wanted]
    assert not memory.instant._book.open
    assert kept.pop().state == {"leave": "closed", "cancel": "cancelled"}.get(ending, "settled")


@pytest.mark.parametrize("by_task", [False, True])
async def test_r16_what_comes_back_too_late_is_given_back_by_whoever_is_cancelled(
    by_task: bool, anyio_backend_name: str
) -> None:
    """R16: the target's part and what was to be shared, though the caller goes while the first is under way."""
    if by_task and anyio_backend_name == "trio":
        pytest.skip("asyncio alone has it")
    scene = Scene()
    once = scene.once()
    backend = scene.limiter._backend
    assert isinstance(backend, Suspending)
    scope = anyio.CancelScope()
    running: list[asyncio.Task[Any] | None] = []

    async def attempt() -> None:
        running.append(asyncio.current_task() if by_task else None)
        with scope:
            await once.attempt(P1)

    async with anyio.create_task_group() as tasks:
        async with once:
            asked = backend.gate("reserve", "after")
            tasks.start_soon(attempt)
            await asked.reached.wait()
        given = backend.gate("resolve", "before")
        asked.open()
        await given.reached.wait()
        (task,) = running
        if task is None:
            scope.cancel()
        else:
            task.cancel()
        given.open()
    assert await scene.look(P1) == await scene.look(USER) == NOTHING
    assert not scene.memory.instant._book.open
