"""Faults of settlements, windows and retries that such systems had, each named by its case (C17–C29).

Windows are 60 s from t = 0. Each docstring says what the faulty system did.
"""

from __future__ import annotations

import pytest

from earmark import Limiter, MemoryBackend
from tests.rows import key

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


async def test_c22_a_request_is_judged_and_counted_at_one_moment() -> None:
    """C22: the window ended between the look and the count, which then landed below nothing."""
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return reads + 0.25

    limiter = Limiter(MemoryBackend(clock=clock))
    for _ in range(10):
        reservation = await limiter.pre_commit(key(rps=3_000))
        (status,) = reservation.statuses[0].limits
        assert (status.used, status.remaining, status.reset_after) == (1, 2_999, 0.75)
        assert await reservation.close_reserved_only()
