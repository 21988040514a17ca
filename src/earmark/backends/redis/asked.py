"""Messages whose callers wait, and the deadline of the one that has waited the longest.

One timer watches all of them: a timer for each message would cost more than the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from earmark.backends.redis.messages import Message

# Turns of the loop for which an answer that is there already is waited for after the deadline.
_TURNS: Final = 5

# So often within a timeout it is seen whether the loop runs.
_LOOKS: Final = 8


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


class Again(str):
    """The answer to a message that was sent more than once: it may be that of its second copy."""

    __slots__ = ()


class Watch:
    """Sees to it that nobody waits for longer than a deadline.

    Time for which the application blocks the loop does not count: it was not the store that took so long.

    Args:
        loop: the loop of the callers.
        timeout: seconds.
        oldest: who has waited the longest, or None.
        give_up: called when that one has waited too long.

    Attributes:
        on: whether it is watching; it ends by itself when nobody waits any more.
    """

    __slots__ = ("_blocked", "_due", "_give_up", "_loop", "_oldest", "_timeout", "_timer", "on")

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
        self._due = 0.0
        self._blocked = 0.0
        self.on = False

    def deadline(self) -> float:
        """The deadline of a message that comes now."""
        return self._loop.time() - self._blocked + self._timeout

    def begin(self) -> None:
        """Watch from now on."""
        self.on = True
        self._look_in(self._timeout)

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self.on = False

    def _look_in(self, seconds: float) -> None:
        self._due = self._loop.time() + min(seconds, self._timeout / _LOOKS)
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._blocked += max(now - self._due, 0.0)
        self._see(now)

    def _see(self, now: float) -> None:
        asked = self._oldest()
        if asked is None:
            self.on = False
            return
        left = asked.deadline - (now - self._blocked)
        if left > 0:
            self._look_in(left)
        else:
            self._wait(asked, _TURNS)

    def _wait(self, asked: Asked, turns: int) -> None:
        """An answer that is there already wins over a deadline that has passed."""
        if asked.answer.done():
            self._see(self._loop.time())
        elif turns:
            self._timer = self._loop.call_soon(self._wait, asked, turns - 1)
        else:
            self.on = False
            self._give_up()
