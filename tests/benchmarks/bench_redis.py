"""What a lifecycle costs through Redis, as ratios in one run, on a redis-server that this starts.

    python -m tests.benchmarks.bench_redis

Beside it runs the floor of any design with two round trips: two bare EVALSHA of a script of ten lines through
redis-py's client, which judges and writes the same two limits, without reservations. The rounds alternate, so that
noise hits both alike; of each the best round counts.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis.asyncio

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from tests.servers import RedisServer, redis_server

PLENTY: Final = 10**9
ROUNDS: Final = 7
TIMES: Final = 1_000
CALLERS: Final = 200

RESERVE: Final = """
local now = tonumber(redis.call('TIME')[1])
local key = KEYS[1] .. ':' .. (now - now % 60)
local counts = redis.call('HMGET', key, 'requests', 'tokens')
local requests, tokens = tonumber(counts[1] or 0) + 1, tonumber(counts[2] or 0) + tonumber(ARGV[3])
if requests > tonumber(ARGV[1]) or tokens > tonumber(ARGV[2]) then
  return {0, key}
end
redis.call('HSET', key, 'requests', requests, 'tokens', tokens)
redis.call('EXPIRE', key, 120)
return {1, key}
"""
SETTLE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'tokens', ARGV[1])
end
return 1
"""

Work = Callable[[int], Awaitable[object]]


async def bare(url: str) -> tuple[Work, Any]:
    """The floor."""
    client: Any = redis.asyncio.from_url(url, max_connections=256)
    reserve = await client.script_load(RESERVE)
    settle = await client.script_load(SETTLE)

    async def work(number: int) -> None:
        _, key = await client.evalsha(reserve, 1, f"bare:{number}", PLENTY, PLENTY, 500)
        await client.evalsha(settle, 1, key, -180)

    return work, client


def lifecycle(limiter: Limiter) -> Work:
    """One pre_commit and one settle_success."""
    limits = Limits(rpm=PLENTY, tpm=PLENTY)
    scopes = [Scope(f"tenant:{number}", limits) for number in range(CALLERS)]

    async def work(number: int) -> None:
        reservation = await limiter.pre_commit(scopes[number % CALLERS], tokens=500)
        await reservation.settle_success(320)

    return work


async def one_caller(work: Work) -> float:
    """Microseconds per lifecycle of one caller."""
    start = time.perf_counter()
    for _ in range(TIMES):
        await work(0)
    return (time.perf_counter() - start) / TIMES * 1e6


async def many_callers(work: Work) -> float:
    """Microseconds per lifecycle where many callers run at once, each on its own key."""

    async def caller(number: int) -> None:
        for _ in range(TIMES // 50):
            await work(number)

    start = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return (time.perf_counter() - start) / (CALLERS * (TIMES // 50)) * 1e6


async def best(
    measure: Callable[[Work], Awaitable[float]], works: dict[str, Work]
) -> dict[str, float]:
    """The best round of each, in turn."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            found[name] = min(found[name], await measure(work))
    return found


def processor_seconds(server: RedisServer) -> float:
    """What the server has used of its processor."""
    with server.client() as client:
        told = client.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


async def server_cost(work: Work, server: RedisServer) -> float:
    """Microseconds of the server's processor per lifecycle under many callers."""
    before = processor_seconds(server)
    await many_callers(work)
    return (processor_seconds(server) - before) / (CALLERS * (TIMES // 50)) * 1e6


async def against_open(limiter: Limiter, work: Work, many: int) -> dict[str, float]:
    """What a lifecycle of one caller costs with few and with many open reservations."""
    scope = Scope("held", Limits(rpm=PLENTY, tpm=PLENTY, concurrency=PLENTY))
    held: list[Reservation] = []
    found: dict[str, float] = {}
    for count in (10, many):
        while len(held) < count:
            held += await asyncio.gather(*(limiter.pre_commit(scope) for _ in range(10)))
        found[f"{count:,} open"] = (await best(one_caller, {"one": work}))["one"]
    await asyncio.gather(*(reservation.cancel() for reservation in held))
    return found


async def main(*, unix: bool) -> None:
    with redis_server("--unixsocket", "redis.sock") as server:
        url = f"unix://{server.folder}/redis.sock" if unix else server.url
        floor, client = await bare(url)
        async with Limiter(RedisBackend.from_url(url, timeout=10)) as limiter:
            works = {"bare": floor, "earmark": lifecycle(limiter)}
            for work in works.values():
                await many_callers(work)
            one = await best(one_caller, works)
            many = await best(many_callers, works)
            server_us = {name: await server_cost(work, server) for name, work in works.items()}
            few = await against_open(limiter, works["earmark"], 10_000)
        await client.aclose()
    for title, found in (("one caller", one), (f"{CALLERS} callers", many), ("server", server_us)):
        for name, microseconds in found.items():
            print(f"{title:12} {name:10} {microseconds:9.1f} us a lifecycle")
    print(f"one caller: {one['earmark'] / one['bare']:.2f} of the floor")
    print(
        f"{CALLERS} callers: {many['bare'] / many['earmark']:.2f} times as many lifecycles as the floor"
    )
    print(f"the server's processor: {server_us['earmark'] / server_us['bare']:.2f} of the floor")
    print(f"10,000 open reservations against 10: {few['10,000 open'] / few['10 open']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unix", action="store_true", help="through a unix socket")
    parser.add_argument("--uvloop", action="store_true", help="on uvloop")
    options = parser.parse_args()
    if options.uvloop:
        uvloop = importlib.import_module("uvloop")
        uvloop.run(main(unix=options.unix))
    else:
        asyncio.run(main(unix=options.unix))
