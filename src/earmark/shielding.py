"""Work that, once begun, finishes whatever becomes of its caller (R16).

There are two kinds of cancellation, and each passes through the other's shield: `asyncio.Task.cancel` comes
once and goes through an anyio shield; a cancelled anyio scope comes again at every await and leaves
`asyncio.shield` at once. On asyncio the work is therefore a task of its own, and a cancelled caller waits
for it under an anyio shield. On trio there is only the second kind, and the shield is enough.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from earmark.errors import Refused
from earmark.logs import about

Result = TypeVar("Result")

logger = logging.getLogger("earmark")

PATIENCE: Final = 5.0
"""Seconds for which a cancelled caller waits for its work before the work goes on alone."""

_at_work: set[asyncio.Task[Any]] = set()  # the loop holds tasks weakly


def in_trio() -> bool:
    """Whether a task of trio's runs this code.

    To be asked before asyncio is: as a guest, trio runs within asyncio's loop.
    """
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


async def finish(work: Callable[..., Coroutine[Any, Any, Result]], *arguments: object) -> Result:
    """Call `work` and run it to its end; a cancellation of the caller propagates once the work is done.

    It takes a function, so that a caller that is cancelled before its first step leaves no coroutine behind.
    On asyncio a cancelled caller waits at most `PATIENCE` seconds: later the work goes on alone, and that
    is logged.

    Raises:
        Exception: what the work raises; where the caller is cancelled as well, that is logged, and the
            cancellation raised.
    """
    if in_trio():
        return await _finish_in_scope(work, arguments)
    task = asyncio.get_running_loop().create_task(work(*arguments))
    _at_work.add(task)
    task.add_done_callback(_at_work.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as first:
        if task.cancelled():  # with the loop, which is ending
            raise
        again = await outlast(task, PATIENCE)
        if task.done():
            _report(task)
        else:
            logger.warning(
                "%r outlives its cancelled caller by more than %g s",
                task,
                PATIENCE,
                extra=about("work_outlives_caller", seconds=PATIENCE),
            )
            task.add_done_callback(_report)
        try:
            # A scope takes its own cancellation out of the caller's way: that of the task must not be lost with it.
            raise again or first
        finally:
            del again  # as in `outlast`


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that suspends nowhere, without a task and without a loop.

    Raises:
        RuntimeError: it has suspended.
        Exception: what it raises.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    work.close()
    msg = f"{work!r} was to suspend nowhere"
    raise RuntimeError(msg)


async def together(*works: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run all of them at the same time, each to its end, whatever the others raise.

    Raises:
        Exception: what the first to fail has raised; what others raise is logged.
    """
    if in_trio():
        failures = await _together_in_trio(works)
    else:
        # A task that is cancelled before its first step closes its coroutine: a task group would leave it unawaited.
        results = await asyncio.gather(*(work() for work in works), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures[1:]:
        logger.error(
            "another of several messages has failed as well",
            exc_info=failure,
            extra=about("message_failed"),
        )
    if failures:
        raise failures[0]


async def _together_in_trio(
    works: tuple[Callable[[], Coroutine[Any, Any, object]], ...],
) -> list[BaseException]:
    import anyio

    failures: list[BaseException] = []

    async def run(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(run, work)
    return failures


async def outlast(task: asyncio.Task[Any], seconds: float) -> asyncio.CancelledError | None:
    """Wait for a task of asyncio's through both kinds of cancellation, for at most so many seconds.

    Returns the last `Task.cancel` of the caller that came meanwhile, which the caller has to raise, or None.
    """
    import anyio

    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    came: asyncio.CancelledError | None = None
    try:
        with anyio.CancelScope(shield=True):
            while not task.done() and loop.time() < deadline:
                try:
                    await asyncio.wait({task}, timeout=deadline - loop.time())
                except asyncio.CancelledError as error:
                    came = error
        return came
    finally:
        del came  # its traceback has this frame: a cycle would keep the caller's handles alive


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log(error)


def _log(error: BaseException) -> None:
    """A failure that nobody hears of; a refusal is none."""
    if not isinstance(error, Refused):
        logger.error(
            "work of a cancelled caller failed", exc_info=error, extra=about("work_failed")
        )


async def _finish_in_scope(
    work: Callable[..., Coroutine[Any, Any, Result]], arguments: tuple[object, ...]
) -> Result:
    import anyio
    import anyio.lowlevel

    results: list[Result] = []
    try:
        with anyio.CancelScope(shield=True):
            results.append(await work(*arguments))
    except Exception as error:
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            _log(error)
            raise
        raise
    await anyio.lowlevel.checkpoint_if_cancelled()
    return results[0]
