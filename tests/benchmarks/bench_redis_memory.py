"""What a scope, an open reservation, a slot and an addition cost a Redis server in memory, on one that this starts.

    python -m tests.benchmarks.bench_redis_memory

Each figure is the growth of `used_memory` over so many of them, the server's own tables included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from tests.servers import RedisServer, redis_server

TIMES: Final = 10_000
TOGETHER: Final = 100
KEYS: Final = 1_000  # with open reservations

KEY: Final = Limits(rpm=60, tpm=90_000)
KEY_WITH_SLOTS: Final = Limits(rpm=60, tpm=90_000, concurrency=60)
MODEL: Final = Scope("model:gpt-4o", Limits(tpm=2_000_000, rpm=1_000_000))

Work = Callable[[int], Awaitable[object]]


def once_each(limiter: Limiter) -> Work:
    """A key that nobody has used before is used once."""

    async def work(number: int) -> None:
        scope = Scope(f"api_key:{number:08}", KEY)
        async with await limiter.pre_commit(scope, tokens=500) as reservation:
            await reservation.settle_success(320)

    return work


def left_open(limiter: Limiter, limits: Limits, *, named: bool, kept: list[Reservation]) -> Work:
    """A reservation over one of some keys and a model is left open."""

    async def work(number: int) -> None:
        scope = Scope(f"api_key:{number % KEYS:08}", limits)
        request_id = f"req_{number:028}" if named else None
        kept.append(await limiter.pre_commit(scope, MODEL, tokens=50, request_id=request_id))

    return work


def added(limiter: Limiter) -> Work:
    """Tokens are added to one of some keys."""

    async def work(number: int) -> None:
        await limiter.add_tokens_post_stream(Scope(f"api_key:{number % KEYS:08}", KEY), 7)

    return work


async def repeat(work: Work, first: int, times: int) -> None:
    """Do it so many times, some at once."""
    for start in range(first, first + times, TOGETHER):
        await asyncio.gather(*(work(number) for number in range(start, start + TOGETHER)))


def used(server: RedisServer) -> int:
    """The server's memory, in bytes."""
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


async def bytes_per(work: Callable[[Limiter], Work], kept: list[Reservation]) -> float:
    """What one more costs, on a server of its own, on which the scopes of open reservations are there already."""
    with redis_server(
        "--slowlog-log-slower-than", "-1"
    ) as server:  # what is slow here is remembered at length
        backend = RedisBackend.from_url(server.url, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:
            do = work(limiter)
            await repeat(do, 0, KEYS)
            before = used(server)
            await repeat(do, KEYS, TIMES)
            grown = used(server) - before
            await asyncio.gather(*(reservation.close_reserved_only() for reservation in kept))
    return grown / TIMES


async def per_scope() -> float:
    """Bytes for each scope with two limits that has been used."""
    return await bytes_per(once_each, [])


async def per_reservation(limits: Limits = KEY, *, named: bool = False) -> float:
    """Bytes for each open reservation over two scopes."""
    kept: list[Reservation] = []  # one that is let go of is abandoned
    return await bytes_per(lambda limiter: left_open(limiter, limits, named=named, kept=kept), kept)


async def main() -> None:
    print(f"a scope with rpm and tpm:               {await per_scope():4.0f} bytes")
    print(f"an open reservation over two of these:  {await per_reservation():4.0f} bytes")
    print(f"with a request id of 32 characters:     {await per_reservation(named=True):4.0f} bytes")
    print(
        f"with a slot:                            {await per_reservation(KEY_WITH_SLOTS):4.0f} bytes"
    )
    print(f"an addition:                            {await bytes_per(added, []):4.0f} bytes")


if __name__ == "__main__":
    asyncio.run(main())
