"""The package `limits`: fixed windows, each hit on its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.benchmarks.libraries.base import CONNECTIONS, Library


class LimitsLibrary(Library):
    """It has no reservation. A negative cost gives back, which its documentation does not promise."""

    name = "limits"
    package = "limits"
    settles = "trues up (undocumented: a negative cost)"
    calls = "hit, hit; hit with a negative cost"

    async def open(self) -> None:
        limits, storage = import_module("limits"), import_module("limits.aio.storage")
        strategies = import_module("limits.aio.strategies")
        if self.url is None:
            self._storage = storage.MemoryStorage()
        else:
            self._storage = storage.RedisStorage(
                f"async+{self.url}", implementation="redispy", max_connections=CONNECTIONS
            )
        self._limiter = strategies.FixedWindowRateLimiter(self._storage)
        self._requests = limits.RateLimitItemPerDay(self.requests)
        self._tokens = limits.RateLimitItemPerDay(self.tokens) if self.tokens else None

    async def reserve(self, key: str, tokens: int) -> Any:
        if not await self._limiter.hit(self._requests, "requests", key):
            return None
        if self._tokens and not await self._limiter.hit(self._tokens, "tokens", key, cost=tokens):
            return None
        return key, tokens

    async def settle(self, hold: Any, tokens: int) -> None:
        key, held = hold
        if tokens != held:
            await self._limiter.hit(self._tokens, "tokens", key, cost=tokens - held)

    async def aclose(self) -> None:
        if self.url is not None:
            await self._storage.bridge.storage.aclose()
