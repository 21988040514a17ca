"""Reading a stream on when its consumer has gone, so that the provider's own count still arrives.

A consumer that is cancelled while it waits takes the wait in the source with it, and that ends many a client's
stream for good: what then looks like a clean end gives nothing more. So the source is read by a task of its own
from the start, which no consumer's cancellation reaches. It reads an item when one is asked for and not before;
once the consumer has gone it reads on by itself, for a bounded time.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from earmark.streams.loops import Loop, current_loop, is_cancellation
from earmark.streams.observed import Observed, ObservedStream, Outcome
from earmark.streams.watched import WatchedStream

logger = logging.getLogger("earmark.streams")

T = TypeVar("T")


class DrainingStream(ObservedStream[T]):
    """Passes on what a stream gives, which a task in `group` reads.

    Args:
        inner: the stream.
        seconds: how long it is read on for after the consumer has gone.
        group: where the task runs; it ends when the stream does.

    Raises:
        RuntimeError: the task group has ended, or there is no event loop.
    """

    __slots__ = ("_closed", "_exchange", "_loop", "_waiting")

    def __init__(self, inner: WatchedStream[T], seconds: float, group: TaskGroup) -> None:
        self._closed = True
        self._waiting = False
        loop = current_loop()
        if loop is None:
            msg = "a stream that drains is made in a task, or a callback, of its event loop"
            raise RuntimeError(msg)
        self._loop = loop
        self._exchange = _Exchange(inner, seconds, loop)
        group.start_soon(self._exchange.read, name="earmark.drain")
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


class _Exchange(Generic[T]):
    """Between the consumer, who asks, and the task that reads."""

    __slots__ = ("_answered", "_asked", "_item", "_left", "_loop", "_scope", "_seconds", "inner")

    def __init__(self, inner: WatchedStream[T], seconds: float, loop: Loop) -> None:
        self.inner = inner
        self._loop = loop
        self._seconds = seconds
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._item: list[T] | Exception = []
        self._left = False
        self._scope = anyio.CancelScope()

    async def ask(self) -> T:
        """Have the next item read, and wait for it."""
        if not isinstance(self._item, Exception):
            self._answered = anyio.Event()
            self._asked.set()
            await self._answered.wait()
        if isinstance(self._item, Exception):
            raise self._item
        return self._item.pop()

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
                self._answer(
                    RuntimeError("the task group that reads this stream has been cancelled")
                )

    async def _serve(self) -> None:
        while not isinstance(self._item, Exception):
            await self._asked.wait()
            if self._left:
                return
            self._asked = anyio.Event()
            try:
                item = await anext(self.inner)
            except Exception as error:  # noqa: BLE001 - it is the consumer's
                self._answer(error)
            else:
                self._answer([item])

    async def _drain(self) -> None:
        """Read on until the end was seen: what was told cannot change."""
        try:
            while self.inner.observed.outcome == "open":
                await anext(self.inner)
        except StopAsyncIteration:
            return
        except Exception:
            # It has been told, and there is nobody to raise it to.
            logger.debug("a stream failed while it was read on", exc_info=True)

    async def _close(self) -> None:
        try:
            await self.inner.aclose()
        except Exception:
            logger.exception("a source could not be closed")

    def _answer(self, item: list[T] | Exception) -> None:
        if not isinstance(self._item, Exception):
            self._item = item
            self._answered.set()
