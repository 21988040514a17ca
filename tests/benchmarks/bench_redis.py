"""What a life cycle through Redis depends on: how many scopes it has, and how many reservations are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any, Final

from earmark import Limiter, Limits, RedisBackend, Reservation, Scope
from tests.benchmarks.figures import Effort, Table, Work, elapsed, least
from tests.benchmarks.workloads import Server
from tests.servers import redis_server

PLENTY: Final = 10**9
LIMITS: Final = Limits(rpm=PLENTY, tpm=PLENTY)


def lifecycle(limiter: Limiter, scopes: int) -> Work:
    """One pre_commit over so many scopes, and one settle_success."""
    asked = [Scope(f"scope:{number}", LIMITS) for number in range(scopes)]

    async def work(_: int) -> None:
        reservation = await limiter.pre_commit(*asked, tokens=500)
        await reservation.settle_success(320)

    return work


async def by_scopes(limiter: Limiter, client: Any, effort: Effort) -> Table:
    """How many round trips a life cycle takes, and what else, for so many scopes with two limits each."""
    times = effort.of(1_000)
    works = {scopes: lifecycle(limiter, scopes) for scopes in (1, 2, 4, 8)}
    found = dict.fromkeys(works, (inf, inf, inf))
    for work in works.values():
        await work(0)
    for _ in range(effort.rounds):
        for scopes, work in works.items():
            before = Server.ask(client)
            microseconds = await elapsed(work, times)()
            after = Server.ask(client)
            trips = (after.reads - before.reads - 1) / times
            server = (after.processor - before.processor) / times * 1e6
            best = found[scopes]
            found[scopes] = (min(best[0], trips), min(best[1], microseconds), min(best[2], server))
    return Table(
        "Redis: by the number of scopes, one caller",
        ("", "round trips", "µs", "server µs"),
        tuple((f"{scopes} of two limits each", *figures) for scopes, figures in found.items()),
    )


async def by_open(limiter: Limiter, effort: Effort) -> Table:
    """What a life cycle of one caller takes while few and while many reservations are open."""
    scope = Scope("held", Limits(rpm=PLENTY, tpm=PLENTY, concurrency=PLENTY))
    work, times = lifecycle(limiter, 1), effort.of(1_000)
    held: list[Reservation] = []
    found: dict[int, float] = {}
    for count in (10, effort.of(10_000) + 10):
        while len(held) < count:
            held += await asyncio.gather(*(limiter.pre_commit(scope) for _ in range(10)))
        measured = await least({"": elapsed(work, times)}, effort.rounds)
        found[count] = measured[""]
    await asyncio.gather(*(reservation.cancel() for reservation in held))
    rows = tuple((f"{count:,} open", figure, figure / found[10]) for count, figure in found.items())
    return Table("Redis: by the number of open reservations", ("", "µs", "against the first"), rows)


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """Both, on a server of their own."""
    with redis_server() as server, server.client() as client:
        backend = RedisBackend.from_url(server.url, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:
            yield await by_scopes(limiter, client, effort)
            yield await by_open(limiter, effort)
