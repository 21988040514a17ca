"""Work that, once begun, finishes whatever becomes of its caller (R16).

There are two kinds of cancellation, and each passes through the other's shield: `asyncio.Task.cancel` comes
once and goes through an anyio shield; a cancelled anyio scope comes again at every await and leaves
`asyncio.shield` at once. On asyncio the work is therefore a task of its own, and a cancelled caller waits
for it under an anyio shield. Elsewhere there is only the second kind, and the shield is enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

logger = logging.getLogger("earmark")

PATIENCE: Final = 5.0
"""Seconds for which a cancelled caller waits for its work before the work goes on alone."""

_at_work: set[asyncio.Task[Any]] = set()  # the loop holds tasks weakly


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end; a cancellation of the caller propagates once the work is done.

    On asyncio a cancelled caller waits at most `PATIENCE` seconds: later the work goes on alone, and that
    is logged.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await _finish_in_scope(work)
    task = loop.create_task(work)
    _at_work.add(task)
    task.add_done_callback(_at_work.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            await _wait_out(task)
        raise


async def _wait_out(task: asyncio.Task[Any]) -> None:
    """Wait for a task whose caller is cancelled, through both kinds of cancellation."""
    import anyio

    with anyio.move_on_after(PATIENCE, shield=True) as scope:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if scope.cancel_called:
                    raise
    if not task.done():
        logger.warning("%r outlives its cancelled caller by more than %g s", task, PATIENCE)
        task.add_done_callback(_report)
    else:
        _report(task)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("work of a cancelled caller failed", exc_info=task.exception())


async def _finish_in_scope(work: Coroutine[Any, Any, Result]) -> Result:
    import anyio
    import anyio.lowlevel

    with anyio.CancelScope(shield=True):
        result = await work
    await anyio.lowlevel.checkpoint_if_cancelled()
    return result
