"""earmark itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from earmark import Limiter, Limits, MemoryBackend, RateLimited, RedisBackend, Scope
from tests.benchmarks.libraries.base import Library


class Own(Library):
    """Reserve and settle."""

    name = "earmark"
    package = "earmark"
    calls = "pre_commit, settle_success"

    async def open(self) -> None:
        if self.url is None:
            backend: Any = MemoryBackend()
        else:
            backend = RedisBackend.from_url(self.url, timeout=10, on_outage="closed")
        self._limiter = Limiter(backend)
        limits = Limits(rpd=self.requests, tpd=self.tokens)

        # A gateway has the scopes of its busy tenants at hand, as it has their keys.
        @lru_cache(maxsize=16_384)
        def scope(key: str) -> Scope:
            return Scope(key, limits)

        self._scope = scope

    async def reserve(self, key: str, tokens: int) -> Any:
        try:
            return await self._limiter.pre_commit(self._scope(key), tokens=tokens)
        except RateLimited:
            return None

    async def settle(self, hold: Any, tokens: int) -> None:
        await self._limiter.settle_success(hold, tokens)

    async def aclose(self) -> None:
        await self._limiter.aclose()
