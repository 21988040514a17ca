"""Messages whose callers wait, and the deadline of the one that has waited the longest.

One timer watches all of them: a timer for each message would cost more than the message.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from functools import partial
from typing import Any, Final

from earmark.backends.redis.failures import Outage
from earmark.backends.redis.messages import Message
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

# Turns of the loop for which an answer that is there already is waited for after the deadline.
_TURNS: Final = 5

# At least so many of them, also where each takes its time.
_LEAST_TURNS: Final = 2

# So often within a timeout it is seen whether the loop runs.
_LOOKS: Final = 8

# A turn of the loop may take this part of a timeout, and the turns after the deadline together as much, before it
# counts as blocked: a loop whose turns are merely slow finds out about a dead store all the same.
_SLOW: Final = 1 / 2


# So many messages go into one call, with about so many keys: a script holds up the whole server.
MAX_BATCH: Final = 128
MAX_KEYS: Final = 1_024

# So few go together in any case: a call has its own cost.
_FEW: Final = 32


class Asked:
    """A message whose caller waits for the answer."""

    __slots__ = ("__weakref__", "again", "answer", "deadline", "kept", "left", "message", "sent")

    def __init__(
        self, message: Message, answer: asyncio.Future[str], deadline: float, *, again: bool
    ) -> None:
        self.message = message
        self.answer = answer
        self.deadline = deadline
        self.again = again  # it may have reached the store before
        self.sent = again  # it may have reached the store by now
        self.kept = False  # the store has to hear it in any case
        self.left = False  # nobody waits for it any more, and it goes its way

    @property
    def group(self) -> object:
        """Those of one group go in one call of a script."""
        return None

    @property
    def asking(self) -> bool:
        """Whether the server is to be told that another one has sent it here."""
        return False

    def is_sent_elsewhere(self, error: Exception) -> bool:
        """Whether an error says that it belongs to another server, and it is on its way there."""
        return False

    def take_back(self) -> bool:
        """Its caller goes; True where nothing was sent for it, and nothing will be."""
        return not self.sent and (self.answer.cancelled() or self.answer.cancel())

    def stays(self) -> asyncio.Future[str]:
        """The answer, for a caller that may go while the message keeps its place among the others.

        A settlement that has begun is to finish (R16), and what is asked after it must not come before it (R9).
        """
        if not self.answer.done():
            self.answer = _Leavable(self)
            self.kept = True
        return self.answer

    def leave(self, failed: Callable[[], object]) -> bool:
        """Its caller goes.

        Returns whether the message goes its way, or has gone it; else it is over, or nobody sees to it any more.

        Args:
            failed: called where it comes to nothing.
        """
        answer = self.answer
        if answer.done():
            return not answer.cancelled() and answer.exception() is None
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not answer.get_loop():
            return False  # a coroutine that has outlived its loop, or is collected elsewhere
        self.left = True
        answer.add_done_callback(partial(_left, failed), context=Context())
        return True


class _Leavable(asyncio.Future[str]):
    """An answer whose caller may be cancelled: then the message has another one, which nobody awaits."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(loop=asked.answer.get_loop())
        self._asked = weakref.ref(asked)  # whoever sees to the message keeps it

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - as it is declared there
        """Its caller is interrupted."""
        if not super().cancel(msg):
            return False
        asked = self._asked()
        if asked is not None:
            asked.answer = self.get_loop().create_future()
        return True


def _left(failed: Callable[[], object], answer: asyncio.Future[str]) -> None:
    if answer.cancelled() or answer.exception() is not None:
        failed()


def share_of(waiting: int, others: int) -> int:
    """Return how many go with the next call, of so many who wait and others who are under way or have just landed.

    Many go in two halves that take turns: while the store sees to the one, the callers of the other go on.
    """
    return min(max(-(-(waiting + others) // 2), _FEW), MAX_BATCH)


def board(
    waiting: deque[Asked], most: int, deadline: float, too_old: float
) -> tuple[list[Asked], list[Asked]]:
    """Take out, in order, who goes with the next call, but for those whose callers have gone.

    Their time runs from here: for what waits for others of this process the store is not to blame. Of those who have
    waited for too long, whatever the store has to hear goes all the same, and the others are the second list: nothing
    was sent for them.

    Args:
        waiting: who waits.
        most: how many callers go; renewals go with them.
        deadline: by which there has to be an answer.
        too_old: whoever had a deadline before this has waited for too long.
    """
    flight: list[Asked] = []
    late: list[Asked] = []
    keys = callers = 0
    while waiting and callers < most and len(flight) < MAX_BATCH and keys < MAX_KEYS:
        asked = waiting.popleft()
        if asked.answer.done():
            continue
        if asked.deadline < too_old and not asked.kept:
            late.append(asked)
            continue
        asked.sent = True
        asked.deadline = deadline
        keys += len(asked.message.keys)
        callers += asked.message.verb != "renew"
        flight.append(asked)
    return flight, late


def unanswered(*queues: Iterable[Asked]) -> Iterator[Asked]:
    """Who has no answer yet, in order."""
    return (asked for queue in queues for asked in queue if not asked.answer.done())


class Again(str):
    """The answer to a message that was sent more than once: it may be that of its second copy."""

    __slots__ = ()


class Watch:
    """Sees to it that nobody waits for longer than a deadline.

    Time for which the application blocks the loop does not count: it was not the store that took so long. What
    counts of a turn is half a timeout, and a little more: a few turns of any length find the deadline over.

    Args:
        loop: the loop of the callers.
        timeout: seconds.
        oldest: who has waited the longest, or None.
        give_up: called when that one has waited too long.

    Attributes:
        on: whether it is watching; it ends by itself when nobody waits any more.
        patient: whether a connection is being made, which takes many turns of the loop: then no lateness counts, and
            of a turn that is late half the time between two looks.
    """

    __slots__ = (
        "_blocked",
        "_context",
        "_due",
        "_give_up",
        "_loop",
        "_oldest",
        "_timeout",
        "_timer",
        "on",
        "patient",
    )

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
        self._context = Context()  # none of a caller's, which the timer would keep
        self._due = 0.0
        self._blocked = 0.0
        self.on = False
        self.patient = False

    def deadline(self) -> float:
        """The deadline of a message that comes now."""
        return self._loop.time() - self._blocked + self._timeout

    def reached(self) -> float:
        """The deadline that is over by now."""
        now = self._loop.time()
        late = max(now - self._due, 0.0) if self.on else 0.0  # which nobody has looked at yet
        return now - self._blocked - max(late - self._timeout * _SLOW, 0.0)

    def begin(self) -> None:
        """Watch from now on, if nobody does."""
        if not self.on:
            self.on = True
            self._look_in(self._timeout)

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self.on = False

    def _look_in(self, seconds: float) -> None:
        look = self._timeout / _LOOKS
        self._due = self._loop.time() + (look if self.patient else min(seconds, look))
        self._timer = self._loop.call_at(self._due, self._look, context=self._context)

    def _look(self) -> None:
        now = self._loop.time()
        late = max(now - self._due, 0.0)
        if self.patient:
            self._blocked += late + min(late, self._timeout / _LOOKS / 2)
        else:
            self._blocked += max(late - self._timeout * _SLOW, 0.0)
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
            self._wait(asked, 0, now + self._timeout * _SLOW)

    def _wait(self, asked: Asked, turns: int, over: float) -> None:
        """An answer that is there already wins over a deadline that has passed."""
        most = _TURNS if self.patient or self._loop.time() < over else _LEAST_TURNS
        if asked.answer.done():
            self._see(self._loop.time())
        elif turns < most:
            self._timer = self._loop.call_soon(
                self._wait, asked, turns + 1, over, context=self._context
            )
        else:
            self.on = False
            self._give_up()


class Gate:
    """Lets on board who waits, and turns away who has waited for so long that somebody else had better decide.

    The store is well then, and has no time for all. How long they wait goes by the progress of the loop, as every
    deadline does: what the application blocks does not count.

    Args:
        watch: knows what time it is.
        timeout: seconds that a deadline is away when a message comes.
        wait: seconds within which it has to be on board.
    """

    def __init__(self, watch: Watch, timeout: float, wait: float) -> None:
        self._watch = watch
        self._rest = wait - timeout
        self._wait = wait
        self._crowded = False

    def board(self, waiting: deque[Asked], others: int) -> list[Asked]:
        """Take out who goes with the next call.

        Args:
            waiting: who waits.
            others: how many are under way, or have just landed and may ask again.
        """
        most = share_of(len(waiting), others)
        too_old = self._watch.reached() - self._rest
        flight, late = board(waiting, most, self._watch.deadline(), too_old)
        if late and not self._crowded:
            logger.warning(
                "the store cannot keep up with this process: what was not sent within %g s is decided without it",
                self._wait,
                extra=about("store_crowded", seconds=self._wait),
            )
        self._crowded = bool(late)
        for asked in late:
            error = Outage(f"not sent within {self._wait:g} s", sent=asked.again)
            asked.answer.set_exception(error)
            asked.answer.exception()  # its caller may have been collected: then it is nobody's
        return flight
