"""Whether an event loop is about to end, as far as anybody can tell who runs on it, and what goes on where it is not.

A runner such as `asyncio.run` cancels every task that is left, waits for them, and then shuts down the loop's
generators and threads. What serves the loop is among those tasks, and others still have something to say. A program may
also cancel all its tasks and go on, and some of them may as well: those are marked for good as being cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final

from earmark.backends.delivery import is_shutting_down

OURS: Final = "earmark.redis"
"""What the names of the tasks begin with that serve a loop."""

ENDING: Final = f"{OURS}.ending"
"""What one of them is called that was interrupted, and ends as soon as there is nothing to do."""

# Seconds after which it is seen whether the loop goes on on which a task was interrupted.
_INTERRUPTED: Final = 0.05

# So many turns of the loop later it is seen once more: a loop that ends turns a few times between the end of its last
# task and the beginning of its own.
_TURNS: Final = 5


def is_ending() -> bool:
    """Whether tasks on the running loop are going, or it is being shut down already."""
    ours = any(task.get_name() == ENDING for task in asyncio.all_tasks())
    return ours or others_are_going() or is_shutting_down()


def others_are_going() -> bool:
    """Whether a task on the running loop that is none of ours is being cancelled now."""
    tasks = asyncio.all_tasks()
    return any(task.cancelling() and not task.get_name().startswith(OURS) for task in tasks)


class Beginning(Coroutine[Any, Any, None]):
    """A coroutine that begins also where its task was cancelled before that: then its first wait is interrupted.

    Any other ends without a step, and tells nobody whom it was to serve.

    Args:
        inner: what it does.
    """

    def __init__(self, inner: Coroutine[Any, Any, None]) -> None:
        self.__qualname__: str = getattr(inner, "__qualname__", "")  # which a task shows
        self._inner = inner
        self._begun = False

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as it is declared there
        """Go on."""
        self._begun = True
        return self._inner.send(value)

    def throw(self, error: Any, *more: Any) -> Any:  # noqa: ANN401 - as it is declared there
        """Be interrupted."""
        if not self._begun:
            wait = self.send(None)
            if wait is not None and wait.cancel():
                return wait
        return self._inner.throw(error, *more)

    def close(self) -> None:
        """Never go on."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Be a part of another one."""
        return self._inner.__await__()


class Lasting:
    """A task that serves the running loop, and is begun again where somebody has cancelled it and the loop goes on.

    While the loop may be ending there is a timer in its place, which a loop that is closed forgets.

    Args:
        work: what it does.
        name: of the task, behind `OURS`.
        is_due: whether it has to be at work now, also where the loop may be ending: who is there still is at work.
    """

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, is_due: Callable[[], bool]
    ) -> None:
        self._work = work
        self._name = f"{OURS}.{name}"
        self._is_due = is_due
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None

    @property
    def on(self) -> bool:
        """Whether it is at work."""
        return self._task is not None and not self._task.done()

    def begin(self) -> None:
        """Be at work from now on, from the beginning."""
        self.stop()
        # The first caller's context is not that of what outlives it.
        self._task = self._loop.create_task(self._work(), name=self._name, context=Context())
        self._task.add_done_callback(self._ended, context=Context())

    def begin_later(self) -> None:
        """The same, as soon as it is seen that the loop goes on."""
        self._timer = self._loop.call_later(_INTERRUPTED, self._look, context=Context())

    def stop(self) -> None:
        """Be at work no longer."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever cancels all tasks of a loop may go on with it, and so do holders."""
        if self._task is task and task.cancelled():
            self.begin_later()

    def _look(self, turns: int = _TURNS) -> None:
        if self._is_due():
            self.begin()
        elif is_ending():
            self.begin_later()
        elif turns:
            self._timer = self._loop.call_soon(self._look, turns - 1, context=Context())
        else:
            self.begin()
