"""Reading a stream on when its consumer has gone, so that the provider's own count still arrives.

A consumer that is cancelled while it waits takes the wait in the source with it, and that ends many a client's
stream for good: what then looks like a clean end gives nothing more. So the source is read by a task of its own
from the start, which no consumer's cancellation reaches. It reads an item when one is asked for and not before;
once the consumer has gone it reads on by itself, for a bounded time.

Many streams are read in one task group, and none may take the others with it: a child of a group that raises
anything, a CancelledError that nobody meant for it included, has the whole group cancelled. So whatever a source or a
callback raises is the consumer's, or is logged, and what cancels one of these tasks alone ends one stream.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup

from earmark.logs import about
from earmark.streams.loops import Loop, current_loop, is_cancellation, must_stop
from earmark.streams.observed import Observed, ObservedStream, Outcome
from earmark.streams.watched import WatchedStream

logger = logging.getLogger("earmark.streams")

T = TypeVar("T")


class DrainingStream(ObservedStream[T]):
    """Passes on what a stream gives, which a task of its own reads.

    Args:
        inner: the stream.
        seconds: how long it is read on for after the consumer has gone.
        start: starts the task; it ends when the stream does.

    Raises:
        RuntimeError: the task group has ended, or there is no event loop.
    """

    __slots__ = ("_closed", "_exchange", "_loop", "_waiting")

    def __init__(self, inner: WatchedStream[T], seconds: float, start: Start) -> None:
        self._closed = True
        self._waiting = False
        loop = current_loop()
        if loop is None:
            msg = "a stream that drains is made in a task, or a callback, of its event loop"
            raise RuntimeError(msg)
        self._loop = loop
        self._exchange = Exchange(inner, seconds, loop)
        start(self._exchange)
        self._closed = False

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._waiting:
            msg = "another task is waiting for the next item of this stream"
            raise RuntimeError(msg)
        self._waiting = True
        try:
            return await self._exchange.ask()
        except BaseException as error:
            self._closed = True
            if is_cancellation(error):
                self._exchange.leave("cancelled")
            elif isinstance(error, GeneratorExit):
                self._dropped()
            raise
        finally:
            self._waiting = False

    async def aclose(self) -> None:
        """Say that nobody takes the items any more. The stream is read on, and closed, in the task group."""
        self._closed = True
        self._exchange.leave("closed")

    @property
    def observed(self) -> Observed:
        """What is known of the stream within."""
        return self._exchange.inner.observed

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            self._dropped()

    def _dropped(self) -> None:
        try:
            self._loop.hand_over(partial(self._exchange.leave, "dropped"))
        except RuntimeError:
            logger.debug("a dropped stream is not read on: its event loop is gone")


class Exchange(Generic[T]):
    """Between the consumer, who asks, and the task that reads."""

    __slots__ = (
        "_answered",
        "_asked",
        "_end",
        "_left",
        "_loop",
        "_read",
        "_scope",
        "_seconds",
        "inner",
    )

    def __init__(self, inner: WatchedStream[T], seconds: float, loop: Loop) -> None:
        self.inner = inner
        self._loop = loop
        self._seconds = seconds
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._read: list[T] = []
        self._end: BaseException | None = None
        self._left = False
        self._scope = anyio.CancelScope()

    async def ask(self) -> T:
        """Have the next item read, and wait for it."""
        if self._end is None:
            self._answered = anyio.Event()
            self._asked.set()
            await self._answered.wait()
        # An item that was read before the end comes first.
        if self._end is not None and not self._read:
            raise self._end
        return self._read.pop()

    def leave(self, outcome: Outcome) -> None:
        """The consumer has gone: read on for a while. To be called on the loop, in a task or not."""
        if self._left:
            return
        self._left = True
        self.inner.leave(outcome)
        self._scope.deadline = self._loop.now() + self._seconds
        self._asked.set()

    async def read(self) -> None:
        """Read the stream: one item for each that is asked for, and then what is left."""
        # Whoever cancels this task alone means this stream alone.
        with suppress(asyncio.CancelledError):
            try:
                with self._scope:
                    await self._serve()
                    await self._drain()
            finally:
                # Where the task group is cancelled, nobody may have waited in the stream: tell it all the same.
                self.inner.leave("cancelled")
                try:
                    with anyio.CancelScope(shield=True):
                        await self._close()
                finally:
                    self._finish(RuntimeError(_CANCELLED))

    async def _serve(self) -> None:
        while self._end is None:
            await self._asked.wait()
            if self._left:
                self._finish(RuntimeError(_LEFT))
                return
            self._asked = anyio.Event()
            try:
                item = await anext(self.inner)
            except BaseException as error:
                if must_stop(error):
                    raise
                self._finish(error)  # it is the consumer's
            else:
                self._read.append(item)
                self._answered.set()

    async def _drain(self) -> None:
        """Read on until the end was seen: what was told cannot change."""
        try:
            while self.inner.observed.outcome == "open":
                await anext(self.inner)
        except StopAsyncIteration:
            return
        except BaseException as error:
            if must_stop(error):
                raise
            # It has been told, and there is nobody to raise it to.
            logger.debug("a stream failed while it was read on", exc_info=True)

    async def _close(self) -> None:
        try:
            await self.inner.aclose()
        except BaseException as error:
            if must_stop(error):
                raise
            logger.exception("a source could not be closed", extra=about("source_unclosed"))

    def _finish(self, end: BaseException) -> None:
        """Say how it has ended to whoever asks, now or later; the first word counts."""
        if self._end is None:
            self._end = end
        self._answered.set()


_CANCELLED: Final = "what reads this stream was cancelled: the task, or its task group"
_LEFT: Final = "this stream was closed, with its limiter: it is read on for its usage alone"

Start: TypeAlias = Callable[[Exchange[Any]], object]
"""Starts the task that reads for an exchange."""


def read_in(group: TaskGroup, exchange: Exchange[Any]) -> None:
    """Start it in a task group of the caller's."""
    group.start_soon(exchange.read, name="earmark.drain")


class ReadOn:
    """Where a limiter's streams are read on, on one event loop: an async context manager.

    Whoever leaves it cannot ask for items any more, though a stream may be referenced yet, by the very block that
    is left: its streams are closed, read on, and waited for.
    """

    __slots__ = ("_exchanges", "_group")

    def __init__(self) -> None:
        self._group = anyio.create_task_group()
        self._exchanges: set[Exchange[Any]] = set()

    def start(self, exchange: Exchange[Any]) -> None:
        """Start the task that reads for an exchange.

        Raises:
            RuntimeError: this has been left.
        """
        self._group.start_soon(self._read, exchange, name="earmark.drain")
        self._exchanges.add(exchange)

    async def _read(self, exchange: Exchange[Any]) -> None:
        try:
            await exchange.read()
        finally:
            self._exchanges.discard(exchange)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:  # else they are cancelled, and told so
            for exchange in tuple(self._exchanges):
                exchange.leave("closed")
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as errors:
            # The block's own error leaves it as it is, not in a group.
            if errors.exceptions != (error,):
                raise
