"""Round trips on one connection, without a task.

What is asked within one turn of the event loop is written as the turn is over, and answered where the loop hands over
the reply. What a caller who is alone reserves or settles does not wait for the turn's end. What comes while as many
round trips are under way as may be goes with the next one, which begins as soon as one of them has landed.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from itertools import chain
from typing import Final

from earmark.backends.redis.asked import Asked, Gate, Watch, unanswered
from earmark.backends.redis.connection import Dialed
from earmark.backends.redis.exchange import Call, calls_of, commands_of, hand_out
from earmark.backends.redis.failures import failure
from earmark.backends.redis.owed import Outbox
from earmark.backends.redis.standing import Standing
from earmark.backends.redis.wire import Replies

# An attempt to connect may take so many timeouts: nobody waits for it, and on a slow loop it takes many turns. A
# message is sent within as many, or not at all.
PATIENCE: Final = 4

# So many round trips are under way at most: while the store sees to the one, the callers of the other go on.
_ABREAST: Final = 2


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
        self._flights: deque[list[Asked]] = deque()  # what is under way, in order
        self._stranded: list[Call] = []  # what has landed where its script was unknown
        self._broken_by: Exception | None = None  # what is under way does not land any more
        self._watch = Watch(self._loop, timeout, self._oldest, self._give_up)
        self._gate = Gate(self._watch, timeout, PATIENCE * timeout)
        self._about_to_leave = False  # whether a round trip begins with the next turn of the loop
        self._alone = False  # whether the one that has landed last has carried one message
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

    @property
    def _under_way(self) -> Iterable[Asked]:
        """Who was sent, and may have no answer yet."""
        return chain(*(batch for _, batch in self._stranded), *self._flights)

    @property
    def _is_busy(self) -> bool:
        """Whether anybody was sent, or waits for that."""
        return bool(self._flights or self._stranded or self._waiting)

    def _oldest(self) -> Asked | None:
        """Who has waited the longest, of those who wait still."""
        return next(unanswered(self._under_way, self._waiting), None)

    def _queue(self, asked: Asked) -> None:
        """Send it with the next round trip, together with whatever else is asked in this turn of the loop."""
        self._waiting.append(asked)
        self._watch.begin()
        if self._about_to_leave or len(self._flights) >= _ABREAST:
            return
        if self._alone and not self._flights and asked.message.at_once:
            self._leave()
        else:
            self._leave_soon()

    def _leave_soon(self) -> None:
        self._about_to_leave = True
        self._loop.call_soon(self._turn_is_over, context=self._context)

    def _turn_is_over(self) -> None:
        self._about_to_leave = False
        self._leave()

    def _leave(self, answered: int = 0) -> None:
        """Begin a round trip; so many were answered just now."""
        if self._wake.is_set() or (self._flights and self._holds_up):
            return
        if self._parked and self._dialed is not None and self._dialed.wire.has_room:
            self._take_off(self._dialed, answered)
        elif not self._flights:
            self._wake.set()

    @property
    def _is_awaited(self) -> bool:
        """Whether whoever is woken has more to do as soon as nothing is under way."""
        stuck = self._stranded or self._broken_by is not None
        return bool(stuck) or self._outbox.deliverable or self._is_wanted()

    @property
    def _holds_up(self) -> bool:
        """Whether what is under way lands before more is sent.

        Whoever is woken has his turn then. And what is asked after a message whose caller has gone must not come before
        it (R9), as it would where the script of that one alone is unknown by now.
        """
        return self._is_awaited or any(asked.left for batch in self._flights for asked in batch)

    def _take_off(self, dialed: Dialed, answered: int = 0) -> None:
        """Send everybody who waits, and has a place."""
        others = answered + sum(map(len, self._flights))
        flight = self._gate.board(self._waiting, others)
        if not flight:
            return
        self._flights.append(flight)
        sent = time.monotonic()
        try:
            calls = calls_of(dialed.scripts, flight)
            commands = commands_of(calls, "EVALSHA", self._header())

            def landed(replies: Replies) -> None:
                self._land(calls, replies, time.monotonic() - sent)

            dialed.wire.call(commands, len(commands), landed)
        except Exception as error:  # noqa: BLE001 - whoever is woken sees to it
            self._break(error)

    def _land(self, calls: list[Call], replies: Replies, seconds: float) -> None:
        """Answer who was on board, and send who has come meanwhile."""
        if self._broken_by is not None or not self._flights:
            return  # whoever is woken has seen to all, or is about to
        if isinstance(replies, Exception):
            self._break(replies)
            return
        self._standing.answered(seconds)
        try:
            landing = hand_out(calls, replies)
        except Exception as error:  # noqa: BLE001 - whoever is woken sees to it
            self._break(error)
            return
        self._proven = True
        answered = len(self._flights.popleft())
        self._alone = answered == 1
        self._stranded += landing.unknown
        if landing.ailing is not None:
            self._fall(landing.ailing)  # before those go on who have heard of it
            self._wake.set()
        elif self._flights:
            if self._waiting and not self._about_to_leave:
                self._leave_soon()  # together with those who were answered and ask again
        elif self._is_awaited:
            self._wake.set()
        elif self._waiting:
            self._leave(answered)

    def _break(self, error: Exception) -> None:
        """Nothing lands any more on this connection."""
        self._broken_by = error
        self._wake.set()

    def _forget(self) -> None:
        """Nothing is under way any more."""
        self._flights.clear()
        self._stranded.clear()
        self._broken_by = None

    def _fail_all(self, error: Exception) -> None:
        """Tell everybody that there is no answer."""
        for asked in self._under_way:
            fail(asked, failure(error, sent=True))
        for asked in self._waiting:
            fail(asked, failure(error, sent=asked.again))
        self._forget()
        self._waiting.clear()


def fail(asked: Asked, error: Exception) -> None:
    """Tell whoever waits that there is no answer."""
    if not asked.answer.done():
        asked.answer.set_exception(error)
        asked.answer.exception()  # its caller may have been collected: then it is nobody's
