"""Awaiting on asyncio out of reach of cancellation, in the very task and context of whoever awaits.

A generator that is closed finishes what it has open round its `yield`: it resets context variables, and leaves the
scopes, timeouts and task groups that the consumer's task has entered. Each of these wants that task and that
context. So closing cannot be a task of its own, which is how other work is kept out of reach (`shielding`); nor may
a scope be entered round it, since those within would then be left in the wrong order.

What remains is to do what a task does: run the coroutine as far as the future that it waits for, wait, and run it
on. Here the task waits for a fresh proxy of that future. `Task.cancel` cancels what the task waits for, so it hits the
proxy; it is remembered, and the wait goes on. A cancelled scope of anyio's does the same again in every turn of the
loop, and also once the closing is over: it need not be remembered.

The price is that a timeout within what is awaited cannot be told from a cancellation, and cuts nothing: only the
deadline here does. When that has come, each further wait is cut off at once, as in a cancelled scope.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Generator
from typing import Any, Final, cast

import anyio

# What swallows so many cancellations is left as it is.
_MOST: Final = 100


class Uncut:
    """Awaits `work` once, in a task.

    Args:
        work: what is awaited.
        task: the one that awaits it.

    Attributes:
        cut: the time was over before the work was done.
    """

    __slots__ = ("_before", "_came", "_late", "_loop", "_proxy", "_scopes", "_task", "_work", "cut")

    def __init__(self, work: Awaitable[object], task: asyncio.Task[Any]) -> None:
        self._work = _coroutine(work)
        self._task = task
        self._loop = task.get_loop()
        # One that was asked for and has not come yet comes meanwhile.
        self._before = task.cancelling() - bool(getattr(task, "_must_cancel", False))
        self._came: asyncio.CancelledError | None = None
        self._scopes = 0
        self._late = False
        self._proxy: asyncio.Future[None] = self._loop.create_future()
        self.cut = False

    async def run(self, seconds: float) -> None:
        """Await it to its end, cancelled or not, or for so many seconds.

        Raises:
            BaseException: what it raises.
        """
        timer = self._loop.call_later(seconds, self._expire)
        try:
            await self
        except asyncio.CancelledError:
            # No cancellation of the task comes this far: the work has raised it, and was told to if it is late.
            if not self._late:
                raise
            self.cut = True
        finally:
            timer.cancel()

    @property
    def cancelled(self) -> asyncio.CancelledError | None:
        """The last `Task.cancel` that came meanwhile and still stands, which the caller has to raise.

        One that a timeout within the work has taken back stands no more; one that came together with a scope's
        has no error of its own. Scopes that the work has left have taken theirs back as well, those round it have not.
        """
        if self._came is None and not self._scopes:
            return None  # what came meanwhile was taken further out, by whoever closes this within something
        standing = self._task.cancelling() - self._before
        if anyio.current_effective_deadline() == -math.inf:
            standing -= self._scopes
        return self._came or asyncio.CancelledError() if standing > 0 else None

    def __await__(self) -> Generator[Any, None, None]:
        work = self._work
        told: BaseException | None = None
        refused = 0
        try:
            while refused < _MOST:
                try:
                    waits_for = work.send(None) if told is None else work.throw(told)
                except StopIteration:
                    return
                told = yield from self._wait(waits_for)
                refused += self._late
            raise asyncio.CancelledError
        finally:
            del told  # its traceback has this frame
            self._give_up()

    def _wait(self, waits_for: object) -> Generator[Any, None, BaseException | None]:
        """Wait as the work wants to; returns what it has to be told instead of the result, if anything."""
        future = cast("asyncio.Future[object]", waits_for)
        if not asyncio.isfuture(waits_for) or future.get_loop() is not self._loop:
            # One turn of the loop; or what no task waits for, and says so.
            try:
                yield waits_for
            except asyncio.CancelledError as error:
                self._take(error)
            except Exception as error:  # noqa: BLE001 - it is the work's
                return error
            return asyncio.CancelledError() if self._late else None
        future._asyncio_future_blocking = False  # noqa: SLF001 - as whoever takes a future out of an `await` has to
        while not future.done():
            if self._late:
                # As `Task.cancel` does it; but what is not cancelled within one turn is not waited for.
                future.cancel()
                yield from self._wait(None)
                return None if future.done() else asyncio.CancelledError()
            self._proxy = self._loop.create_future()
            future.add_done_callback(self._wake)
            try:
                yield from self._proxy.__await__()
            except asyncio.CancelledError as error:
                self._take(error)
            finally:
                future.remove_done_callback(self._wake)
        return None

    def _take(self, error: asyncio.CancelledError) -> None:
        if "cancel scope" in str(error):  # how anyio's scopes sign what they do
            self._scopes += 1
        else:
            # Its traceback has this frame: a cycle would keep it all alive.
            self._came = error.with_traceback(None)

    def _wake(self, _: object = None) -> None:
        if not self._proxy.done():
            self._proxy.set_result(None)

    def _expire(self) -> None:
        self._late = True
        self._wake()

    def _give_up(self) -> None:
        """Close the work, where it has not ended: it swallows what it is told, or whoever awaits it is collected."""
        try:
            self._work.close()
        except RuntimeError:
            self.cut = True  # it swallows that as well


async def _coroutine(work: Awaitable[object]) -> None:
    """Anything that can be awaited, as what can be driven."""
    await work
