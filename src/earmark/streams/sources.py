"""The source of a stream: how it is iterated, and how it is closed.

A source that was never started must be closed too: a wrapped httpx response that is only dropped never gives
its connection back. An async generator cannot do that for what it reads from, since closing one that was never
started runs none of it; hence the caller's `aclose`, which comes after the source's own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import AsyncGeneratorType
from typing import Any, TypeVar, cast

from earmark.logs import about
from earmark.streams.loops import Closed, Errors, ends_the_process, see_through

logger = logging.getLogger("earmark.streams")

Close = Callable[[], object]
"""Closes something: a plain function, or an async one."""

T = TypeVar("T")


def iterator_of(source: AsyncIterable[T]) -> AsyncIterator[T]:
    """The iterator of a source.

    Raises:
        TypeError: it cannot be iterated with `async for`.
    """
    begin: Any = getattr(type(source), "__aiter__", None)
    if begin is None:
        msg = (
            "a source is iterated with `async for`: an async generator, a response's aiter_raw(), an"
            f" SDK's stream; not {type(source).__name__}"
        )
        raise TypeError(msg)
    return source.__aiter__()


def closers(source: object, iterator: object, aclose: Close | None) -> list[Close]:
    """What closes a source, in order: its iterator, the source itself, and what the caller gave."""
    found: list[Close] = []
    for thing in (iterator,) if iterator is source else (iterator, source):
        close = getattr(thing, "aclose", None) or getattr(thing, "close", None)
        if callable(close):
            found.append(close)
    if aclose is not None:
        found.append(aclose)
    return found


def not_running(closing: list[Close]) -> list[Close]:
    """What can be closed while another task waits for the source: a generator that runs cannot."""
    return [
        close
        for close in closing
        if not getattr(getattr(close, "__self__", None), "ag_running", False)
    ]


def is_over(close: Close) -> bool:
    """Whether this closes a generator that has ended: there is nothing to close."""
    owner = getattr(close, "__self__", None)
    return type(owner) is AsyncGeneratorType and owner.ag_frame is None


async def close_all(closing: list[Close], seconds: float) -> None:
    """Close, each in turn, whatever the others do, cancelled or not, and each for at most so many seconds.

    What was called is taken off the list.

    Raises:
        Exception: the first error there was, after all have been called. One that is no Exception but harms
            nobody, such as a CancelledError where nobody cancelled, comes as the cause of a RuntimeError.
        BaseException: what has to go on comes before that, after all have been called as well: what ends the
            process, or a cancellation of asyncio's own that came meanwhile. The error is then logged.
    """
    came: list[Closed] = []
    while closing:
        came.append(await _close(closing.pop(0), seconds))
    error = _outcome(came)
    came.clear()
    try:
        if error is not None:
            raise error
    finally:
        del error  # a cycle with its own traceback would keep the source alive


def _outcome(came: list[Closed]) -> BaseException | None:
    """What has to be raised of all that came; a failure that is not is logged."""
    failures = [closed.failure for closed in came if closed.failure is not None]
    passing = [error for error in failures if ends_the_process(error)]
    passing += [closed.cancelled for closed in came if closed.cancelled is not None]
    failure = next((error for error in failures if error not in passing), None)
    if passing:
        if failure is not None:
            logger.error(
                "a source could not be closed", exc_info=failure, extra=about("source_unclosed")
            )
        return passing[0]
    if failure is None or isinstance(failure, Exception):
        return failure
    wrapped = RuntimeError(f"closing a source has failed: {failure!r}")
    wrapped.__cause__ = failure
    return wrapped


async def _close(close: Close, seconds: float) -> Closed:
    if is_over(close):
        return Closed()
    try:
        result = close()
    except BaseException as error:  # noqa: BLE001 - it is raised once the others have been closed
        return Closed(error)
    if not inspect.isawaitable(result):
        return Closed()
    closed = await see_through(result, seconds)
    return closed._replace(failure=None) if _is_exit(closed.failure) else closed


def _is_exit(failure: BaseException | None) -> bool:
    """Whether this is how a generator ends that is left within a task group, which puts every end in a group."""
    return (
        isinstance(failure, BaseExceptionGroup)
        and cast("Errors", failure).split(GeneratorExit)[1] is None
    )


async def close_quietly(closing: list[Close], seconds: float) -> None:
    """Close a source whose end has been told already: a failure is logged."""
    try:
        await close_all(closing, seconds)
    except Exception:
        logger.exception("a source could not be closed", extra=about("source_unclosed"))


def is_async(function: Callable[..., object]) -> bool:
    """Whether what it returns has to be awaited, as far as can be told without calling it."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an async call
        or isinstance(getattr(function, "__self__", None), AsyncGeneratorType)
    )
