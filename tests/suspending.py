"""A backend that suspends, and a driver that stops a piece of work at any of its suspension points.

The memory backend decides without ever suspending, so nothing can interrupt it: what a store behind a network does to
a cancelled caller shows only with a double that suspends before a message is applied (the request is on its way)
and after it (the reply is). No time passes here: a suspension is one turn of the event loop, or lasts until the
test opens a gate.

    backend = Suspending(MemoryBackend())
    gate = backend.gate("reserve", "after")     # the next reserve is applied, and its reply held back
    ...
    await gate.reached.wait(); gate.open()

`drive` runs a piece of work and counts its suspension points: each time the work itself yields to the loop, and each
time a message that it sent suspends, also in a task that the library started for it. At the points of a plan it
cancels, by `Task.cancel()` ("task") or by one of two nested anyio scopes ("scope", "outer").
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import trio.testing

from earmark.backends.memory import MemoryBackend
from earmark.backends.protocol import Hold, Seen, Verb
from earmark.errors import EarmarkError
from earmark.limits import Scope

Place = Literal["before", "after"]
Kind = Literal["task", "scope", "outer"]

Plan: TypeAlias = tuple[tuple[int, Kind], ...]
"""Which cancellation at which suspension point; point 0 is before the first step of the work."""

_watching: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("watching", default=None)
"""What a suspension is reported to; tasks that the work starts inherit it."""


class Gate:
    """Where one message waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._opened = anyio.Event()

    def open(self) -> None:
        """Let the message go on."""
        self._opened.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._opened.wait()


class Suspending:
    """A memory backend behind a message that takes its time.

    Attributes:
        points: how often a message suspended.
        applied: how many messages of each kind reached the store.
    """

    instant = None

    def __init__(self, inner: MemoryBackend) -> None:
        self.inner = inner
        self.desk = inner.desk
        self.points = 0
        self.applied: Counter[str] = Counter()
        self._gates: defaultdict[tuple[str, Place], deque[Gate]] = defaultdict(deque)

    def gate(self, message: str, place: Place) -> Gate:
        """Hold up the next message of this kind before or after it is applied."""
        gate = Gate()
        self._gates[message, place].append(gate)
        return gate

    async def _suspend(self, message: str, place: Place) -> None:
        self.points += 1
        report = _watching.get()
        if report is not None:
            report(f"{message}, {place}")
        gates = self._gates[message, place]
        if gates:
            await gates.popleft().wait()
        else:
            await anyio.lowlevel.checkpoint()

    async def _send(self, message: str, *arguments: Any) -> Any:
        await self._suspend(message, "before")
        self.applied[message] += 1
        try:
            answer = await getattr(self.inner, message)(*arguments)
        except EarmarkError:
            await self._suspend(message, "after")  # an error is a reply as well
            raise
        await self._suspend(message, "after")
        return answer

    async def reserve(self, hold: Hold) -> Hold | None:
        standing: Hold | None = await self._send("reserve", hold)
        return standing

    async def resolve(self, id: int, verb: Verb, exact: Any, at_least: Any) -> bool:  # noqa: A002
        won: bool = await self._send("resolve", id, verb, exact, at_least)
        return won

    async def add(self, target: Scope | str, amounts: Any, request_id: str | None) -> bool:
        counted: bool = await self._send("add", target, amounts, request_id)
        return counted

    async def renew(self, ids: Sequence[int]) -> Sequence[bool]:
        held: Sequence[bool] = await self._send("renew", ids)
        return held

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        seen: Seen = await self._send("peek", scopes)
        return seen

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        await self._send("reset", scopes)

    def attend(self, id: int) -> None:  # noqa: A002
        self.inner.attend(id)

    async def aclose(self) -> None:
        await self.inner.aclose()


class Stepped:
    """An awaitable that reports each suspension of what it awaits."""

    def __init__(self, work: Awaitable[Any], report: Callable[[str], None]) -> None:
        self._work = work
        self._report = report

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731 - each step is another function
        while True:
            try:
                waited_for = step()
            except StopIteration as stop:
                return stop.value
            self._report("the caller")
            try:
                value = yield waited_for
            except BaseException as error:  # noqa: BLE001 - it is the work's to handle
                step = _throwing(inner, error)
            else:
                step = _sending(inner, value)


def _throwing(inner: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)


def _sending(inner: Any, value: Any) -> Callable[[], Any]:
    # An iterator that is no generator is not sent None.
    return lambda: next(inner) if value is None else inner.send(value)


class Drive:
    """One run of a piece of work, cancelled as planned.

    Attributes:
        points: the suspension points, in order.
        requested: the kinds of the cancellations that were made.
        result: what the work returned, or None.
        error: the exception with which it ended, a cancellation included, or None.
        propagated: whether every cancellation that was made came out at the caller.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._scopes: dict[Kind, anyio.CancelScope] = {}
        self.points: list[str] = []
        self.requested: list[Kind] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.propagated = False

    async def run(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Run it to its end on the loop that runs this."""
        if _on_asyncio():
            self._task = task = asyncio.create_task(self._attempt(work))
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._attempt, work)
        self.propagated = self._has_propagated()
        await quiesce()

    async def _attempt(self, work: Callable[[], Awaitable[Any]]) -> None:
        _watching.set(self._at_point)
        with anyio.CancelScope() as outer:
            with anyio.CancelScope() as scope:
                self._scopes = {"outer": outer, "scope": scope}
                self._cancel_at(0)
                try:
                    self.result = await Stepped(work(), self._at_point)
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    self.error = error
                except BaseException as error:
                    self.error = error
                    raise
                finally:
                    self._over = True
                await anyio.lowlevel.checkpoint()  # a scope's cancellation comes again at every await
            await anyio.lowlevel.checkpoint()

    def _at_point(self, what: str) -> None:
        if not self._over:
            self.points.append(what)
            self._cancel_at(len(self.points))

    def _cancel_at(self, point: int) -> None:
        for at, kind in self._plan:
            if at == point:
                self.requested.append(kind)
                if kind == "task":
                    assert self._task is not None
                    self._task.cancel()
                else:
                    self._scopes[kind].cancel()

    def _has_propagated(self) -> bool:
        if "task" in self.requested:
            return self._task is not None and self._task.cancelled()
        if "outer" in self.requested:
            return self._scopes["outer"].cancelled_caught
        return "scope" not in self.requested or self._scopes["scope"].cancelled_caught

    @property
    def cancelled(self) -> bool:
        """Whether the work itself ended in a cancellation."""
        return self.error is not None and not isinstance(self.error, Exception)


def _on_asyncio() -> bool:
    return not trio.lowlevel.in_trio_run()


async def drive(work: Callable[[], Awaitable[Any]], plan: Plan = ()) -> Drive:
    """Run a piece of work, cancel it as planned, and wait until all that it started is over."""
    one = Drive(plan)
    await one.run(work)
    return one


async def quiesce() -> None:
    """Let every other task run until it is done, or waits for what no task will do."""
    if not _on_asyncio():
        await trio.testing.wait_all_tasks_blocked()
        return
    mine = asyncio.current_task()
    while any(_can_go_on(task) for task in asyncio.all_tasks() if task is not mine):
        await asyncio.sleep(0)


def _can_go_on(task: asyncio.Task[Any]) -> bool:
    waiter: Any = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()
