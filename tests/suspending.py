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
time a message suspends in a task that the library started for it. At the points of a plan it interrupts the work:

* "task": `Task.cancel()`, which comes once; asyncio alone has it;
* "scope" and "outer": one of two nested anyio scopes, whose cancellation comes again at every await;
* "all": `Task.cancel()` for the caller and every task that was started since, as when a loop ends;
* "close": the coroutine is closed where it waits, as when it is collected.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import trio.testing

import earmark
from earmark.backends.health import Health
from earmark.backends.memory import MemoryBackend
from earmark.backends.protocol import Seen
from earmark.clock import Clock
from earmark.core.hold import Hold, Verb
from earmark.errors import EarmarkError
from earmark.limits import Scope

_LIBRARY: Final = str(Path(earmark.__file__).parent)

Place = Literal["before", "after"]
Kind = Literal["task", "scope", "outer", "all", "close"]

Plan: TypeAlias = tuple[tuple[int, Kind], ...]
"""Which interruption at which suspension point; point 0 is before the first step of the work."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]

_watching: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("watching", default=None)
"""What a suspended message is reported to; tasks that the work starts inherit it."""


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
    """A memory backend behind messages that take their time.

    Attributes:
        applied: how many messages of each kind reached the store.
        points: how often a message suspended.
    """

    instant = None
    assured = False
    clock: Clock | None = None
    name = "suspending"

    def __init__(self, inner: MemoryBackend) -> None:
        self.inner = inner
        self.desk = inner.desk
        self.applied: Counter[str] = Counter()
        self.points = 0
        self._failing: list[str] = []
        self._gates: defaultdict[tuple[str, Place], deque[Gate]] = defaultdict(deque)

    def gate(self, message: str, place: Place) -> Gate:
        """Hold up the next message of this kind before or after it is applied."""
        gate = Gate()
        self._gates[message, place].append(gate)
        return gate

    def fail(self, message: str) -> None:
        """Have the next message of this kind fail before it is applied, with a `ConnectionError`."""
        self._failing.append(message)

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
        if message in self._failing:
            self._failing.remove(message)
            raise ConnectionError(message)
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

    async def resolve(self, hold: Hold, verb: Verb, exact: Any, at_least: Any) -> bool:
        won: bool = await self._send("resolve", hold, verb, exact, at_least)
        return won

    async def add(self, target: Scope | str, amounts: Any, request_id: str | None) -> bool:
        counted: bool = await self._send("add", target, amounts, request_id)
        return counted

    async def renew(self, holds: Sequence[Hold]) -> Sequence[bool]:
        held: Sequence[bool] = await self._send("renew", holds)
        return held

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        seen: Seen = await self._send("peek", scopes)
        return seen

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        await self._send("reset", scopes)

    def attend(self, hold: Hold) -> None:
        self.inner.attend(hold)

    def release(self, hold: Hold) -> None:
        self.inner.release(hold)

    def health(self) -> Health:
        return self.inner.health()

    async def aclose(self) -> None:
        await self.inner.aclose()


class Closed(Exception):
    """The work was closed where it waited."""


class Stepped:
    """An awaitable that reports each suspension of a coroutine; one that is `closing` is closed when it is resumed."""

    def __init__(self, work: Coroutine[Any, Any, Any], report: Callable[[], None]) -> None:
        self._work = work
        self._report = report
        self.closing = False

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                error = None
            self._report()
            try:
                value = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is the work's to handle
                error = thrown
            if self.closing:
                self._work.close()
                raise Closed


class Drive:
    """One run of a piece of work, interrupted as planned.

    Attributes:
        points: the suspension points, in order.
        made: the interruptions that were made.
        result: what the work returned, or None.
        error: what it raised, or None. An interruption is none: its traceback would keep alive what was interrupted.
        stopped: whether it ended by the interruption.
        propagated: whether every cancellation that was made came out at the caller.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._over = False
        self._caller: object = None
        self._before: set[asyncio.Task[Any]] = set()
        self._sending: str | None = None
        self._scopes: dict[Kind, anyio.CancelScope] = {}
        self._stepped: Stepped | None = None
        self.points: list[str] = []
        self.made: list[Kind] = []
        self.result: Any = None
        self.error: Exception | None = None
        self.stopped = False
        self.propagated = False

    async def run(self, work: Work, beside: Work | None) -> None:
        """Run it to its end on the loop that runs this, and wait until all that it started is over."""
        if _on_asyncio():
            self._before = asyncio.all_tasks()
        by_task = False
        async with anyio.create_task_group() as tasks:
            task = asyncio.create_task(self._attempt(work)) if _on_asyncio() else None
            if task is None:
                tasks.start_soon(self._attempt, work)
            if beside is not None:
                tasks.start_soon(beside)
            if task is not None:
                await asyncio.wait({task})
                by_task = task.cancelled()
                if not by_task:
                    task.result()
            del task
        # A task keeps the exception that cancelled it, and with it whatever was interrupted.
        self._caller = None
        self.propagated = self._has_propagated(by_task=by_task)
        await quiesce()

    async def _attempt(self, work: Work) -> None:
        self._caller = _current_task()
        _watching.set(self._message_waits)
        with anyio.CancelScope() as outer:
            with anyio.CancelScope() as scope:
                self._scopes = {"outer": outer, "scope": scope}
                self._interrupt_at(0)
                try:
                    self._stepped = Stepped(work(), self._caller_waits)
                    self.result = await self._stepped
                except Closed:
                    self.stopped = True
                    assert isinstance(self._caller, asyncio.Task)
                    self._caller.uncancel()
                except Exception as error:  # noqa: BLE001 - the test raises it
                    self.error = error
                except BaseException:
                    self.stopped = True
                    raise
                finally:
                    self._over = True
                await (
                    anyio.lowlevel.checkpoint()
                )  # a scope's cancellation comes again at every await
            await anyio.lowlevel.checkpoint()

    def _message_waits(self, message: str) -> None:
        if _current_task() is self._caller:
            self._sending = message  # the caller itself is about to wait for it
        else:
            self._at_point(f"{message}, in the background")

    def _caller_waits(self) -> None:
        what, self._sending = self._sending, None
        self._at_point(what or "the caller waits")

    def _at_point(self, what: str) -> None:
        if not self._over:
            self.points.append(what)
            self._interrupt_at(len(self.points))

    def _interrupt_at(self, point: int) -> None:
        kinds: list[Kind] = [kind for at, kind in self._plan if at == point]
        self.made += kinds
        for kind in kinds:
            if kind in self._scopes:
                self._scopes[kind].cancel()
            elif kind == "close":
                self._close()
            else:
                for task in asyncio.all_tasks() - self._before:
                    if task is self._caller or kind == "all":
                        task.cancel()

    def _close(self) -> None:
        assert self._stepped is not None
        assert isinstance(self._caller, asyncio.Task)
        self._stepped.closing = True
        self._caller.cancel()

    def _has_propagated(self, *, by_task: bool) -> bool:
        if "task" in self.made or "all" in self.made:
            return by_task
        if "close" in self.made:
            return self.stopped
        if "outer" in self.made:
            return self._scopes["outer"].cancelled_caught
        return "scope" not in self.made or self._scopes["scope"].cancelled_caught


async def drive(work: Work, plan: Plan = (), *, beside: Work | None = None) -> Drive:
    """Run a piece of work, interrupt it as planned, and wait until all that it started is over.

    `beside` runs at the same time, and is left in peace.
    """
    one = Drive(plan)
    await one.run(work, beside)
    return one


async def quiesce() -> None:
    """Let every other task run until it is done, or waits for what no task will do."""
    if not _on_asyncio():
        await trio.testing.wait_all_tasks_blocked()
        return
    mine = asyncio.current_task()
    quiet = 0  # what a task has done may reach another through two or three callbacks, a turn each
    while quiet < 4:
        await asyncio.sleep(0)
        busy = any(_can_go_on(task) for task in asyncio.all_tasks() if task is not mine)
        quiet = 0 if busy else quiet + 1


def _can_go_on(task: asyncio.Task[Any]) -> bool:
    waiter: Any = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()


def _on_asyncio() -> bool:
    return not trio.lowlevel.in_trio_task()


def _current_task() -> object:
    return asyncio.current_task() if _on_asyncio() else trio.lowlevel.current_task()


class Interjection:
    """Calls something in the midst of a piece of work: before one of the instructions of the library that it runs.

    Between two instructions another thread may be switched to and a finaliser may run, so a loop over all of them
    tries every place at which either can happen.

    Args:
        between: what is called.
        at: before which instruction, counted from 1.
        where: whether an instruction counts; by default each does.
    """

    def __init__(
        self, between: Callable[[], object], at: int, where: Callable[[], bool] = lambda: True
    ) -> None:
        self._between = between
        self._at = at
        self._where = where
        self._seen = 0
        self._error: BaseException | None = None
        self.made = False

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Do the work; what `between` raises is raised afterwards."""
        before = sys.gettrace()
        # Python 3.12 looks for frames that want instructions when tracing begins, and not again.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(before)
            if self._error is not None:
                raise self._error

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.made and self._where():
            self._seen += 1
            if self._seen == self._at:
                self.made = True
                sys.settrace(None)
                try:
                    self._between()
                except BaseException as error:  # noqa: BLE001 - a trace function that raises is taken out of use
                    self._error = error
        return self._trace


def by_hand(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends, without a loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    msg = "it has suspended"
    raise AssertionError(msg)
