"""Running what must finish, on asyncio and on trio.

There are two kinds of cancellation and each breaks the other's shield: asyncio's `Task.cancel()` goes
through an anyio shield, and a cancelled anyio scope leaves `asyncio.shield` at once. So what must finish runs as a
task of its own, out of reach of both, and is waited for inside a shield, for a bounded time; a cancellation
that comes meanwhile is raised when the waiting is over (C42).

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
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from earmark.shielding import in_trio, outlast

if TYPE_CHECKING:
    import trio.lowlevel

logger = logging.getLogger("earmark.streams")

# A loop keeps only weak references to its tasks.
_running: Final[set[asyncio.Task[None]]] = set()


class Loop(Protocol):
    """An event loop, which may be gone."""

    async def finish(self, work: Awaitable[object], seconds: float) -> None:
        """Run `work` to its end, and wait for it, cancelled or not, for at most so many seconds.

        What it raises is logged. To be called on this loop.
        """
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


async def shielded(work: Awaitable[object], seconds: float) -> None:
    """Await `work` out of reach of a cancelled scope, for at most so many seconds."""
    if current_loop() is None:
        await work  # run by hand, without a loop: nobody can cancel
        return
    with anyio.move_on_after(seconds, shield=True):
        await work


class _Asyncio:
    """A loop of asyncio's."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def finish(self, work: Awaitable[object], seconds: float) -> None:
        task = self._start(work)
        cancelled = await outlast(task, seconds)
        if not task.done():
            _log_late(seconds)
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # a cycle with its own traceback would keep the stream alive

    def hand_over(self, work: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(self._call, work)

    def _call(self, work: Callable[[], object]) -> None:
        result = _called(work)
        if inspect.isawaitable(result):
            self._start(result)

    def _start(self, work: Awaitable[object]) -> asyncio.Task[None]:
        task = self._loop.create_task(_logged(work))
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
        done = anyio.Event()
        self._start(work, done)
        with anyio.move_on_after(seconds, shield=True):
            await done.wait()
        if not done.is_set():
            _log_late(seconds)

    def hand_over(self, work: Callable[[], object]) -> None:
        self._token.run_sync_soon(self._call, work)

    def _call(self, work: Callable[[], object]) -> None:
        result = _called(work)
        if inspect.isawaitable(result):
            self._start(result, anyio.Event())

    def _start(self, work: Awaitable[object], done: anyio.Event) -> None:
        # It is there, since this runs on it; users of asyncio need not have it.
        import trio

        async def run() -> None:
            try:
                await _logged(work)
            except trio.Cancelled:
                _log_lost()
                raise
            finally:
                done.set()

        try:
            trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
        except RuntimeError:  # the run is ending, and takes no tasks any more
            _log_lost()
            discard(work)
            done.set()


def _called(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception:
        logger.exception("what a dropped stream left to do has failed")
        return None


def discard(work: object) -> None:
    """Let go of what will not be awaited: a coroutine that nobody awaits would warn of it."""
    if inspect.iscoroutine(work):
        work.close()


async def _logged(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:
        logger.exception("on_complete has failed; the stream goes on")


def _log_lost() -> None:
    logger.warning("what a stream had left to do was cancelled: its event loop is ending")


def _log_late(seconds: float) -> None:
    logger.warning(
        "on_complete is not done after %s s; it goes on by itself, and the stream as well", seconds
    )
