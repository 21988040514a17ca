"""Clocks: a clock is a callable that returns seconds since the epoch (R11).

Inside, time is whole microseconds. A reader never steps back: a clock that does stands still until it has
caught up, so that a window that is over stays over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from earmark.limits import MICROSECONDS

Clock = Callable[[], float]


def monotonic_microseconds() -> Callable[[], int]:
    """Return a reader of wall-clock microseconds that is set once, now, and runs monotonically from there."""
    ahead = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns
    return lambda: (monotonic_ns() + ahead) // 1000


def injected_microseconds(clock: Clock) -> Callable[[], int]:
    """Return a reader of an injected clock: whole microseconds, never stepping back.

    It is called under the lock of the backend that owns it.
    """
    latest = 0

    def read() -> int:
        nonlocal latest
        latest = max(latest, round(clock() * MICROSECONDS))
        return latest

    return read
