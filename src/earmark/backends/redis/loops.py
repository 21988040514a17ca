"""Whether an event loop is about to end, as far as anybody can tell who runs on it.

A runner such as `asyncio.run` cancels every task that is left, waits for them, and then shuts down the loop's
generators and threads. What serves the loop is among those tasks, and others still have something to say. A program may
also cancel all its tasks and go on.
"""

from __future__ import annotations

import asyncio
from typing import Final

OURS: Final = "earmark.redis"
"""What the names of the tasks begin with that serve a loop."""

# The methods of a loop by which it is shut down: `shutdown_asyncgens` and `shutdown_default_executor`.
_SHUTTING_DOWN: Final = "shutdown_"


def is_ending() -> bool:
    """Whether others on the running loop are going, or it is being shut down already."""
    return others_are_going() or any(_shuts_down(task) for task in asyncio.all_tasks())


def others_are_going() -> bool:
    """Whether a task on the running loop that is none of ours is being cancelled now."""
    tasks = asyncio.all_tasks()
    return any(task.cancelling() and not task.get_name().startswith(OURS) for task in tasks)


def _shuts_down(task: asyncio.Task[object]) -> bool:
    name: str = getattr(task.get_coro(), "__qualname__", "")
    return name.rpartition(".")[2].startswith(_SHUTTING_DOWN)
