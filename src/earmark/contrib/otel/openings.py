"""The reservations of a process that are open, as far as its observer has heard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final

from earmark.events import Event
from earmark.limits import HOUR

_BOUNDS: Final = (1, 10, 60, 600)
AGES: Final = ("0-1s", "1-10s", "10-60s", "1-10min", "10min-")
"""The ages that are told apart, as they are called."""

# A reservation is given up an hour after its last renewal, and of what another process resolves nobody hears here.
_KEEP: Final = HOUR
MOST: Final = 50_000
"""How many are known at a time."""


class Openings:
    """Open reservations by name; the oldest are left out where there are too many, or after an hour.

    Args:
        clock: seconds since the epoch, as in events.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[
            str, tuple[float, Mapping[str, int]]
        ] = {}  # in the order of their beginning
        # Threads tell of events, another one collects; a finaliser may come in between.
        self._lock = threading.RLock()

    def begin(self, event: Event) -> None:
        """One was admitted."""
        if event.request_id is None:
            return
        with self._lock:
            self._forget(event.time)
            self._open.pop(event.request_id, None)
            self._open[event.request_id] = (event.time, event.asked)
            if len(self._open) > MOST:
                del self._open[next(iter(self._open))]

    def end(self, event: Event) -> None:
        """One is over; one that was admitted elsewhere is unknown."""
        if event.request_id is not None:
            with self._lock:
                self._open.pop(event.request_id, None)

    def held(self) -> dict[str, int]:
        """Units by metric."""
        sums: dict[str, int] = {}
        for _, asked in self._standing(self._clock()):
            for metric, amount in asked.items():
                sums[metric] = sums.get(metric, 0) + amount
        return sums

    def ages(self) -> list[int]:
        """How many there are of each of `AGES`."""
        now = self._clock()
        counts = [0] * len(AGES)
        for began, _ in self._standing(now):
            counts[sum(now - began >= bound for bound in _BOUNDS)] += 1
        return counts

    def _standing(self, now: float) -> list[tuple[float, Mapping[str, int]]]:
        with self._lock:
            self._forget(now)
            return list(self._open.values())

    def _forget(self, now: float) -> None:
        """Leave out what nobody can resolve any more."""
        stale = takewhile(lambda name: now - self._open[name][0] >= _KEEP, self._open)
        for name in list(stale):
            del self._open[name]
