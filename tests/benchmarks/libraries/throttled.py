"""throttled-py: fixed windows, each limit an object of its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.benchmarks.libraries.base import CONNECTIONS, Library


class ThrottledLibrary(Library):
    """It cannot give anything back: its costs are not negative."""

    name = "throttled-py"
    package = "throttled-py"
    settles = "nothing"
    calls = "limit, limit"

    async def open(self) -> None:
        throttled = import_module("throttled.asyncio")
        if self.url is None:
            store = throttled.MemoryStore(options={"MAX_SIZE": 2**20})  # by default it drops keys
        else:
            options = {"CONNECTION_POOL_KWARGS": {"max_connections": CONNECTIONS}}
            store = throttled.RedisStore(server=self.url, options=options)

        def limiter(amount: int) -> Any:
            quota = throttled.per_day(amount)
            return throttled.Throttled(using="fixed_window", quota=quota, store=store)

        self._requests = limiter(self.requests)
        self._tokens = limiter(self.tokens) if self.tokens else None

    async def reserve(self, key: str, tokens: int) -> Any:
        if (await self._requests.limit(f"requests:{key}")).limited:
            return None
        if self._tokens and (await self._tokens.limit(f"tokens:{key}", cost=tokens)).limited:
            return None
        return key
