"""Round trips on one connection, one at a time, without a task.

What is asked within one turn of the event loop is written as the turn is over, and answered where the loop hands over
the reply. What comes while a round trip is under way goes with the next one, which begins as soon as that has landed.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final

from earmark.backends.redis.asked import Asked, Gate, Watch, unanswered
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.exchange import Call, Landing, calls_of, commands_of, hand_out
from earmark.backends.redis.failures import failure
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.wire import Replies

# An attempt to connect may take so many timeouts: nobody waits for it, and on a slow loop it takes many turns. A
# message is sent within as many, or not at all.
PATIENCE: Final = 4


class Trips(ABC):
    """See above; whoever has more to do than that is woken.

    Args:
        header: the arguments that begin every call of a script, as they are now.
        timeout: seconds for which an answer is waited for.
        outbox: what the store is owed.
        standing: told of every round trip.
    """

    def __init__(
        self,
        header: Callable[[], tuple[str, ...]],
        timeout: float,
        outbox: Outbox,
        standing: Standing,
    ) -> None:
        self._header = header
        self._timeout = timeout
        self._outbox = outbox
        self._standing = standing
        self._loop = asyncio.get_running_loop()
        self._dialed: Dialed | None = None
        self._proven = False  # whether the connection has carried an answer
        self._waiting: deque[Asked] = deque()
        self._flight: list[Asked] = []
        self._stranded: Landing | Exception | None = None  # what is left of a round trip
        self._watch = Watch(self._loop, timeout, self._oldest, self._give_up)
        self._gate = Gate(self._watch, timeout, PATIENCE * timeout)
        self._about_to_leave = False  # whether a round trip begins with the next turn of the loop
        self._context = Context()  # none of a caller's
        self._wake = asyncio.Event()
        self._parked = False  # whether whoever is woken by that has nothing to do

    @abstractmethod
    def _give_up(self) -> None:
        """Somebody has waited for too long."""

    @abstractmethod
    def _fall(self, error: Exception) -> None:
        """The store is of no use now."""

    @abstractmethod
    def _is_wanted(self) -> bool:
        """Whether whoever is woken has more to do as soon as everybody is answered."""

    @property
    def asked(self) -> bool:
        """Whether anything has no answer yet, also where nobody waits for it any more."""
        return self._oldest() is not None

    def _oldest(self) -> Asked | None:
        """Who has waited the longest, of those who wait still."""
        return next(unanswered(self._flight, self._waiting), None)

    def _queue(self, asked: Asked) -> None:
        """Send it with the next round trip, together with whatever else is asked in this turn of the loop."""
        self._waiting.append(asked)
        self._watch.begin()
        if not self._flight and not self._about_to_leave:
            self._about_to_leave = True
            self._loop.call_soon(self._leave, context=self._context)

    def _leave(self, answered: int = 0) -> None:
        """This turn of the loop is over, or so many were answered."""
        self._about_to_leave = False
        if self._flight:
            return
        if self._parked and self._dialed is not None and self._dialed.wire.free:
            self._take_off(self._dialed, answered)
        else:
            self._wake.set()

    def _take_off(self, dialed: Dialed, answered: int = 0) -> None:
        """Send everybody who waits, and has a place."""
        self._flight = self._gate.board(self._waiting, answered)
        if not self._flight:
            return
        sent = time.monotonic()
        try:
            calls = calls_of(dialed.scripts, self._flight)
            commands = commands_of(calls, "EVALSHA", self._header())

            def landed(replies: Replies) -> None:
                self._land(calls, replies, time.monotonic() - sent)

            dialed.wire.call(commands, len(commands), landed)
        except Exception as error:  # noqa: BLE001 - whoever is woken sees to it
            self._strand(error)

    def _land(self, calls: list[Call], replies: Replies, seconds: float) -> None:
        """Answer who was on board, and send who has come meanwhile."""
        if isinstance(replies, Exception):
            self._strand(replies)
            return
        self._standing.answered(seconds)
        try:
            landing = hand_out(calls, replies)
        except Exception as error:  # noqa: BLE001 - whoever is woken sees to it
            self._strand(error)
            return
        self._proven = True
        answered = len(self._flight)
        self._flight = landing.left  # others may be on their way to another server
        if landing.ailing is not None:
            self._fall(landing.ailing)  # before those go on who have heard of it
            self._wake.set()
        elif landing.unknown:
            self._strand(landing)
        elif self._outbox.deliverable or self._is_wanted():
            self._wake.set()
        elif self._waiting:
            self._leave(answered)

    def _strand(self, what: Landing | Exception) -> None:
        """A round trip has not answered everybody."""
        self._stranded = what
        self._wake.set()

    def _fail_all(self, error: Exception) -> None:
        """Tell everybody that there is no answer."""
        for asked in self._flight:
            fail(asked, failure(error, sent=True))
        for asked in self._waiting:
            fail(asked, failure(error, sent=asked.again))
        self._flight = []
        self._stranded = None
        self._waiting.clear()


def fail(asked: Asked, error: Exception) -> None:
    """Tell whoever waits that there is no answer."""
    if not asked.answer.done():
        asked.answer.set_exception(error)
        asked.answer.exception()  # its caller may have been collected: then it is nobody's
