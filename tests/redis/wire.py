"""The connections of a Redis backend, at which a test is told of every message and may hold it up.

A caller waits for one thing alone, its answer. Where it is interrupted shows on the wire:

* "before": its message is on board, and not yet sent;
* "sent": it is sent, and the server has it or will;
* "applied": the server's reply is there, and nobody has seen it;
* "answered": the answer is handed out, and the caller has not gone on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Any, Final, Literal, cast

import pytest
from redis import exceptions

from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.dialing import Dialer
from earmark.backends.redis.loops import OURS
from earmark.backends.redis.wire import Replies, Wire

Moment = Literal["before", "sent", "applied", "answered"]

MOMENTS: Final[tuple[Moment, ...]] = ("before", "sent", "applied", "answered")


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something is so; it has to be so within a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0)


def call_after(turns: int, ready: Callable[[], bool], call: Callable[[], object]) -> None:
    """Call something so many turns of the loop after it is time; no task waits, since those are cancelled."""
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(call_after, turns - ready(), ready, call)
    else:
        call()


def run_and_leave(main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run it as a program does that closes nothing: its loop is closed with no task under way."""
    tasks: list[asyncio.Future[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Future[Any]:
        tasks.append(asyncio.Task(work, loop=loop, **options))
        return tasks[-1]

    async def recorded() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.set_task_factory(make)
        await main()

    asyncio.run(recorded())
    assert tasks
    assert all(task.done() for task in tasks)


class Hold:
    """Where a message waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._opened.wait()


class Wires:
    """All connections that are made while it is installed.

    Attributes:
        sent: how often each command was sent.
        report: called at every moment of every round trip of a script.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        self.report: Callable[[str], object] | None = None
        self._holds: defaultdict[Moment, deque[Hold]] = defaultdict(deque)
        dial = Dialer.dial

        async def dial_wired(dialer: Dialer) -> Dialed:
            dialed = await dial(dialer)
            return dialed._replace(wire=_Wire(dialed.wire, self))

        monkeypatch.setattr(Dialer, "dial", dial_wired)

    def hold(self, moment: Moment) -> Hold:
        """Hold up the next round trip at this moment."""
        hold = Hold()
        self._holds[moment].append(hold)
        return hold

    async def at(self, moment: Moment) -> None:
        """Tell, and let whoever was interrupted take that in."""
        if self.report is not None:
            self.report(moment)
            for _ in range(3):
                await asyncio.sleep(0)
        if self._holds[moment]:
            await self._holds[moment].popleft().wait()

    def tell_answered(self) -> None:
        """The answer is handed out in this very step, and its caller comes after this."""
        if self.report is not None:
            asyncio.get_running_loop().call_soon(self.report, "answered")


class _Wire:
    """Round trips, which begin and end in their order also where one of them is held up."""

    def __init__(self, inner: Wire, wires: Wires) -> None:
        self._inner = inner
        self._wires = wires
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._landing = asyncio.Lock()

    @property
    def free(self) -> bool:
        return self._inner.free and not self._tasks

    @property
    def has_room(self) -> bool:
        return self._inner.has_room

    def call(
        self, commands: Iterable[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._call(list(commands), count, done), name=f"{OURS}.wire", context=Context()
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, done))

    def _over(self, done: Callable[[Replies], object], task: asyncio.Task[None]) -> None:
        """A loop that ends has cancelled this task with all others: the reply will reach nobody."""
        if task in self._tasks:
            self._tasks.discard(task)
            if task.cancelled():
                done(exceptions.ConnectionError("the round trip was cancelled"))

    async def _call(
        self, commands: list[bytes], count: int, done: Callable[[Replies], object]
    ) -> None:
        scripts = b"".join(commands).count(b"$7\r\nEVALSHA\r\n")
        self._wires.sent["EVALSHA"] += scripts
        self._wires.sent["round trips"] += 1
        replied: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        async with self._sending:
            await self._wires.at("before")
            self._inner.call(commands, count, replied.set_result)
            await self._wires.at("sent")
        async with self._landing:
            replies = await replied
            if not isinstance(replies, Exception):
                for _ in range(scripts):
                    self._wires.sent["answered"] += 1
                    await self._wires.at("applied")
            self._wires.tell_answered()
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            done(replies)

    async def close(self, *, at_once: bool) -> None:
        tasks = self._tasks.copy()
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await self._inner.close(at_once=at_once)


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    """Every connection of the test, from here on."""
    return Wires(monkeypatch)
