"""Renewing the reservations of one event loop whose holders are at work, all of them in one message (R10).

A holder that dies takes its loop with it, and the loop this task: its slots are free after one lease. One that was
frozen and wakes late finds that they are, and revives none (C5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from earmark.backends.redis.carrier import Carrier
from earmark.backends.redis.failures import Outage
from earmark.backends.redis.loops import Lasting
from earmark.backends.redis.messages import Messages, limits_slots
from earmark.core.hold import Hold
from earmark.ids import Id
from earmark.limits import MICROSECONDS
from earmark.logs import about

logger = logging.getLogger("earmark.redis")

# A lease is renewed when this part of it has passed; so is the time for which a reservation without slots is kept.
_PART: Final = 1 / 3

# Where the store cannot be reached it is tried again after this part of that time: by then it may be back, and the
# lease not yet over.
_SOON: Final = 1 / 20

# What is due within this part of its period is renewed with what is due now.
_TOGETHER: Final = 1 / 2


# Nearer than a clock can count is now.
_INSTANT: Final = 1 / MICROSECONDS


class _Kept(NamedTuple):
    hold: Hold
    period: float
    due: float
    lapsed: bool = False


class Renewal:
    """See above.

    Args:
        carrier: what carries the messages of the loop by now.
        messages: knows how long a lease lasts.
        renew: asks for a renewal.
        keep_us: microseconds for which a reservation is kept unrenewed.
        now: seconds, by the clock that `sleep` waits by.
        sleep: waits for so many seconds.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, and it is called once
        self,
        carrier: Callable[[], Carrier],
        messages: Messages,
        renew: Callable[[Hold], Awaitable[str]],
        keep_us: int,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._carrier = carrier
        self._messages = messages
        self._ask = renew
        self._keep_us = keep_us
        self._now = now
        self._sleep = sleep
        self._kept: dict[Id, _Kept] = {}
        self._task = Lasting(self._run, "renewal", self._is_due)
        self._wakes = 0.0

    def attend(self, hold: Hold) -> None:
        """Renew a reservation from now on."""
        slots = any(limits_slots(scope) for scope in hold.scopes)
        lasts = self._messages.lease_of(hold) if slots else self._keep_us
        period = lasts * _PART / MICROSECONDS
        due = self._now() + period
        self._kept[hold.id] = _Kept(hold, period, due)
        if not self._task.on or due < self._wakes:
            self._wakes = due
            self._task.begin()

    def _is_due(self) -> bool:
        """Whether anything has to be renewed by now."""
        now = self._now()
        return any(kept.due <= now for kept in self._kept.copy().values())

    def drop(self, hold: Hold) -> None:
        """Renew it no longer. From any thread."""
        self._kept.pop(hold.id, None)

    def close(self) -> None:
        """Renew nothing any more."""
        self._kept.clear()
        self._task.stop()

    async def _run(self) -> None:
        while kept_now := self._kept.copy():  # other threads drop theirs meanwhile
            now = self._now()
            self._wakes = min(kept.due for kept in kept_now.values())
            if self._wakes - now >= _INSTANT:
                await self._sleep(self._wakes - now)
            else:
                await self._renew(kept_now, now)

    async def _renew(self, kept_now: dict[Id, _Kept], now: float) -> None:
        """Renew what is due, and what would be soon."""
        due = [kept for kept in kept_now.values() if kept.due - now <= kept.period * _TOGETHER]
        answers = await asyncio.gather(
            *(self._ask(kept.hold) for kept in due),
            return_exceptions=True,
        )
        for kept, answer in zip(due, answers, strict=True):
            id_ = kept.hold.id
            if answer == "gone":
                self._kept.pop(id_, None)
            elif id_ in self._kept:  # it may have been resolved meanwhile
                lapsed = kept.lapsed or answer == "lapsed"
                due_again = self._now() + kept.period * (_SOON if self._is_unheard(answer) else 1)
                self._kept[id_] = kept._replace(due=due_again, lapsed=lapsed)
                if lapsed and not kept.lapsed:
                    logger.warning(
                        "a reservation was renewed too late: its slots are free, and others may have them",
                        extra=about("lease_lapsed"),
                    )
            if isinstance(answer, Exception) and not self._is_unheard(answer):
                logger.error(
                    "a reservation could not be renewed",
                    exc_info=answer,
                    extra=about("renewal_failed", request_id=kept.hold.name),
                )

    def _is_unheard(self, answer: object) -> bool:
        """Whether the store did not answer; that the line is down, by a mistake even, is logged elsewhere, once."""
        if isinstance(answer, Outage):
            return True
        return isinstance(answer, Exception) and self._carrier().down is not None
