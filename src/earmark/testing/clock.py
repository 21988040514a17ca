"""A clock that stands still until it is told to move."""

from __future__ import annotations

import heapq
import itertools

import anyio
import anyio.lowlevel

from earmark.limits import MAX_WINDOW_US, MICROSECONDS


class ManualClock:
    """A clock for tests: time passes only by `advance` and `set`. It counts whole microseconds.

    Args:
        start: seconds since the epoch at which it starts.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = _microseconds(start)
        self._sleepers: list[tuple[int, int, anyio.Event]] = []
        self._arrivals = itertools.count()

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return self._now / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and wake whoever's time has come, in order.

        Raises:
            ValueError: `seconds` is negative or not finite.
        """
        passed = _microseconds(seconds)
        if passed < 0:
            msg = f"a clock advances by 0 or more seconds, not {seconds!r}; set() can step back"
            raise ValueError(msg)
        self._move(self._now + passed)

    def set(self, seconds: float) -> None:
        """Set the time, back or forth, and wake whoever's time has come.

        Raises:
            ValueError: `seconds` is not finite.
        """
        self._move(_microseconds(seconds))

    async def sleep(self, seconds: float) -> None:
        """Wait, on asyncio or trio, until the clock has moved by `seconds`; 0 or less only yields."""
        until = self._now + _microseconds(seconds)
        if until <= self._now:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        sleeper = (until, next(self._arrivals), event)
        heapq.heappush(self._sleepers, sleeper)
        try:
            await event.wait()
        finally:
            if sleeper in self._sleepers:  # cancelled before its time
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)

    def _move(self, now: int) -> None:
        self._now = now
        while self._sleepers and self._sleepers[0][0] <= now:
            heapq.heappop(self._sleepers)[2].set()

    def __repr__(self) -> str:
        return f"ManualClock({self()!r})"


def _microseconds(seconds: float) -> int:
    if not abs(seconds) < MAX_WINDOW_US / MICROSECONDS:
        msg = f"a clock counts seconds, less than 4.5e9 of them, not {seconds!r}"
        raise ValueError(msg)
    return round(seconds * MICROSECONDS)
