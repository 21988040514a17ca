"""What a scope, an open reservation, a slot and an addition cost a Redis server in memory, and a life cycle in a file.

Each figure of memory is the growth of `used_memory` over so many of them, the server's own tables included, its buffers
of clients not. Keys are called `api_key:` and eight digits: a longer name costs what it is longer, in each of the keys
of a scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from tests.benchmarks.figures import Effort, Table, Work
from tests.servers import RedisServer, redis_server

TIMES: Final = 10_000
LEAST: Final = 2_000  # with fewer, what the server lets go of meanwhile shows
TOGETHER: Final = 100
KEYS: Final = 1_000  # with open reservations

KEY: Final = Limits(rpm=60, tpm=90_000)
KEY_OF_A_DAY: Final = Limits(rpm=60, tpm=90_000, rpd=10_000, tpd=5_000_000)
KEY_WITH_SLOTS: Final = Limits(rpm=60, tpm=90_000, concurrency=60)
MODEL: Final = Scope("model:gpt-4o", Limits(tpm=2_000_000, rpm=1_000_000))


def once_each(limiter: Limiter, limits: Limits = KEY) -> Work:
    """A key that nobody has used before is used once."""

    async def work(number: int) -> None:
        scope = Scope(f"api_key:{number:08}", limits)
        async with await limiter.pre_commit(scope, tokens=500) as reservation:
            await reservation.settle_success(320)

    return work


def left_open(
    limiter: Limiter, limits: Limits, *, named: bool, kept: list[Reservation], keys: int = KEYS
) -> Work:
    """A reservation over one of some keys and a model is left open."""

    async def work(number: int) -> None:
        scope = Scope(f"api_key:{number % keys:08}", limits)
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
        end = min(start + TOGETHER, first + times)
        await asyncio.gather(*(work(number) for number in range(start, end)))


def used(server: RedisServer) -> int:
    """The server's memory, in bytes, without its buffers of clients, which grow and shrink as they like."""
    with server.client() as client:
        told: dict[str, int] = client.info("memory")
        return told["used_memory"] - told["mem_clients_normal"]


async def bytes_per(
    work: Callable[[Limiter], Work], effort: Effort, kept: list[Reservation]
) -> float:
    """What one more costs, on a server of its own, on which the scopes of open reservations are there already."""
    times = max(effort.of(TIMES), LEAST)
    # What is slow here is remembered at length, in the same memory.
    with redis_server("--slowlog-log-slower-than", "-1") as server:
        backend = RedisBackend.from_url(server.url, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:
            do = work(limiter)
            await repeat(do, 0, min(KEYS, effort.of(100 * KEYS)))
            before = used(server)
            await repeat(do, KEYS, times)
            grown = used(server) - before
            await asyncio.gather(*(reservation.close_reserved_only() for reservation in kept))
    return grown / times


def holding(limits: Limits = KEY, *, named: bool = False) -> Callable[[list[Reservation]], Any]:
    """Open reservations over two scopes; one that is let go of is abandoned."""
    return lambda kept: lambda limiter: left_open(limiter, limits, named=named, kept=kept)


async def bytes_of_the_first_slot(effort: Effort) -> float:
    """What one more open reservation costs that has the only slot of its key, which was used before."""
    times = max(effort.of(TIMES), LEAST)
    kept: list[Reservation] = []
    with redis_server("--slowlog-log-slower-than", "-1") as server:
        backend = RedisBackend.from_url(server.url, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:
            await repeat(once_each(limiter, KEY_WITH_SLOTS), 0, times)
            before = used(server)
            holds = left_open(limiter, KEY_WITH_SLOTS, named=False, kept=kept, keys=times)
            await repeat(holds, 0, times)
            grown = used(server) - before
            await asyncio.gather(*(reservation.close_reserved_only() for reservation in kept))
    return grown / times


async def bytes_to_a_file(effort: Effort) -> float:
    """What a life cycle over a key with a slot and a model writes to an append-only file."""
    times = max(effort.of(TIMES), LEAST)
    settings = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
    with redis_server(*settings) as server:
        backend = RedisBackend.from_url(server.url, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:

            async def work(number: int) -> None:
                scope = Scope(f"api_key:{number % KEYS:08}", KEY_WITH_SLOTS)
                async with await limiter.pre_commit(scope, MODEL, tokens=50) as reservation:
                    await reservation.settle_success(32)

            await repeat(work, 0, 1)
            before = written(server)
            await repeat(work, 1, times)
            return (written(server) - before) / times


def written(server: RedisServer) -> int:
    """The length of the server's append-only file, in bytes."""
    with server.client() as client:
        return int(client.info("persistence")["aof_current_size"])


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """One table."""
    works: dict[str, Callable[[list[Reservation]], Callable[[Limiter], Work]]] = {
        "a scope with rpm and tpm that was used in the last minute": lambda _: once_each,
        "the same with limits of a day as well": lambda _: partial(once_each, limits=KEY_OF_A_DAY),
        "an open reservation over two scopes of the first kind": holding(),
        "the same with a request_id of 32 characters": holding(named=True),
        "one with a slot": holding(KEY_WITH_SLOTS),
        "an addition, for an hour": lambda _: added,
    }
    rows: list[tuple[str, int]] = []
    for name, make in works.items():
        kept: list[Reservation] = []
        rows.append((name, round(await bytes_per(make(kept), effort, kept))))
        if name == "one with a slot":
            first = round(await bytes_of_the_first_slot(effort))
            rows.append(("one with a slot, the only one of its key", first))
    rows.append(("an append-only file, for each life cycle", round(await bytes_to_a_file(effort))))
    yield Table("Redis: memory of the server", ("", "bytes"), tuple(rows))
