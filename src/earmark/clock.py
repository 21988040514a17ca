"""Clocks: a clock is a callable that returns seconds since the epoch (R11).

Inside, time is whole microseconds. A reader never steps back: a clock that does stands still until it has
caught up, so that a window that is over stays over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from earmark.limits import MICROSECONDS

Clock = Callable[[], float]
"""Returns seconds since the epoch, as `time.time` does."""


class Reading(NamedTuple):
    """How a backend reads its clock: the time in microseconds is `nanoseconds() // 1000 + ahead`.

    Two parts, since the commonest clock is one of the interpreter's own functions, and one more call per
    message would be felt.
    """

    nanoseconds: Callable[[], int]
    ahead: int


def wall_clock() -> Reading:
    """Return the wall clock as it stands now, running monotonically from here."""
    return Reading(time.monotonic_ns, (time.time_ns() - time.monotonic_ns()) // 1000)


def injected(clock: Clock) -> Reading:
    """Return the reading of an injected clock: whole microseconds, never stepping back.

    It is read under the lock of the backend that owns it.
    """
    latest = 0

    def read() -> int:
        nonlocal latest
        latest = max(latest, round(clock() * MICROSECONDS))
        return latest * 1000

    return Reading(read, 0)


def locked(reading: Reading) -> Reading:
    """Return the same reading for threads that share it without a lock of their own."""
    lock = threading.Lock()

    def nanoseconds() -> int:
        with lock:
            return reading.nanoseconds()

    return Reading(nanoseconds, reading.ahead)
