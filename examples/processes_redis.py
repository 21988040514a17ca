"""Four processes share one limit: all of them together are admitted as often as it says, and not once more.

python examples/processes_redis.py redis://localhost:6379
"""

import asyncio
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from earmark import Limiter, Limits, RateLimited, RedisBackend, Scope

ALLOWED = 50
PROCESSES = 4
REQUESTS = 25  # of each process

model = Scope("model:gpt-4o", Limits(rpd=ALLOWED, tpd=1_000_000, algorithm="sliding_window"))


async def ask(url: str) -> int:
    """Ask so many times; returns how many requests were admitted."""
    admitted = 0
    async with Limiter(RedisBackend.from_url(url, on_outage="closed")) as limiter:
        for _ in range(REQUESTS):
            try:
                async with await limiter.pre_commit(model, tokens=1_200) as reservation:
                    await reservation.settle_success(1_050)
            except RateLimited:
                continue
            admitted += 1
    return admitted


def work(url: str) -> int:
    """What each process does."""
    return asyncio.run(ask(url))


async def main(url: str) -> None:
    async with Limiter(RedisBackend.from_url(url)) as limiter:
        await limiter.reset(model)
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            admitted = list(pool.map(work, [url] * PROCESSES))
        (status,) = await limiter.peek(model)
    print(f"admitted {admitted}: {sum(admitted)} of {PROCESSES * REQUESTS}")
    print(f"{status['requests'].used} requests and {status['tokens'].used:,} tokens are counted")
    if not sum(admitted) == status["requests"].used == ALLOWED:
        sys.exit("not as expected")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379"))
