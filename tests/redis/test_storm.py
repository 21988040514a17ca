"""Two processes of 200 tasks each, whose callers are cancelled and which are killed, and one server (tests/storm.py).

What each caller was told is compared with what the server says, and what all of them were told with the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import redis

from earmark.backends.redis.keys import Keys
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer, redis_server
from tests.weather import Place, Weather, check, report

pytestmark = pytest.mark.anyio

SECONDS: Final = min(max(examples(10), 6), 60)

REACHED: Final = Reached("storm")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


class OneServer(Place):
    """See above."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(f"server {server.url}", Keys("earmark"))
        self._client = server.client()

    def clients(self) -> Sequence[redis.Redis]:
        return [self._client]


async def test_a_storm_breaks_no_limit_and_no_promise(tmp_path: Path) -> None:
    """R1, R2, R5, R9, R10, R14, R16: no window and no slot too many, each settlement once, nothing left behind."""
    with redis_server() as server, ExitStack() as stack:
        place = OneServer(server)
        weather = Weather(place, tmp_path)
        stack.callback(weather.end)
        weather.rage(SECONDS)
        logs = await check(weather, place, tmp_path)
    assert weather.kills
    REACHED.count("seconds", SECONDS)
    report(REACHED, weather, logs, "windows that were full")
