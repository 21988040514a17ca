"""Messages whose callers wait, and the deadline of the one that has waited the longest.

One timer watches all of them: a timer for each message would cost more than the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from earmark.backends.redis.messages import Message

# Turns of the loop for which an answer that is there already is waited for after the deadline: the
# application has blocked the loop, not the store.
_TURNS: Final = 5


class Asked:
    """A message whose caller waits for the answer."""

    __slots__ = ("again", "answer", "deadline", "message")

    def __init__(
        self, message: Message, answer: asyncio.Future[str], deadline: float, *, again: bool
    ) -> None:
        self.message = message
        self.answer = answer
        self.deadline = deadline
        self.again = again  # it may have reached the store before


class Watch:
    """Sees to it that nobody waits for longer than a deadline.

    Args:
        loop: the loop of the callers.
        timeout: seconds.
        oldest: who has waited the longest, or None.
        give_up: called when that one has waited too long.

    Attributes:
        on: whether it is watching; it ends by itself when nobody waits any more.
    """

    __slots__ = ("_give_up", "_loop", "_oldest", "_timeout", "_timer", "on")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        oldest: Callable[[], Asked | None],
        give_up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._timeout = timeout
        self._oldest = oldest
        self._give_up = give_up
        self._timer: asyncio.Handle | None = None
        self.on = False

    def begin(self) -> None:
        """Watch from now on."""
        self.on = True
        self._timer = self._loop.call_later(self._timeout, self._look)

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self.on = False

    def _look(self) -> None:
        asked = self._oldest()
        if asked is None:
            self.on = False
            return
        left = asked.deadline - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._wait(asked, _TURNS)

    def _wait(self, asked: Asked, turns: int) -> None:
        """An answer that is there already wins over a deadline that has passed."""
        if asked.answer.done():
            self._look()
        elif turns:
            self._timer = self._loop.call_soon(self._wait, asked, turns - 1)
        else:
            self.on = False
            self._give_up()
