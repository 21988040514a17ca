"""Telling what was observed, once.

A callback is the user's code: it may fail, be slow, or be cancelled, and the stream must not notice. An async
one is out of reach of cancellation and waited for, within bounds. A finaliser has no loop to wait on and may run
anywhere: it calls a plain callback, and hands an async one to the loop of the stream.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from earmark.logs import about
from earmark.streams.loops import Loop, current_loop, discard, ends_the_process, logged
from earmark.streams.observed import Observed
from earmark.streams.sources import Close, close_quietly, is_async

logger = logging.getLogger("earmark.streams")

OnComplete = Callable[[Observed], object]
"""Takes what was observed: a plain function, or an async one."""

Conclude = Callable[[], Observed]
"""Says what was observed. That asks the dialect and an estimator, which may be the user's code."""

OnDrop = Callable[[Conclude], object]
"""Called by a finaliser, which may run anywhere, inside any lock: it only notes what is to be called later."""


class Teller:
    """Calls one stream's callback.

    Args:
        on_complete: the callback.
        on_drop: called in its place when the stream is dropped.
        seconds: how long an async one is waited for.

    Attributes:
        loop: the loop of the stream, or None while it is not known.
    """

    __slots__ = ("_on_complete", "_on_drop", "loop", "seconds")

    def __init__(self, on_complete: OnComplete, on_drop: OnDrop | None, seconds: float) -> None:
        self._on_complete = on_complete
        self._on_drop = on_drop
        self.seconds = seconds
        self.loop: Loop | None = current_loop()

    def tell(self, observed: Observed) -> Awaitable[object] | None:
        """Call it; where it is async, what it returned is to be waited for."""
        result = _called(self._on_complete, observed)
        # Most return nothing, a reservation a bool: asking whether it is awaitable takes longer than all else here.
        if result is None or type(result) is bool or not inspect.isawaitable(result):
            return None
        return result

    async def wait_for(self, result: Awaitable[object]) -> None:
        """Wait for an async one, within bounds.

        Raises:
            BaseException: a cancellation that came while it was waited for.
        """
        loop = current_loop()
        if loop is None:
            # A loop that is neither asyncio's nor trio's: all that can be done.
            await logged(result)
        else:
            await loop.finish(result, self.seconds)

    def tell_dropped(self, conclude: Conclude) -> None:
        """Call it from a finaliser. What an async one is told is found out on the loop as well."""
        callback = self._on_complete
        if self._on_drop is not None:
            _called(self._on_drop, conclude)
        elif is_async(callback):
            self._hand_over(lambda: callback(conclude()))
        else:
            result = _called(callback, conclude())
            if inspect.isawaitable(result) and not self._hand_over(lambda: result):
                discard(result)

    def close_dropped(self, closing: list[Close]) -> None:
        """Close a source from a finaliser: on its loop, and where there was none what can be closed without."""
        if not closing:
            return
        if self.loop is not None:
            try:
                self.loop.hand_over(partial(close_quietly, closing, self.seconds))
            except RuntimeError:
                logger.debug("a dropped stream's source was not closed: its event loop is gone")
            return
        for close in closing:
            if not is_async(close):
                _called(close)

    def _hand_over(self, work: Callable[[], object]) -> bool:
        """Have it done on the stream's loop; False, and a warning, where that cannot be."""
        if self.loop is None:
            logger.warning(
                "a stream was dropped and its on_complete not called: it has no event loop",
                extra=about("stream_untold"),
            )
            return False
        try:
            self.loop.hand_over(work)
        except RuntimeError:
            logger.warning(
                "a stream was dropped and its on_complete not called: its event loop is gone",
                extra=about("stream_untold"),
            )
            return False
        return True


def _called(function: Callable[..., object], *arguments: object) -> object:
    """What it returns; None where it fails, which is logged."""
    try:
        return function(*arguments)
    except BaseException as error:
        # A plain function is never the one that is cancelled: whatever it raises is its own.
        if ends_the_process(error):
            raise
        logger.exception(
            "on_complete has failed; the stream goes on", extra=about("on_complete_failed")
        )
        return None
