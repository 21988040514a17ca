"""Waiting for room, in order of arrival (R18).

Nothing is held while one waits: the head of a queue asks the store again when its refusal said so, or when this
process has freed room, and everybody else sleeps until the place in front is empty.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import anyio
from anyio.lowlevel import current_token

from earmark.answers import Denial
from earmark.backends.queues import Place, Queues
from earmark.clock import Clock
from earmark.core.hold import Hold
from earmark.core.refusal import refusal
from earmark.limits import MICROSECONDS
from earmark.streams.loops import Loop, current_loop

SLOT_PAUSE: Final = 0.1
"""Seconds after which the head of a queue asks again for a slot, which no clock frees."""

WATCH_PAUSE: Final = 1.0
"""Seconds after which the first of an event loop in a queue looks whether the loops of those before it still run."""


class Waiting:
    """One caller's wait.

    Args:
        queues: where it queues.
        hold: what is asked for.
        ask: asks the store.
        seconds: for how long it waits.
        clock: the backend's injected clock, by whose `sleep` it waits, if it has one.

    Attributes:
        hold: what was asked last.
        denials: why it was refused.
    """

    def __init__(
        self,
        queues: Queues,
        hold: Hold,
        ask: Callable[[Hold], Awaitable[Hold | None]],
        seconds: float,
        clock: Clock | None,
    ) -> None:
        self.hold = hold
        self.denials: tuple[Denial, ...] = ()
        self._queues = queues
        self._ask = ask
        self._sleep: Callable[[float], Awaitable[object]] = getattr(clock, "sleep", anyio.sleep)
        manual = clock is not None and self._sleep is not anyio.sleep
        self._now: Clock = clock if clock is not None and manual else time.monotonic
        self._manual = manual
        self._deadline = self._now() + seconds
        self._loop: Loop | None = current_loop()
        self._woken = anyio.Event()

    async def admitted(self) -> Hold | None:
        """What stands once there was room; None where there was none in time, or never can be."""
        if never_fits(self.hold):
            return await self._ask_once()
        place = self._join()
        try:
            while not self._queues.is_first(place):
                left = self._left()
                if left <= 0:
                    return await self._give_up(place)
                await self._pause(min(left, WATCH_PAUSE) if self._queues.watches(place) else left)
            return await self._ask_until_admitted(place)
        finally:
            self._queues.leave(place)

    def _join(self) -> Place:
        keys = frozenset(scope.key for scope in self.hold.scopes)
        if self._loop is None:
            return self._queues.join(keys, self._wake, hold=self.hold)
        return self._queues.join(keys, self._wake, current_token(), self._loop.runs, hold=self.hold)

    async def _ask_once(self) -> Hold | None:
        standing = await self._ask(self.hold)
        if standing is None:
            self.denials = tuple(refusal(self.hold))
        return standing

    async def _ask_until_admitted(self, place: Place) -> Hold | None:
        """To be the first of the queue is to ask."""
        while True:
            self._woken = anyio.Event()
            self._queues.asks(place)
            standing = await self._ask(self.hold)
            if standing is not None:
                return standing
            self.denials = tuple(refusal(self.hold))
            # The clock of a test may have moved since the store has answered.
            answered = self.hold.at / MICROSECONDS if self._manual else self._now()
            self._queues.refused(place, self.hold, answered, self.denials)
            pause = self._pause_after_refusal(answered)
            if pause is None or self._left() <= 0:
                return None
            if all(denial.retry_after is None for denial in self.denials):
                await self._pause_for_slot(place)
            else:
                await self._pause(min(pause, self._left()))
            self.hold = self.hold.once_more()

    async def _give_up(self, place: Place) -> Hold | None:
        """It never was this caller's turn: what the first of the queue was refused it is refused as well."""
        refused = self._queues.refusal_before(place)
        if refused is None:
            return await self._ask_once()
        first, answered = refused
        if first.judged == self.hold.scopes:
            self.hold.seen, self.hold.at = first.seen, first.at
            self.denials = tuple(refusal(self.hold))
        # What would fit now is behind what does not: the limits that refused that one keep this one waiting.
        self.denials = self.denials or tuple(
            replace(denial, asked=self.hold.asks.get(denial.limit.metric, denial.asked))
            for denial in refusal(first)
        )
        # That was said a while ago, and time is told from now on (R3).
        passed = max(self._now() - answered, 0.0)
        self.denials = tuple(
            replace(
                denial,
                retry_after=_after(denial.retry_after, passed),
                reset_after=_after(denial.reset_after, passed),
            )
            for denial in self.denials
        )
        return None

    def _pause_after_refusal(self, answered: float) -> float | None:
        """Seconds until asking again may help, after what was answered then; None: never."""
        if not all(denial.retryable for denial in self.denials):
            return None
        waits = [one.retry_after for one in self.denials if one.retry_after is not None]
        if not waits:
            return SLOT_PAUSE
        return max(waits) + answered - self._now()

    def _left(self) -> float:
        return self._deadline - self._now()

    async def _pause_for_slot(self, place: Place) -> None:
        """Sleep until somebody here has freed a slot, or it is this caller's turn to see whether another one has."""
        keys = {denial.key for denial in self.denials}
        refused = self._now()
        while not place.news and self._left() > 0:
            mine = self._queues.polls(place, keys)
            due = refused + (SLOT_PAUSE if mine else WATCH_PAUSE)
            if self._now() < due:
                await self._pause(min(due - self._now(), self._left()))
                continue
            refused = self._now()
            self._queues.freed(mine)

    async def _pause(self, seconds: float) -> None:
        """Sleep until it is time, or somebody wakes this caller."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._alarm, seconds)
            await self._woken.wait()
            group.cancel_scope.cancel()
        self._woken = anyio.Event()

    async def _alarm(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._woken.set()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.hand_over(self._woken_here)

    def _woken_here(self) -> None:
        self._woken.set()


def _after(seconds: float | None, passed: float) -> float | None:
    """What is left of a time after some of it; what is over still takes a moment, until somebody has asked again."""
    if seconds is None:
        return None
    return max(round((seconds - passed) * MICROSECONDS), 1) / MICROSECONDS


def never_fits(hold: Hold) -> bool:
    """Whether a limit could never hold what is asked of it (R3)."""
    return any(
        max(ask, 1) > limit.capacity
        for scope in hold.scopes
        if scope.enforce
        for limit in scope.limits
        if (ask := hold.asks.get(limit.metric, limit.unasked)) is not None
    )
