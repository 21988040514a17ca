"""Having done soon, on an event loop, what finalisers could only note (R15).

A finaliser may run anywhere, in any thread, and waits for nobody: it leaves a word with every loop on which the
backend was asked, and the first that comes to it does the work, in a task of the library's own. So a slot is free soon
also where this process sends no further message. A loop that is ending takes nothing on: what it leaves is the next
message's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from earmark.logs import about
from earmark.shielding import in_trio

if TYPE_CHECKING:
    import trio.lowlevel

logger = logging.getLogger("earmark")

Work = Callable[[], Coroutine[Any, Any, None]]
"""Does what was noted by then."""

# Seconds after which a loop goes on on which others are being cancelled: one that ends has closed by then, mostly.
_PAUSE: Final = 0.05

# The methods of a loop by which it is shut down: `shutdown_asyncgens` and `shutdown_default_executor`.
_SHUTTING_DOWN: Final = "shutdown_"

_at_work: Final[set[asyncio.Task[None]]] = set()  # the loop holds tasks weakly


class Loop(Protocol):
    """An event loop on which the backend was asked."""

    def is_over(self) -> bool:
        """Whether it is gone for good."""
        ...

    def call(self, work: Work) -> None:
        """Have `work` done there. From anywhere; where the loop is gone nothing happens."""
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
    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def is_over(self) -> bool:
        return self._loop.is_closed()

    def call(self, work: Work) -> None:
        with suppress(RuntimeError):  # closed
            # The context is that of whatever was interrupted by the collector.
            self._loop.call_soon_threadsafe(self._begin, work, context=Context())

    def _begin(self, work: Work) -> None:
        """Do it now, unless the loop may be ending: then a timer waits, which a closed loop forgets."""
        if any(task.cancelling() for task in asyncio.all_tasks()):
            self._loop.call_later(_PAUSE, self._do, work)
        else:
            self._do(work)

    def _do(self, work: Work) -> None:
        if not is_shutting_down():
            task = self._loop.create_task(_logged(work))
            _at_work.add(task)
            task.add_done_callback(_at_work.discard)


class _Trio:
    __slots__ = ("_token",)

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token

    def is_over(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing)
        except RuntimeError:
            return True
        return False

    def call(self, work: Work) -> None:
        with suppress(RuntimeError):  # the run is over
            self._token.run_sync_soon(self._do, work)

    @staticmethod
    def _do(work: Work) -> None:
        import trio  # it is there, since this runs on it

        with suppress(RuntimeError):  # the run is ending
            trio.lowlevel.spawn_system_task(_logged, work, context=Context())


def _nothing() -> None:
    """To see whether a run takes anything."""


async def _logged(work: Work) -> None:
    try:
        await work()
    except Exception:
        logger.exception(
            "what was dropped could not be seen to yet", extra=about("delivery_failed")
        )
