"""The floor: the least that judges and writes two limits, and trues one up, with nothing else around it.

In memory that is a list in a dict. Through Redis it is two bare EVALSHA of scripts of ten lines through redis-py's
client, which is the floor of any design with two round trips.
"""

from __future__ import annotations

import time
from typing import Any, Final

from tests.benchmarks.libraries.base import CONNECTIONS, DAY, PLENTY, Library

RESERVE: Final = """
local now = tonumber(redis.call('TIME')[1])
local key = KEYS[1] .. ':' .. (now - now % 86400)
local counts = redis.call('HMGET', key, 'requests', 'tokens')
local requests, tokens = tonumber(counts[1] or 0) + 1, tonumber(counts[2] or 0) + tonumber(ARGV[3])
if requests > tonumber(ARGV[1]) or tokens > tonumber(ARGV[2]) then
  return {0, key}
end
redis.call('HSET', key, 'requests', requests, 'tokens', tokens)
redis.call('EXPIRE', key, 172800)
return {1, key}
"""
SETTLE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'tokens', ARGV[1])
end
return 1
"""


class Floor(Library):
    """See above. It remembers no reservation: who settles twice is given back twice."""

    name = "floor"
    package = "redis"
    calls = "two updates of a dict; two EVALSHA"

    async def open(self) -> None:
        self._most = PLENTY if self.tokens is None else self.tokens
        self._counts: dict[str, list[int]] = {}
        if self.url is None:
            return
        import redis.asyncio

        self._client: Any = redis.asyncio.from_url(self.url, max_connections=CONNECTIONS)
        self._reserve = await self._client.script_load(RESERVE)
        self._settle = await self._client.script_load(SETTLE)

    async def reserve(self, key: str, tokens: int) -> Any:
        if self.url is not None:
            arguments = (self.requests, self._most, tokens)
            admitted, window = await self._client.evalsha(self._reserve, 1, key, *arguments)
            return (window, tokens) if admitted else None
        window = int(time.time()) // DAY
        counts = self._counts.get(key)
        if counts is None or counts[0] != window:
            counts = self._counts[key] = [window, 0, 0]
        if counts[1] + 1 > self.requests or counts[2] + tokens > self._most:
            return None
        counts[1] += 1
        counts[2] += tokens
        return (key, tokens)

    async def settle(self, hold: Any, tokens: int) -> None:
        if self.url is not None:
            await self._client.evalsha(self._settle, 1, hold[0], tokens - hold[1])
            return
        counts = self._counts.get(hold[0])
        if counts is not None and counts[0] == int(time.time()) // DAY:
            counts[2] += tokens - hold[1]

    async def aclose(self) -> None:
        if self.url is not None:
            await self._client.aclose()
