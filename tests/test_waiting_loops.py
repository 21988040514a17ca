"""R18, R19: callers of several event loops in one queue, some of which have stopped, or were closed without a word."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, Scope
from earmark.backends import queues as queues_module
from earmark.backends.queues import Queues
from earmark.testing import ManualClock
from earmark.waiting import WATCH_PAUSE

pytestmark = pytest.mark.anyio

KEY: Final = Scope("key", Limits(rpm=1))
WINDOW: Final = 60

Tasks = list[asyncio.Task[None]]
Result = TypeVar("Result")


class Office:
    """A limiter with one request a minute, which is taken, and those who queue for the next ones."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limiter = Limiter(MemoryBackend(clock=_ClockOfOne(self.clock)))
        self.served: list[tuple[str, float]] = []

    async def visit(self, name: str) -> None:
        """Queue, and take what there is."""
        reservation = await self.limiter.pre_commit(KEY, wait=3_600)
        self.served.append((name, self.clock()))
        await reservation.close_reserved_only()

    @contextmanager
    def elsewhere(self, loop: asyncio.AbstractEventLoop, *names: str) -> Iterator[Tasks]:
        """Have others queue on another loop, which runs while the block does and no longer."""
        tasks: Tasks = []
        arrived, leaves = threading.Event(), asyncio.Event()

        async def run() -> None:
            tasks.extend(asyncio.create_task(self.visit(name)) for name in names)
            for _ in range(20):
                await asyncio.sleep(0)
            arrived.set()
            await leaves.wait()

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(loop.run_until_complete, run())
            arrived.wait()
            yield tasks
            loop.call_soon_threadsafe(leaves.set)
            running.result()

    async def quiet(self) -> None:
        """Let everything run that can."""
        for _ in range(60):
            await anyio.lowlevel.checkpoint()


class _ClockOfOne:
    """A clock by which those sleep who come once it serves; before they sleep for ever."""

    def __init__(self, inner: ManualClock) -> None:
        self._inner = inner
        self.serves = False

    def __call__(self) -> float:
        return self._inner()

    async def sleep(self, seconds: float) -> None:
        if not self.serves:
            await anyio.sleep_forever()
        await self._inner.sleep(seconds)


def in_thread(work: Callable[[], object]) -> object:
    """Asyncio refuses to run a loop within another."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def cancel(loop: asyncio.AbstractEventLoop, tasks: Tasks) -> None:
    """End those who queue still."""
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))


@pytest.mark.parametrize("ends", ["closed", "stopped"])
async def test_r18_a_head_whose_loop_has_ended_holds_nobody_up(ends: str) -> None:
    """Its loop ended without cancelling it: those behind it, of another loop, are served in order all the same."""
    one = Office()
    await (await one.limiter.pre_commit(KEY)).close_reserved_only()
    loop = asyncio.new_event_loop()
    clock = one.limiter._backend.clock
    assert isinstance(clock, _ClockOfOne)
    async with anyio.create_task_group() as group:
        with one.elsewhere(loop, "dead", "dead too") as tasks:
            clock.serves = True
            for name in ("a", "b", "c"):
                group.start_soon(one.visit, name)
                await one.quiet()
            one.clock.advance(WATCH_PAUSE)
            await one.quiet()
        if ends == "closed":
            loop.close()
        for _ in range(3):
            one.clock.advance(WATCH_PAUSE)
            await one.quiet()
        assert one.served == []
        for window in (1, 2, 3):
            one.clock.set(WINDOW * window)
            await one.quiet()
        assert one.served == [("a", 60), ("b", 120), ("c", 180)]
    if ends == "stopped":  # it may run again, and those on it are the first then
        async with anyio.create_task_group() as group:
            group.start_soon(one.visit, "d")
            await one.quiet()

            async def wake() -> None:
                one.limiter._backend.desk.queues.freed(["key"])
                for _ in range(20):
                    await asyncio.sleep(0)

            one.clock.set(WINDOW * 4)
            in_thread(lambda: loop.run_until_complete(wake()))
            assert one.served[3:] == [("dead", 240)]
            in_thread(lambda: cancel(loop, tasks))
            loop.close()
            one.clock.set(WINDOW * 5)
            await one.quiet()
            assert one.served[4:] == [("d", 300)]
    assert not one.limiter._backend.desk.queues


async def test_r18_one_who_waits_behind_the_own_loop_alone_does_not_look() -> None:
    """Where all are of one loop nobody is woken before it is time."""
    queues = Queues()
    places = [queues.join(frozenset({"key"}), lambda: None, "loop") for _ in range(3)]
    assert [queues.watches(place) for place in places] == [False] * 3
    other = queues.join(frozenset({"key"}), lambda: None, "other")
    assert [queues.watches(place) for place in (*places, other)] == [True, False, False, True]


def test_r18_a_lane_of_ten_thousand_that_is_gone_is_left_in_one_step() -> None:
    """Whoever frees room finds that they are gone, and wakes the one behind them."""
    woken: list[str] = []

    def gone() -> None:
        woken.append("gone")
        raise RuntimeError

    queues = Queues()
    for _ in range(10_000):
        queues.join(frozenset({"key"}), gone, "gone")
    queues.join(frozenset({"key"}), lambda: woken.append("alive"), "alive")
    queues.freed(["key"])
    assert woken == ["gone", "alive"]
    assert len(queues) == 1


def test_r18_whoever_frees_room_looks_at_the_queues_for_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand tenants that wait cost another one's settlement nothing."""
    looks: list[object] = []
    first = queues_module._Queue.first
    queues = Queues()
    woken: list[str] = []
    for number in range(10_000):
        queues.join(frozenset({f"key:{number}"}), lambda: woken.append("other"))
    place = queues.join(frozenset({"mine", "model"}), lambda: woken.append("mine"))

    def counted(queue: queues_module._Queue) -> object:
        looks.append(queue)
        return first.__get__(queue)

    monkeypatch.setattr(queues_module._Queue, "first", property(counted))
    queues.freed(["mine", "model", "nobody's"])
    assert (woken, len(looks)) == (["mine"], 1)
    queues.leave(place)
    queues.freed(["mine", "model"])
    assert woken == ["mine"]
