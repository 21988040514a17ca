"""Running what must finish, on asyncio and on trio.

There are two kinds of cancellation and each breaks the other's shield: asyncio's `Task.cancel()` goes
through an anyio shield, and a cancelled anyio scope leaves `asyncio.shield` at once. What must finish is telling, and
then closing the source; both are waited for through either kind, for a bounded time, and a cancellation that comes
meanwhile is raised when the waiting is over (C42). Telling is a task of its own, waited for inside a shield, since it
may take longer than it is waited for. Closing has to stay in the consumer's task and context: see `uncut`. On trio,
which has the second kind alone, a shield is enough for that.

A finaliser may run anywhere and may not wait: it hands its work to the loop to which the stream belongs.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, cast

import anyio

from earmark.logs import about
from earmark.shielding import in_trio, outlast
from earmark.streams.uncut import Uncut

if TYPE_CHECKING:
    import trio.lowlevel

logger = logging.getLogger("earmark.streams")

Errors: TypeAlias = BaseExceptionGroup[BaseException]

# A loop keeps only weak references to its tasks.
_running: Final[set[asyncio.Task[Any]]] = set()


class Closed(NamedTuple):
    """What came of closing something.

    Attributes:
        failure: what it raised, or None.
        cancelled: the cancellation of the caller that came meanwhile, which the caller has to raise, or None.
    """

    failure: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None


class Loop(Protocol):
    """An event loop, which may be gone."""

    async def finish(self, work: Awaitable[object], seconds: float) -> None:
        """Run `work` to its end, and wait for it, cancelled or not, for at most so many seconds.

        What it raises is logged. To be called on this loop.

        Raises:
            BaseException: a cancellation that came meanwhile, or what the work raised to end the process.
        """
        ...

    async def see_through(self, work: Awaitable[object], seconds: float) -> Closed:
        """Await `work` in the caller's own task to its end, cancelled or not; after so many seconds it is cut off.

        That is logged. To be called on this loop. What the work raises is returned.
        """
        ...

    def now(self) -> float:
        """The clock of this loop, in seconds: that of anyio's deadlines. To be called on it, in a task or not."""
        ...

    def runs(self) -> bool:
        """Whether it runs now: what waits on one that does not may wait for ever. From anywhere."""
        ...

    def hand_over(self, work: Callable[[], object]) -> None:
        """Have `work` called on this loop, and what it returns awaited where it can be. From anywhere.

        Raises:
            RuntimeError: the loop is gone.
        """
        ...


def current_loop() -> Loop | None:
    """The loop that runs this code, or None."""
    if in_trio():
        import trio

        return _Trio(trio.lowlevel.current_trio_token())
    try:
        return _Asyncio(asyncio.get_running_loop())
    except RuntimeError:
        return None


def is_cancellation(error: BaseException) -> bool:
    """Whether this is how either library cancels."""
    if isinstance(error, asyncio.CancelledError):
        return True
    library = sys.modules.get("trio")
    return library is not None and isinstance(error, library.Cancelled)


def is_ours(error: BaseException) -> bool:
    """Whether an error says that the task that has it is cancelled: asyncio's word for that is anybody's to raise."""
    if not isinstance(error, asyncio.CancelledError):
        return is_cancellation(error)
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def ends_the_process(error: BaseException) -> bool:
    """Whether an error of somebody else's code is there to end the process, and not to be logged."""
    if isinstance(error, BaseExceptionGroup):
        return any(ends_the_process(inner) for inner in cast("Errors", error).exceptions)
    return isinstance(error, (KeyboardInterrupt, SystemExit))


def must_stop(error: BaseException) -> bool:
    """Whether an error that somebody else's code has raised says that this task, or the process, is to end."""
    if isinstance(error, BaseExceptionGroup):
        return any(must_stop(inner) for inner in cast("Errors", error).exceptions)
    return ends_the_process(error) or is_ours(error)


def must_pass(error: BaseException) -> bool:
    """Whether an error of a task of our own has to go on: the process, the task or its coroutine is to end."""
    if isinstance(error, BaseExceptionGroup):
        return any(must_pass(inner) for inner in cast("Errors", error).exceptions)
    return isinstance(error, GeneratorExit) or must_stop(error)


async def see_through(work: Awaitable[object], seconds: float) -> Closed:
    """`Loop.see_through` on the loop that runs this; run by hand, without a loop, nobody can cancel."""
    loop = current_loop()
    if loop is None:
        return await _closed(work)
    return await loop.see_through(work, seconds)


class _Asyncio:
    """A loop of asyncio's."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def finish(self, work: Awaitable[object], seconds: float) -> None:
        task = self._start(work)
        passing: BaseException | None = await outlast(task, seconds)
        if not task.done():
            _log_late(seconds)
        elif not task.cancelled():
            passing = (
                task.exception() or passing
            )  # a group that is to end the process: the loop does not raise it
        if passing is not None:
            try:
                raise passing
            finally:
                del passing  # a cycle with its own traceback would keep the stream alive

    async def see_through(self, work: Awaitable[object], seconds: float) -> Closed:
        task = asyncio.current_task()
        if task is None:  # a coroutine that somebody runs by hand
            return await _closed(work)
        uncut = Uncut(work, task)
        failure = (await _closed(uncut.run(seconds))).failure
        if uncut.cut:
            _log_unclosed(seconds)
        return Closed(failure, uncut.cancelled)

    def now(self) -> float:
        return self._loop.time()

    def runs(self) -> bool:
        return self._loop.is_running()

    def hand_over(self, work: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(self._call, work)

    def _call(self, work: Callable[[], object]) -> None:
        result = _called(work)
        if inspect.isawaitable(result):
            self._start(result)

    def _start(self, work: Awaitable[object]) -> asyncio.Task[None]:
        task = self._loop.create_task(logged(work))
        _running.add(task)
        task.add_done_callback(partial(self._ended, work))
        return task

    @staticmethod
    def _ended(work: Awaitable[object], task: asyncio.Task[None]) -> None:
        _running.discard(task)
        if task.cancelled():
            _log_lost()
            discard(
                work
            )  # a task that is cancelled before it began has not begun what it was to await


class _Trio:
    """A run of trio's."""

    __slots__ = ("_token",)

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token

    async def finish(self, work: Awaitable[object], seconds: float) -> None:
        waiting = _Waiting()
        self._start(work, waiting)
        with anyio.move_on_after(seconds, shield=True):
            await waiting.done.wait()
        waiting.over = True
        if not waiting.done.is_set():
            _log_late(seconds)
        if waiting.error is not None:
            raise waiting.error

    async def see_through(self, work: Awaitable[object], seconds: float) -> Closed:
        return await _closed(_in_time(work, seconds))

    def now(self) -> float:
        return anyio.current_time()

    def runs(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing)
        except RuntimeError:
            return False
        return True

    def hand_over(self, work: Callable[[], object]) -> None:
        self._token.run_sync_soon(self._call, work)

    def _call(self, work: Callable[[], object]) -> None:
        result = _called(work)
        if inspect.isawaitable(result):
            self._start(result, _Waiting(over=True))

    def _start(self, work: Awaitable[object], waiting: _Waiting) -> None:
        # It is there, since this runs on it; users of asyncio need not have it.
        import trio

        async def run() -> None:
            try:
                await logged(work)
            except trio.Cancelled:
                _log_lost()
                raise
            except BaseException as error:
                # What a system task raises becomes an internal error of trio's: whoever waits raises it as it is.
                if waiting.over or not ends_the_process(error):
                    raise
                waiting.error = error
            finally:
                waiting.done.set()

        try:
            trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
        except RuntimeError:  # the run is ending, and takes no tasks any more
            _log_lost()
            discard(work)
            waiting.done.set()


class _Waiting:
    """Whoever waits for what runs elsewhere."""

    __slots__ = ("done", "error", "over")

    def __init__(self, *, over: bool = False) -> None:
        self.done = anyio.Event()
        self.error: BaseException | None = None
        self.over = over


def _nothing() -> None:
    """To see whether a run takes anything."""


def _called(work: Callable[[], object]) -> object:
    try:
        return work()
    except BaseException as error:
        if ends_the_process(error):
            raise
        logger.exception(
            "what a dropped stream left to do has failed", extra=about("stream_work_failed")
        )
        return None


def discard(work: object) -> None:
    """Let go of what will not be awaited: a coroutine that nobody awaits would warn of it."""
    if inspect.iscoroutine(work):
        work.close()


async def logged(work: Awaitable[object]) -> None:
    """Await what a callback has left to do; it may raise what it will."""
    try:
        await work
    except BaseException as error:
        if must_pass(error):
            raise
        logger.exception(
            "on_complete has failed; the stream goes on", extra=about("on_complete_failed")
        )


async def _closed(work: Awaitable[object]) -> Closed:
    """Await it, and return what it raises."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        return Closed(error)
    return Closed()


async def _in_time(work: Awaitable[object], seconds: float) -> None:
    with anyio.move_on_after(seconds, shield=True) as scope:
        await work
    if scope.cancelled_caught:
        _log_unclosed(seconds)


def _log_unclosed(seconds: float) -> None:
    logger.warning(
        "a source was not closed after %s s, and is left",
        seconds,
        extra=about("source_slow", seconds=seconds),
    )


def _log_lost() -> None:
    logger.warning(
        "what a stream had left to do was cancelled: its event loop is ending",
        extra=about("stream_work_lost"),
    )


def _log_late(seconds: float) -> None:
    logger.warning(
        "on_complete is not done after %s s; it goes on by itself, and the stream as well",
        seconds,
        extra=about("on_complete_slow", seconds=seconds),
    )
