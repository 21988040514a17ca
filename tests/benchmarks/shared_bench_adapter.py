"""earmark's adapter for a side-by-side benchmark of rate-limit libraries that takes plug-ins.

Run it with the folder of `bench.py` on PYTHONPATH: `python shared_bench_adapter.py --quick --only earmark`.
"""

from __future__ import annotations

from typing import Any

import bench

from earmark import Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope


@bench.register
class Earmark(bench.Adapter):
    """One lifecycle is a pre_commit of one request and its tokens, then a settle_success."""

    name = "earmark"
    redis = False
    refund = "yes"
    settles = "refund"
    lifecycle = "pre_commit(rpm and tpm) + settle_success"

    async def open(self, backend: str, rpm: int | None, tpm: int | None, url: str) -> None:
        self.limiter = Limiter(MemoryBackend())
        self.limits = Limits(rpm=rpm, tpm=tpm)

    async def check(self, key: str) -> bool:
        try:
            reservation = await self.limiter.pre_commit(Scope(key, self.limits))
        except RateLimited:
            return False
        await reservation.close_reserved_only()
        return True

    async def reserve(self, key: str, tokens: int) -> Reservation | None:
        try:
            return await self.limiter.pre_commit(Scope(key, self.limits), tokens=tokens)
        except RateLimited:
            return None

    async def settle(self, key: str, handle: Any, actual: int) -> None:
        await self.limiter.settle_success(handle, actual)

    async def close(self) -> None:
        await self.limiter.aclose()


if __name__ == "__main__":
    bench.main()
