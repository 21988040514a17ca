"""token-throttle: acquires capacity of several quotas, and refunds what was not used."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from tests.benchmarks.libraries.base import CONNECTIONS, DAY, Library


class TokenThrottleLibrary(Library):
    """A key is what it calls a model."""

    name = "token-throttle"
    package = "token-throttle"
    environment = "bench-newer"
    calls = "acquire_capacity, refund_capacity"
    keys = 2_000

    async def open(self) -> None:
        module = import_module("token_throttle")
        amounts = {"requests": self.requests, "tokens": self.tokens}
        self._metrics = [metric for metric, amount in amounts.items() if amount is not None]
        quotas = module.UsageQuotas(
            [
                module.Quota(metric=metric, limit=amounts[metric], per_seconds=DAY)
                for metric in self._metrics
            ]
        )
        self._client: Any = None
        if self.url is None:
            backend = module.MemoryBackendBuilder()
        else:
            import redis.asyncio

            self._client = redis.asyncio.from_url(self.url, max_connections=CONNECTIONS)
            backend = module.RedisBackendBuilder(self._client, key_prefix="bench")

        @cache
        def configuration(model: str) -> Any:
            return module.PerModelConfig(quotas=quotas, model_family=model)

        self._limiter = module.RateLimiter(
            configuration,
            backend=backend,
            max_model_families=2**20,
            max_aliases=2**20,
            max_in_flight_reservations=2**20,
            close_drain_timeout_seconds=0.1,
        )

    def _usage(self, tokens: int) -> dict[str, int]:
        usage = {"requests": 1, "tokens": tokens}
        return {metric: usage[metric] for metric in self._metrics}

    async def reserve(self, key: str, tokens: int) -> Any:
        model = key.replace(":", ".")  # it takes no colons
        try:
            return await self._limiter.acquire_capacity(self._usage(tokens), model, timeout=0)
        except TimeoutError as error:
            if "lock" in str(error).lower():  # it could not decide, which is no refusal
                raise RuntimeError(str(error)) from error
            return None

    async def settle(self, hold: Any, tokens: int) -> None:
        await self._limiter.refund_capacity(self._usage(tokens), hold)

    async def aclose(self) -> None:
        await self._limiter.aclose()
        if self._client is not None:
            await self._client.aclose()
