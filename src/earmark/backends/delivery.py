"""Having done soon, on an event loop, what finalisers could only note (R15).

A finaliser may run anywhere, in any thread, and waits for nobody: it leaves a word with every loop on which the
backend was asked. Where no message comes for a moment, the first of them does the work, in a task of the library's
own: a slot is free soon also where this process has nothing further to say. A loop that is ending takes nothing on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Final, Protocol, cast

from earmark.logs import about
from earmark.shielding import in_trio

if TYPE_CHECKING:
    import trio.lowlevel

    from earmark.backends.protocol import Desk

logger = logging.getLogger("earmark")

# Seconds for which the next message is waited for: whoever sends one finds done what was noted before it. By then a
# loop that was ending has ended as well, mostly.
_PAUSE: Final = 0.05

# The methods of a loop by which it is shut down: `shutdown_asyncgens` and `shutdown_default_executor`.
_SHUTTING_DOWN: Final = "shutdown_"

_at_work: Final[set[asyncio.Task[None]]] = set()  # the loop holds tasks weakly


class Loop(Protocol):
    """An event loop on which the backend was asked."""

    def is_over(self) -> bool:
        """Whether it is gone for good."""
        ...

    def call(self, desk: Desk) -> None:
        """Have done soon what a desk has noted. From anywhere; where the loop is gone nothing happens."""
        ...


def running() -> object | None:
    """What runs this code: a loop of asyncio's, the token of a run of trio's, or None."""
    if in_trio():
        token: object = sys.modules["trio"].lowlevel.current_trio_token()
        return token
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def loop_of(token: object) -> Loop:
    """The loop of what `running` has returned."""
    if isinstance(token, asyncio.AbstractEventLoop):
        return _Asyncio(token)
    return _Trio(cast("trio.lowlevel.TrioToken", token))


def is_shutting_down() -> bool:
    """Whether the running loop is at its end: a runner such as `asyncio.run` shuts down its generators and threads."""
    return any(_shuts_down(task) for task in asyncio.all_tasks())


def _shuts_down(task: asyncio.Task[object]) -> bool:
    name: str = getattr(task.get_coro(), "__qualname__", "")
    return name.rpartition(".")[2].startswith(_SHUTTING_DOWN)


class _Asyncio:
    __slots__ = ("_called", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._called = False

    def is_over(self) -> bool:
        return self._loop.is_closed()

    def call(self, desk: Desk) -> None:
        with suppress(RuntimeError):  # closed
            # The context is not that of whatever the collector has interrupted.
            self._loop.call_soon_threadsafe(self._begin, desk, context=Context())

    def _begin(self, desk: Desk) -> None:
        """Set a timer, which a loop that is closed forgets."""
        if not self._called:
            self._called = True
            self._loop.call_later(_PAUSE, self._do, desk)

    def _do(self, desk: Desk) -> None:
        self._called = False
        if desk.dropped and not is_shutting_down():
            task = self._loop.create_task(_deliver(desk))
            _at_work.add(task)
            task.add_done_callback(_at_work.discard)


class _Trio:
    __slots__ = ("_called", "_token")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._called = False

    def is_over(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing)
        except RuntimeError:
            return True
        return False

    def call(self, desk: Desk) -> None:
        with suppress(RuntimeError):  # the run is over
            self._token.run_sync_soon(self._begin, desk)

    def _begin(self, desk: Desk) -> None:
        import trio  # it is there, since this runs on it

        if not self._called:
            with suppress(RuntimeError):  # the run is ending
                trio.lowlevel.spawn_system_task(self._do, desk, context=Context())
                self._called = True

    async def _do(self, desk: Desk) -> None:
        import trio

        await trio.sleep(_PAUSE)
        self._called = False
        await _deliver(desk)


def _nothing() -> None:
    """To see whether a run takes anything."""


async def _deliver(desk: Desk) -> None:
    try:
        await desk.deliver(desk)
    except Exception:
        logger.exception(
            "what was dropped could not be seen to yet", extra=about("delivery_failed")
        )
