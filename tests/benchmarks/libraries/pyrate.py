"""PyrateLimiter: token buckets, which are the least that it keeps of a key; one limiter for each limit."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from tests.benchmarks.libraries.base import CONNECTIONS, Library


class PyrateLibrary(Library):
    """It cannot give anything back."""

    name = "PyrateLimiter"
    package = "pyrate-limiter"
    settles = "nothing"
    calls = "try_acquire_async, try_acquire_async"

    async def open(self) -> None:
        self._module = import_module("pyrate_limiter")
        self._client: Any = None
        if self.url is not None:
            import redis.asyncio

            self._client = redis.asyncio.from_url(self.url, max_connections=CONNECTIONS)
        self._requests = self._limiter("requests", self.requests)
        self._tokens = self._limiter("tokens", self.tokens) if self.tokens else None

    def _limiter(self, metric: str, amount: int) -> Any:
        module, client = self._module, self._client
        rates = [module.Rate(amount, module.Duration.DAY)]

        class Factory(module.BucketFactory):  # type: ignore[misc, name-defined]
            """A bucket for each key, made when it is first asked for."""

            def __init__(self) -> None:
                self._buckets: dict[str, Any] = {}

            def wrap_item(self, name: str, weight: int = 1) -> Any:
                return module.RateItem(name, time.time_ns() // 1_000_000, weight=weight)

            def get(self, item: Any) -> Any:
                bucket = self._buckets.get(item.name)
                if bucket is None:
                    bucket = self._buckets[item.name] = self._bucket(item.name)
                return bucket

            def _bucket(self, key: str) -> Any:
                store = None
                if client is not None:
                    store = module.RedisStateStore(client, f"{metric}:{key}")
                return module.StateBucket(rates, module.TokenBucket(), store, module.WallClock())

        return module.Limiter(Factory())

    async def reserve(self, key: str, tokens: int) -> Any:
        if not await self._requests.try_acquire_async(key, blocking=False):
            return None
        if self._tokens and not await self._tokens.try_acquire_async(key, tokens, blocking=False):
            return None
        return key

    async def aclose(self) -> None:
        self._requests.close()
        if self._tokens:
            self._tokens.close()
        if self._client is not None:
            await self._client.aclose()
