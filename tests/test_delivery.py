"""R15 in a quiet process: what is abandoned without a word is resolved by the loop, where no message comes for it.

A generator is left in the midst of its block, a handle is collected, a stream is dropped: nothing can be awaited there,
so that it is noted. Here nobody sends anything afterwards, and the store hears of it all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from earmark import Event, Limiter, Limits, MemoryBackend, RateLimited, Scope
from earmark.testing import LOST, LOST_REPLY, FaultyBackend, ManualClock
from tests.ledgers import sqlite
from tests.rows import quiet
from tests.streams.toys import DONE, SAY, USAGE, Source, Toy
from tests.suspending import Suspending, by_hand

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(rpm=60, tpm=1_000, concurrency=2))
TARGET: Final = Scope("target", Limits(rpm=60, tpm=1_000, concurrency=2))


class Quiet:
    """A limiter over a store that suspends, and word of what it is told of without asking."""

    def __init__(self, times: int = 1) -> None:
        self.memory = MemoryBackend(clock=ManualClock())
        self.backend = Suspending(self.memory)
        self.limiter = Limiter(self.backend, observers=[self.hear])
        self.told: list[str] = []
        self.kept: list[Any] = []
        self.parked = False
        self._times = times
        self._all = anyio.Event()

    def hear(self, event: Event) -> None:
        if event.kind != "admitted":
            self.told.append(event.kind)
            if len(self.told) == self._times:
                self._all.set()

    async def all_told(self) -> list[str]:
        """What became of everything, once it is known; no message is sent for it."""
        with anyio.fail_after(30):
            await self._all.wait()
        return self.told

    def looks(self, *scopes: Scope) -> list[tuple[int, ...]]:
        """What the store shows, without asking it through the limiter."""
        states = self.memory.instant.peek(scopes).states
        assert len(states) == 3 * len(scopes)
        return [tuple(_used(one) for one in states[at : at + 3]) for at in range(0, len(states), 3)]


def _used(state: Any) -> int:
    return state if isinstance(state, int) else len(state)


Body = Callable[[Quiet], AsyncGenerator[object]]


async def block(one: Quiet) -> AsyncGenerator[object]:
    async with await one.limiter.pre_commit(KEY, tokens=5) as reservation:
        one.kept.append(reservation)
        yield SAY


async def attempt(one: Quiet) -> AsyncGenerator[object]:
    async with one.limiter.once(KEY, tokens=5) as once, await once.attempt(TARGET) as reservation:
        one.kept.append(reservation)
        yield SAY


async def once(one: Quiet) -> AsyncGenerator[object]:
    async with one.limiter.once(KEY, tokens=5) as all_of_them:
        one.kept.append(await all_of_them.attempt(TARGET))
        yield SAY


BODIES: Final[dict[Body, int]] = {block: 1, attempt: 2, once: 2}


@pytest.mark.parametrize("body", BODIES)
async def test_r15_a_generator_that_is_left_is_resolved_without_a_message(body: Body) -> None:
    """R15, C42: a body generator that its server closes, while the handle is held on to."""
    one = Quiet(BODIES[body])
    generator: Any = body(one)
    await anext(generator)
    await generator.aclose()
    assert [kept.state for kept in one.kept] == ["abandoned"]
    assert await one.all_told() == ["abandoned"] * BODIES[body]
    assert one.looks(KEY) == [(1, 5, 0)]
    assert not await one.kept[0].close_reserved_only()


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_r15_a_coroutine_that_is_closed_is_not_awaited(body: Body) -> None:
    """R15: nothing may be awaited while a coroutine is closed where it waits: that would be a RuntimeError."""
    one = Quiet(BODIES[body])

    async def work() -> None:
        async with contextlib.aclosing(body(one)) as generator:
            await anext(generator)
            one.parked = True
            await asyncio.sleep(0)  # here it is closed

    with quiet():
        coroutine = work()
        await Driven(coroutine, one)
        coroutine.close()
        assert [kept.state for kept in one.kept] == ["abandoned"]
        del coroutine
    assert await one.all_told() == ["abandoned"] * BODIES[body]


class Driven:
    """Runs a coroutine until it has parked, and leaves it where it waits."""

    def __init__(self, work: Coroutine[Any, Any, None], one: Quiet) -> None:
        self._work = work
        self._one = one

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            waits_for = self._work.send(None)
            if self._one.parked:
                return
            yield waits_for


Dropped = Callable[[Quiet], Awaitable[object]]


async def bare(one: Quiet) -> object:
    return await one.limiter.pre_commit(KEY, tokens=5)


async def in_a_cycle(one: Quiet) -> object:
    cycle: list[object] = [await bare(one)]
    cycle.append(cycle)
    return cycle


async def named(one: Quiet) -> object:
    return await one.limiter.pre_commit(KEY, tokens=5, request_id="named")


async def asked_for_its_id(one: Quiet) -> object:
    handle = await one.limiter.pre_commit(KEY, tokens=5)
    assert handle.request_id  # from now on any process may know it
    return handle


async def bare_attempt(one: Quiet) -> object:
    all_of_them = one.limiter.once(tokens=5)
    await all_of_them.__aenter__()
    return [all_of_them, await all_of_them.attempt(KEY)]


async def stream(one: Quiet) -> object:
    handle = await one.limiter.pre_commit(KEY, tokens=5)
    begun = handle.stream(Source([SAY, USAGE, DONE]), dialect=Toy)
    assert await anext(begun) == SAY
    return begun


async def stream_of_an_attempt(one: Quiet) -> object:
    async with one.limiter.once(tokens=5) as all_of_them:
        begun = (await all_of_them.attempt(KEY)).stream(Source([SAY, DONE]), dialect=Toy)
    assert await anext(begun) == SAY
    return begun


@pytest.mark.parametrize(
    "make",
    [bare, in_a_cycle, named, asked_for_its_id, bare_attempt, stream, stream_of_an_attempt],
)
@pytest.mark.parametrize("where", ["here", "in another thread"])
async def test_r15_what_is_collected_is_resolved_without_a_message(
    make: Dropped, where: str
) -> None:
    """R15: dropped in a process that has nothing further to say, by whichever thread the collector runs in."""
    one = Quiet()
    kept = [await make(one)]
    assert one.looks(KEY) == [(1, 5, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        if where == "here":
            drop(kept)
        else:
            thread = threading.Thread(target=drop, args=(kept,))
            thread.start()
            await anyio.to_thread.run_sync(thread.join)
    assert await one.all_told() == ["abandoned"]
    assert one.looks(KEY) == [(1, 5, 0)]


def drop(kept: list[Any]) -> None:
    """Let go of it, and have it collected where it is in a cycle."""
    in_cycles = any(isinstance(one, list) for one in kept)
    kept.clear()
    if in_cycles:
        gc.collect()


async def test_r10_what_is_abandoned_is_renewed_no_longer() -> None:
    """R10, R15: where the store cannot be told either, the slot is free when the lease is over, and not held on to."""
    clock = ManualClock()
    backend = FaultyBackend(MemoryBackend(clock=clock, lease=10))
    limiter = Limiter(backend)

    async def body() -> AsyncGenerator[None]:
        async with await limiter.pre_commit(KEY, tokens=5):
            yield

    generator: Any = body()
    await anext(generator)
    clock.advance(60)
    (status,) = await limiter.peek(KEY)
    assert status["concurrency"].used == 1  # it is at work
    backend.script("resolve", *[LOST] * 3)
    await generator.aclose()
    for used in (1, 0):
        (status,) = await limiter.peek(KEY)
        assert status["concurrency"].used == used
        clock.advance(10)
    assert backend.sent["resolve"] == 2


async def test_r18_who_waits_in_memory_gets_the_slot_of_a_dropped_handle() -> None:
    """R15, R18: nobody sends a message but the one who waits for the slot."""
    clock = ManualClock()
    limiter = Limiter(MemoryBackend(clock=clock))
    one = Scope("one", Limits(concurrency=1))
    kept = [await limiter.pre_commit(one)]
    got: list[Any] = []

    async def wait() -> None:
        try:
            got.append(await limiter.pre_commit(one, wait=5))
        except RateLimited as refusal:
            got.append(refusal)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.warns(ResourceWarning):
            drop(kept)
        for _ in range(60):
            clock.advance(0.1)
            await anyio.wait_all_tasks_blocked()
    (handle,) = got
    assert not isinstance(handle, RateLimited)
    assert await handle.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["block", "once"])
async def test_r15_memory_beside_a_ledger_that_has_something_noted(
    how: str, tmp_path: Path
) -> None:
    """R15, R16: a block in memory is left by GeneratorExit while a finaliser's note has to ask SQL: that waits."""
    from earmark.ledger import Spend

    ledger = sqlite(tmp_path).ledger()
    await ledger.create()
    limiter = Limiter(MemoryBackend(clock=ManualClock()), ledger=ledger)
    spending = [await limiter.pre_commit(TARGET, spend=Spend(()))]

    async def work() -> None:
        if how == "block":
            async with await limiter.pre_commit(KEY):
                await wait_for_nothing()
        else:
            async with limiter.once(KEY) as all_of_them, await all_of_them.attempt():
                await wait_for_nothing()

    coroutine = work()
    coroutine.send(None)
    with pytest.warns(ResourceWarning):
        drop(spending)
    coroutine.close()
    statuses = await limiter.peek(KEY, TARGET)
    assert [status["concurrency"].used for status in statuses] == [0, 0]
    await limiter.aclose()


async def wait_for_nothing() -> None:
    """Suspend, without a loop."""
    await asyncio.sleep(0)


async def test_r8_what_could_not_be_added_is_added_once() -> None:
    """R8, R15, C56: a dropped stream's usage beside the settled one gets lost on its way: nobody else hears of it."""
    backend = FaultyBackend(MemoryBackend(clock=ManualClock()))
    events: list[Event] = []
    limiter = Limiter(backend, observers=[events.append])
    async with limiter.once(KEY, tokens=50) as all_of_them:
        first, second = [
            (await all_of_them.attempt()).stream(Source([USAGE, DONE]), dialect=Toy) for _ in "12"
        ]
    assert [item async for item in first] == [USAGE, DONE]
    backend.script("add", LOST_REPLY, LOST)
    kept = [second]
    del second
    assert await anext(kept[0]) == USAGE
    drop(kept)
    used = [(await limiter.peek(KEY))[0]["tokens"].used for _ in range(4)]
    assert used == [24] * 4  # the store had heard of it the first time
    assert backend.sent["add"] == 3


def test_r15_at_the_end_of_its_loop_nothing_is_begun(caplog: pytest.LogCaptureFixture) -> None:
    """R15: a generator that a loop closes as its last act, and one that is left just before: no task is cut off."""
    one = Quiet(2)
    left: list[Any] = []

    async def work() -> None:
        await one.limiter.peek(KEY)
        for _ in range(2):
            left.append(block(one))
            await anext(left[-1])
        await left[0].aclose()  # the other is closed with the loop

    with caplog.at_level(logging.DEBUG), quiet():
        asyncio.run(work())
        left.clear()
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    assert one.told == []

    async def later() -> list[str]:
        async with await one.limiter.pre_commit(TARGET):
            return one.told

    assert asyncio.run(later())[:2] == ["abandoned"] * 2
    assert len(one.memory.desk.loops) == 1  # closed ones are not kept


def test_r15_another_loop_does_what_a_closed_one_cannot() -> None:
    """R15, R19: the handle outlives its loop and is dropped in a quiet process: whichever loop is there resolves it."""
    one = Quiet()
    kept = [asyncio.run(bare(one))]

    async def work() -> list[str]:
        handle = await one.limiter.pre_commit(TARGET)
        with pytest.warns(ResourceWarning):
            drop(kept)
        told = list(await one.all_told())
        assert await handle.cancel()
        return told

    assert asyncio.run(work()) == ["abandoned"]


def test_r15_without_any_loop_the_next_message_does_it() -> None:
    """R15: a store that is asked by hand, without a loop."""
    memory = MemoryBackend(clock=ManualClock())
    kept = [by_hand(Limiter(memory).pre_commit(KEY, tokens=5))]
    assert not memory.desk.loops
    with pytest.warns(ResourceWarning):
        drop(kept)
    (status,) = by_hand(Limiter(memory).peek(KEY))
    assert [limit.used for limit in status.limits] == [1, 5, 0]
