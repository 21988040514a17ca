"""Watching a stream pass by, and telling once what it used.

The items go through untouched, in order, one at a time as they are asked for. What was seen is told exactly
once, whichever way the stream ends: C41 was told twice (a finish chunk, then a usage chunk, then a close), C42 and
C43 never (a client that leaves, a provider that fails). It is told before the consumer has the item that
completes the end, so that whoever has seen the end finds the tokens already counted (B32).

A class and not an async generator: a generator that was never started runs none of its code when it is closed
or dropped, and one that is dropped is finished later, somewhere else. No scope and no timeout is open while an item
is out or awaited: a cancelled `__anext__` ends many a client's stream for good.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any, Final, TypeVar

from earmark.streams.estimating import Estimate, with_estimate
from earmark.streams.loops import current_loop, is_ours
from earmark.streams.observed import Observed, ObservedStream, Outcome
from earmark.streams.sources import (
    Close,
    close_all,
    close_quietly,
    closers,
    is_over,
    iterator_of,
    not_running,
)
from earmark.streams.sse import lone_cr
from earmark.streams.telling import Teller
from earmark.streams.watcher import Watcher

T = TypeVar("T")

CloseSome = Callable[[list[Close], float], Coroutine[Any, Any, None]]

# What keeps the next item from being asked for; None: nothing does.
_NEW: Final = "new"
_BUSY: Final = "busy"
_KEPT: Final = "kept"
_CLOSED: Final = "closed"

# The outcomes that are the consumer's doing.
_GONE: Final = ("closed", "cancelled", "dropped")

_CR: Final = 13  # as a number it is looked for several times as fast as as a piece of bytes


class WatchedStream(ObservedStream[T]):
    """Passes the items of a source on and shows each to a watcher.

    Args:
        source: what is iterated.
        watcher: what each item is shown to.
        teller: what is told, once.
        estimate: asked for a usage where the provider's own last word did not arrive.
        aclose: closes what the source reads from.
    """

    __slots__ = (
        "_advance",
        "_closing",
        "_estimate",
        "_failed",
        "_gate",
        "_items",
        "_kept",
        "_left",
        "_observed",
        "_teller",
        "_watcher",
    )

    def __init__(
        self,
        source: AsyncIterable[T],
        watcher: Watcher,
        teller: Teller,
        estimate: Estimate | None,
        aclose: Close | None,
    ) -> None:
        iterator = iterator_of(source)
        self._advance = iterator.__anext__
        self._closing = closers(source, iterator, aclose)
        self._watcher = watcher
        self._teller = teller
        self._estimate = estimate
        self._items = 0
        self._left: Outcome | None = None
        self._observed: Observed | None = None
        self._kept: list[T] = []
        self._failed = False
        self._gate: str | None = _NEW

    async def __anext__(self) -> T:
        if self._gate is not None:
            self._enter()
            if self._kept:
                self._gate = None
                return self._kept.pop()
        self._gate = _BUSY
        try:
            item = await self._advance()
        except BaseException as error:
            await self._stopped(error)
            raise
        self._items += 1
        watcher = self._watcher
        plain = watcher.plain
        piece: Any = item
        # Not `isinstance`, which asks an item for its class, and may be told anything.
        if (
            plain is not None
            and type(piece) is bytes
            and plain(piece) is not None
            and watcher.trigger(piece) is None
            and (_CR not in piece or lone_cr(piece) is None)
        ):
            watcher.size += len(piece)
        elif self._observed is None and watcher.see(item):
            await self._end_seen(item)
        if self._gate is _BUSY:
            self._gate = None
        else:  # closed meanwhile: a source that was running could not be closed then
            await self._close(close_quietly, self._closing)
        return item

    async def aclose(self) -> None:
        """Close the source; a stream that had not ended is told as closed.

        A source that another task is waiting for is closed by that task, as soon as it has its answer.
        """
        if self._gate is _CLOSED:
            return
        if self._gate is _BUSY:
            self._gate = _CLOSED
            self._watcher.finish()
            closing = not_running(self._closing)
            self._closing = [close for close in self._closing if close not in closing]
            try:
                await self._complete("closed")
            finally:
                await self._close(close_quietly, closing)
            return
        self._gate = _CLOSED
        await self._end("closed", None, close_all)

    @property
    def observed(self) -> Observed:
        """What was told, or a look."""
        return self._observed or self._watcher.look("open", items=self._items)

    def disarm(self) -> None:
        """Nobody has had the stream, and nobody will: nothing is told or closed."""
        self._gate = _CLOSED

    def leave(self, outcome: Outcome) -> None:
        """Say how the consumer left, where somebody else reads on in its place; the first word counts."""
        self._left = self._left or outcome

    def __del__(self) -> None:
        if getattr(self, "_gate", _CLOSED) is not _CLOSED and not sys.is_finalizing():
            self._dropped()

    def _enter(self) -> None:
        """The first item is asked for, or one that cannot be had."""
        if self._gate is _CLOSED:
            if self._failed:
                self._failed = False
                failure = self.observed.error
                if isinstance(failure, BaseException):
                    raise failure
            raise StopAsyncIteration
        if self._gate is _BUSY:
            msg = "another task is waiting for the next item of this stream"
            raise RuntimeError(msg)
        self._teller.loop = current_loop() or self._teller.loop

    async def _end_seen(self, item: T) -> None:
        """The item in hand completes the end of the stream: tell it before the consumer has it.

        A consumer that is cancelled meanwhile, and goes on all the same, gets it with its next step.
        """
        try:
            await self._complete(self._watcher.ending())
        except BaseException:
            if self._gate is _BUSY:
                self._kept.append(item)
                self._gate = _KEPT
            raise

    async def _stopped(self, error: BaseException) -> None:
        """The source has no further item, for the reason that it raised."""
        self._gate = _CLOSED
        if isinstance(error, GeneratorExit):
            # Not a place to wait: whoever waited for the item is being collected.
            self._dropped()
            return
        if isinstance(error, StopAsyncIteration):
            await self._end(None, None, close_quietly)
        elif is_ours(error):
            await self._end("cancelled", None, close_quietly)
        else:
            self._failed = True  # to be raised once more, where something else comes before it
            await self._end("error", error, close_quietly)
            self._failed = False

    async def _end(
        self,
        outcome: Outcome | None,
        error: BaseException | None,
        close: CloseSome,
    ) -> None:
        """Tell the end, then close the source, both out of reach of cancellation, whichever comes in between."""
        if self._observed is None:
            self._watcher.finish()
            try:
                await self._complete(outcome or self._watcher.ending(), error)
            except GeneratorExit:
                self._teller.close_dropped(self._closing)
                raise
            except BaseException:
                await self._close(close_quietly, self._closing)
                raise
        await self._close(close, self._closing)

    async def _close(self, close: CloseSome, closing: list[Close]) -> None:
        if len(closing) == 1 and is_over(closing[0]):
            closing.clear()  # most sources have ended by themselves
        if closing:
            try:
                await close(closing, self._teller.seconds)
            except GeneratorExit:
                self._teller.close_dropped(closing)
                raise

    async def _complete(self, outcome: Outcome, error: BaseException | None = None) -> None:
        observed = self._conclude(outcome, error)
        if observed is not None:
            waiting = self._teller.tell(observed)
            if waiting is not None:
                await self._teller.wait_for(waiting)

    def _conclude(self, outcome: Outcome, error: BaseException | None = None) -> Observed | None:
        """What is to be told, the first time; None afterwards."""
        if self._observed is not None:
            return None
        if self._left is not None and outcome in _GONE:
            outcome = self._left
        seen = self._watcher.look(outcome, error, self._items)
        estimate = self._estimate
        self._observed = seen if estimate is None else with_estimate(seen, estimate)
        return self._observed

    def _dropped(self) -> None:
        """Nobody holds the stream any more. May run anywhere, and must not raise."""
        self._gate = _CLOSED
        if self._observed is None:
            self._teller.tell_dropped(self._conclude_dropped)
        self._teller.close_dropped(self._closing)

    def _conclude_dropped(self) -> Observed:
        """What the dialect and an estimator make of it: user code, for which a finaliser is no place."""
        self._watcher.finish()
        return self._conclude("dropped") or self.observed
