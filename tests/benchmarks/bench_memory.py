"""What a lifecycle, a refusal and a key cost in memory, as ratios in one run.

    python tests/benchmarks/bench_memory.py

Where the package `limits` is installed, its asynchronous memory storage does the same work beside it: one
request and 500 tokens taken under two limits, 180 tokens given back. Each figure is the best of many short
rounds, in turn, so that noise hits everybody alike.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import time
import tracemalloc
from collections.abc import Awaitable, Callable

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Scope

ROUNDS = 30
TIMES = 2_000
PLENTY = 10**9

Work = Callable[[int], Awaitable[object]]


def lifecycle(limits: Limits, keys: int) -> Work:
    """One pre_commit and one settle_success, over so many keys in turn."""
    limiter = Limiter(MemoryBackend())
    scopes = [Scope(f"tenant:{number:06}", limits) for number in range(keys)]

    async def work(number: int) -> None:
        reservation = await limiter.pre_commit(scopes[number % keys], tokens=500)
        await limiter.settle_success(reservation, 320)

    return work


def refusal() -> Work:
    """One pre_commit that a full limit refuses."""
    limiter = Limiter(MemoryBackend())
    scope = Scope("tenant", Limits(rpm=0))

    async def work(_: int) -> None:
        try:
            await limiter.pre_commit(scope)
        except RateLimited:
            return

    return work


def limits_lifecycle() -> Work:
    """The same work with the package `limits`."""
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(MemoryStorage())
    requests, tokens = RateLimitItemPerMinute(PLENTY), RateLimitItemPerMinute(PLENTY)

    async def work(_: int) -> None:
        if await limiter.hit(requests, "r", "tenant") and await limiter.hit(
            tokens, "t", "tenant", cost=500
        ):
            await limiter.hit(tokens, "t", "tenant", cost=-180)

    return work


def limits_refusal() -> Work:
    """The same refusal with the package `limits`."""
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(MemoryStorage())
    limit = RateLimitItemPerMinute(1)

    async def work(_: int) -> None:
        await limiter.hit(limit, "r", "tenant")

    return work


async def best(works: dict[str, Work]) -> dict[str, float]:
    """Microseconds per call of each, the best round of many."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.perf_counter()
            for number in range(TIMES):
                await work(number)
            found[name] = min(found[name], (time.perf_counter() - start) / TIMES * 1e6)
    return found


async def bytes_per_key(keys: int) -> float:
    """What the store keeps of a key after a lifecycle, its string included."""
    limiter = Limiter(MemoryBackend())
    limits = Limits(rpm=PLENTY, tpm=PLENTY)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(keys):
        reservation = await limiter.pre_commit(Scope(f"tenant:{number:08}", limits), tokens=500)
        await reservation.settle_success(320)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / keys


async def main() -> None:
    two = Limits(rpm=PLENTY, tpm=PLENTY)
    eight = Limits(
        rpm=PLENTY,
        tpm=PLENTY,
        also=[Limit("tokens", PLENTY, 60 + more) for more in range(1, 7)],
    )
    works = {
        "lifecycle, 2 limits, 10 keys": lifecycle(two, 10),
        "lifecycle, 2 limits, 100,000 keys": lifecycle(two, 100_000),
        "lifecycle, 8 limits, 10 keys": lifecycle(eight, 10),
        "refusal": refusal(),
    }
    beside = importlib.util.find_spec("limits") is not None
    if beside:
        works["limits: lifecycle"] = limits_lifecycle()
        works["limits: refusal"] = limits_refusal()
    found = await best(works)
    for name, microseconds in found.items():
        print(f"{name:36} {microseconds:8.2f} us")
    ten = found["lifecycle, 2 limits, 10 keys"]
    print(f"100,000 keys against 10: {found['lifecycle, 2 limits, 100,000 keys'] / ten:.2f}")
    print(f"8 limits against 2:      {found['lifecycle, 8 limits, 10 keys'] / ten:.2f}")
    if beside:
        print(f"lifecycle against limits: {ten / found['limits: lifecycle']:.2f}")
        print(f"refusal against limits:   {found['refusal'] / found['limits: refusal']:.2f}")
    print(f"bytes per key: {await bytes_per_key(100_000):.0f}")


if __name__ == "__main__":
    asyncio.run(main())
