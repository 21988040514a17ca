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
from typing import Any, TypeVar

from earmark.streams.loops import must_pass

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


def closers(source: object, iterator: object, aclose: Close | None) -> tuple[Close, ...]:
    """What closes a source, in order: its iterator, the source itself, and what the caller gave."""
    found: list[Close] = []
    for thing in (iterator,) if iterator is source else (iterator, source):
        close = getattr(thing, "aclose", None) or getattr(thing, "close", None)
        if callable(close):
            found.append(close)
    if aclose is not None:
        found.append(aclose)
    return tuple(found)


def not_running(closing: tuple[Close, ...]) -> tuple[Close, ...]:
    """What can be closed while another task waits for the source: a generator that runs cannot."""
    return tuple(
        close
        for close in closing
        if not getattr(getattr(close, "__self__", None), "ag_running", False)
    )


async def close_all(closing: tuple[Close, ...]) -> None:
    """Close, each in turn, whatever the others do.

    Raises:
        Exception: the first error there was, after all have been called. One that is no Exception but harms
            nobody, such as a CancelledError where nobody cancelled, comes as the cause of a RuntimeError.
        BaseException: what has to go on comes before that, after all have been called as well.
    """
    failure: BaseException | None = None
    passing: BaseException | None = None
    try:
        for close in closing:
            try:
                result = close()
                if inspect.isawaitable(result):
                    await result
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised once the others have been closed
                if must_pass(error):
                    passing = passing or error
                else:
                    failure = failure or error
        if passing is not None:
            raise passing
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            msg = f"closing a source has failed: {failure!r}"
            raise RuntimeError(msg) from failure
    finally:
        del failure, passing  # a cycle with their own tracebacks would keep the source alive


async def close_quietly(closing: tuple[Close, ...]) -> None:
    """Close a source whose end has been told already: a failure is logged."""
    try:
        await close_all(closing)
    except Exception:
        logger.exception("a source could not be closed")


def is_async(function: Callable[..., object]) -> bool:
    """Whether what it returns has to be awaited, as far as can be told without calling it."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an async call
        or isinstance(getattr(function, "__self__", None), AsyncGeneratorType)
    )
