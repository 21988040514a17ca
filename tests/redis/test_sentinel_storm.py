"""A storm of two processes through a Sentinel, whose masters are killed again and again (B53).

What each caller was told is compared with what the last master says. A failover takes with it what was not replicated:
from the moment at which the replica last had everything until another master is known, what callers were told may be
lost, so that as much is admitted once more. That is the only allowance, and it is what docs/failure.md states.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import redis

from earmark.backends.redis.keys import Keys
from tests.reached import Reached
from tests.scale import examples
from tests.servers import Sentinel, sentinel
from tests.weather import Place, Weather, check, report

pytestmark = pytest.mark.anyio

SECONDS: Final = min(max(examples(4), 3), 60)
FAILOVERS: Final = max(examples(2), 1)
TASKS: Final = 60
PACE: Final = 0.05
ALONE: Final = 0.3  # seconds for which a master is heard by no replica, before it is killed

REACHED: Final = Reached("storm through a Sentinel")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


def now() -> int:
    """Microseconds since the epoch, by the clock of this machine, which is the servers'."""
    return time.time_ns() // 1_000


class Watched(Place):
    """A master that is killed, and comes back as a replica of the one that has its place."""

    def __init__(self, group: Sentinel) -> None:
        super().__init__(f"sentinel {group.port} {group.name}", Keys("earmark"))
        self._group = group
        self._client = group.master.client()
        self._wait = threading.Event()

    def clients(self) -> Sequence[redis.Redis]:
        return [self._client]

    def disturb(self) -> None:
        self._client.close()
        before = now()
        self._group.replicate()
        if not len(self.gaps) % 2:  # else it dies with what is just under way
            self._group.cut()
            self._wait.wait(ALONE)
        self._group.fail_over()
        self.gaps.append((before, now()))
        self._group.rejoin()
        self._client = self._group.master.client()


async def test_a_storm_of_failovers_loses_what_was_not_replicated_and_nothing_else(
    tmp_path: Path,
) -> None:
    """B53, R1, R2, R5, R9, R10, R14, R16: all else is as in a storm without failovers."""
    with sentinel() as group, ExitStack() as stack:
        place = Watched(group)
        weather = Weather(place, tmp_path, tasks=TASKS, pace=PACE)
        stack.callback(weather.end)
        weather.rage(SECONDS, troubles=FAILOVERS, kills=False)
        logs = await check(weather, place, tmp_path)
    assert len(place.gaps) >= FAILOVERS
    REACHED.count("seconds", SECONDS)
    REACHED.count("failovers", len(place.gaps))
    lost = sum(logs.is_lost(told.at, told.at) for told in logs.told.values())
    REACHED.count("reservations that may be lost", lost)
    report(REACHED, weather, logs, "BackendUnavailable")
