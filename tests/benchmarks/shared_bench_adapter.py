r"""earmark's adapter for a side-by-side benchmark of rate-limit libraries that takes plug-ins.

Run it from the root, after `make bench` has made the environments, with the folder of `bench.py` on PYTHONPATH:

    PYTHONPATH=FOLDER BENCH_PY_LITELLM=$PWD/.venv/litellm/bin/python BENCH_OUT=$PWD/build/bench \
        .venv/bench/bin/python tests/benchmarks/shared_bench_adapter.py --quick --only earmark

`--only` may be given several times, and the floors are always measured. What has no place in that environment, as
token-throttle before Python 3.12, is named as failed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import bench

from earmark import (
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    RedisBackend,
    Reservation,
    Scope,
)


@bench.register
class Earmark(bench.Adapter):
    """One lifecycle is a pre_commit of one request and its tokens, then a settle_success."""

    name = "earmark"
    refund = "yes"
    settles = "refund"
    lifecycle = "pre_commit(rpm and tpm) + settle_success"

    async def open(self, backend: str, rpm: int | None, tpm: int | None, url: str) -> None:
        if backend == "memory":
            self.limiter = Limiter(MemoryBackend())
        else:
            self.limiter = Limiter(RedisBackend.from_url(url, timeout=10, on_outage="closed"))
        limits = Limits(rpm=rpm, tpm=tpm)

        # A gateway has the scopes of its busy tenants at hand, as it has their keys.
        @lru_cache(maxsize=16_384)
        def scope(key: str) -> Scope:
            return Scope(key, limits)

        self.scope = scope

    async def check(self, key: str) -> bool:
        try:
            reservation = await self.limiter.pre_commit(self.scope(key))
        except RateLimited:
            return False
        await reservation.close_reserved_only()
        return True

    async def reserve(self, key: str, tokens: int) -> Reservation | None:
        try:
            return await self.limiter.pre_commit(self.scope(key), tokens=tokens)
        except RateLimited:
            return None

    async def settle(self, key: str, handle: Any, actual: int) -> None:
        await self.limiter.settle_success(handle, actual)

    async def close(self) -> None:
        await self.limiter.aclose()


if __name__ == "__main__":
    bench.main()
