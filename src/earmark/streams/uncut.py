"""Awaiting on asyncio out of reach of cancellation, in the very task and context of whoever awaits.

A generator that is closed finishes what it has open round its `yield`: it resets context variables, and leaves the
scopes, timeouts and task groups that the consumer's task has entered. Each of these wants that task and that
context. So closing cannot be a task of its own, which is how other work is kept out of reach (`shielding`); nor may
a scope be entered round it, since those within would then be left in the wrong order.

What remains is to do what a task does: run the coroutine as far as the future that it waits for, wait, and run it
on. Here the task waits for a fresh proxy of that future. `Task.cancel` cancels what the task waits for, so it hits the
proxy; it is remembered, and the wait goes on. A cancelled scope of anyio's does the same again in every turn of the
loop, and also once the closing is over: it need not be remembered, but it would keep the loop turning. So once one
has come, each single wait has a shield round it. That is left before the coroutine is run on, and so is always the
innermost scope.

A scope of anyio's signs its cancellations. One that was not there when this began is the work's own, a timeout or a
task group within it, and has its way, as it would in a task; the outermost of these becomes the shield, so that the
scopes round the work reach neither what waits in it nor its child tasks. Such a scope lets its own cancellation out
where `Task.cancel` has come as well, which would end the work in the middle: that is kept aside until the scope has
been left. What asyncio has of this kind (`timeout`, `TaskGroup`) does not sign: it cannot be told from a cancellation
of the caller, and cuts nothing. Only the deadline here does. When that has come, each further wait is cut off at once,
as in a cancelled scope.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Generator, Mapping
from contextlib import nullcontext
from typing import Any, Final, cast

import anyio

# What swallows so many cancellations is left as it is.
_MOST: Final = 100

# How anyio's scopes sign what they do: with their id.
_SIGNED: Final = re.compile(r"cancel scope ([0-9a-f]+)")


class Uncut:
    """Awaits `work` once, in a task.

    Args:
        work: what is awaited.
        task: the one that awaits it.

    Attributes:
        cut: the time was over before the work was done.
    """

    __slots__ = (
        "_before",
        "_came",
        "_handed_over",
        "_hit",
        "_kept_aside",
        "_late",
        "_loop",
        "_outside",
        "_proxy",
        "_signed",
        "_task",
        "_work",
        "cut",
    )

    def __init__(self, work: Awaitable[object], task: asyncio.Task[Any]) -> None:
        self._work = _coroutine(work)
        self._task = task
        self._loop = task.get_loop()
        # One that was asked for and has not come yet comes meanwhile.
        self._before = task.cancelling() - bool(getattr(task, "_must_cancel", False))
        self._hit = False
        self._kept_aside = 0
        self._came: asyncio.CancelledError | None = None
        self._outside = _scopes_here()
        # How often each scope has cancelled the task, and those did that have left it to the ones round them.
        self._signed: dict[int, int] = {}
        self._handed_over = 0
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
        has no error of its own. What scopes did is theirs to take back, now or later.
        """
        if not self._hit:
            return None  # what came meanwhile was taken further out, by whoever closes this within something
        theirs = sum(self._signed.values()) + self._handed_over
        standing = self._task.cancelling() - self._before - theirs
        return self._came or asyncio.CancelledError() if standing > 0 else None

    def __await__(self) -> Generator[Any, None, None]:
        told: BaseException | None = None
        refused = 0
        try:
            while refused < _MOST:
                try:
                    waits_for = self._run_on(told)
                except StopIteration:
                    told = None
                    break
                except BaseException as error:  # noqa: BLE001 - it is raised below
                    told = error
                    break
                told = yield from self._wait(waits_for)
                refused += self._late
            else:
                told = asyncio.CancelledError()
            while self._kept_aside:
                yield from self._pass_on(None)
            if told is not None:
                raise told
        finally:
            del told  # its traceback has this frame
            self._give_up()

    def _run_on(self, told: BaseException | None) -> object:
        """Run the work as far as its next wait."""
        before = self._task.cancelling()
        try:
            return self._work.send(None) if told is None else self._work.throw(told)
        finally:
            if self._signed or self._handed_over:
                self._let_go(before - self._task.cancelling())

    def _let_go(self, taken_back: int) -> None:
        """Forget the scopes that the work has left: one takes back what it did, or leaves it to one round it."""
        handed_over = 0
        for scope in self._signed.keys() - _scopes_here().keys():
            times = self._signed.pop(scope)
            if times <= taken_back:
                taken_back -= times
            else:
                handed_over += times
        self._handed_over += handed_over - min(max(taken_back, 0), self._handed_over)

    def _wait(self, waits_for: object) -> Generator[Any, None, BaseException | None]:
        """Wait as the work wants to; returns what it has to be told instead of the result, if anything."""
        future = cast("asyncio.Future[object]", waits_for)
        if future is self._task:
            return RuntimeError(f"a task cannot wait for itself: {self._task!r}")
        if not asyncio.isfuture(waits_for) or future.get_loop() is not self._loop:
            return (yield from self._pass_on(waits_for))
        future._asyncio_future_blocking = False  # noqa: SLF001 - as whoever takes a future out of an `await` has to
        while not future.done():
            if self._late:
                # As `Task.cancel` does it; but what is not cancelled within one turn is not waited for.
                future.cancel()
                yield from self._wait(None)
                return None if future.done() else asyncio.CancelledError()
            own, before = self._prepare()
            self._proxy = self._loop.create_future()
            future.add_done_callback(self._wake)
            try:
                with anyio.CancelScope(shield=True) if self._is_beset(own=own) else nullcontext():
                    yield from self._proxy.__await__()
            except asyncio.CancelledError as error:
                # As `Task.cancel` does it here as well.
                if self._is_its_own(error, before, own=own) and not future.cancel(str(error)):
                    return error
            finally:
                future.remove_done_callback(self._wake)
        return None

    def _prepare(self) -> tuple[bool, int]:
        """Before a wait: whether it is in a scope of the work's own, and how often the task has been cancelled.

        The outermost scope of its own is made to keep off those round it.
        """
        outermost = None
        for number, scope in _scopes_here().items():
            if number in self._outside:
                break
            outermost = scope
        if outermost is not None:
            outermost.shield = True
        before = self._task.cancelling()
        if outermost is None and self._kept_aside:
            self._kept_aside -= 1
            self._task.cancel()  # it comes with the wait
        return outermost is not None, before

    def _is_beset(self, *, own: bool) -> bool:
        """Whether a scope round the work is cancelled, and none of its own keeps it off."""
        return not own and bool(self._signed.keys() & self._outside.keys())

    def _pass_on(self, waits_for: object) -> Generator[Any, None, BaseException | None]:
        """One turn of the loop; or what no task waits for, and says so."""
        own, before = self._prepare()
        try:
            yield waits_for
        except asyncio.CancelledError as error:
            if self._is_its_own(error, before, own=own):
                return error
        except Exception as error:  # noqa: BLE001 - it is the work's
            return error
        return asyncio.CancelledError() if self._late else None

    def _is_its_own(self, error: asyncio.CancelledError, before: int, *, own: bool) -> bool:
        """Whether a scope within the work has cancelled it; what comes from without is remembered."""
        self._hit = True
        signed = _SIGNED.search(str(error))
        if own:
            # Of several cancellations in one turn the task sees one.
            for _ in range(self._task.cancelling() - before - (signed is not None)):
                self._task.uncancel()
                self._kept_aside += 1
        if signed is None:
            # Its traceback has this frame: a cycle would keep it all alive.
            self._came = error.with_traceback(None)
            return False
        scope = int(signed[1], 16)
        self._signed[scope] = self._signed.get(scope, 0) + 1
        return scope not in self._outside

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


def _scopes_here() -> Mapping[int, anyio.CancelScope]:
    """The scopes in which the task is, by the ids with which they sign."""
    found: dict[int, anyio.CancelScope] = {}
    with anyio.CancelScope() as innermost:  # noqa: ASYNC100 - it is there to be asked what is round it
        # There is no public way to ask; of each the object is kept, lest another be given its id.
        scope: Any = innermost
        while (scope := scope._parent_scope) is not None:  # noqa: SLF001
            found[id(scope)] = scope
    return found
