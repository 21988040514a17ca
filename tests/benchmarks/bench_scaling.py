"""What one Redis server carries, and what a cluster adds, told by what a life cycle takes of the servers' processors.

A server runs scripts on one core. How many life cycles that carries is a second divided by what one takes of it: told
like this it holds on a machine whose cores the callers use as well. Callers of one process that ask at the same time
share a call of a script, so it is least where many share: between one caller and many lies what a fleet of processes
gets.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from earmark import Limiter, Limits, RedisBackend, Scope
from tests.benchmarks.figures import Effort, Table
from tests.benchmarks.workloads import Server
from tests.cluster import slot_of
from tests.servers import RedisServer, redis_cluster, redis_server
from tests.tls import knows_tls, secured_server

LIMITS: Final = Limits(rpm=10**9, tpm=10**9)
SLOTS: Final = Limits(rpm=10**9, tpm=10**9, concurrency=10**6)
OF_A_DAY_TOO: Final = Limits(rpm=10**9, tpm=10**9, rpd=10**9, tpd=10**9)
TENANTS: Final = 1_000
TEAMS: Final = 40
TIMES: Final = 20_000
ARRIVALS: Final = 2_000

Scopes = tuple[Scope, ...]


@dataclass(frozen=True)
class Cost:
    """What a life cycle took.

    Attributes:
        servers: microseconds of each server's processor.
        client: microseconds of this process's.
        reads: how often the servers read from a connection.
    """

    servers: tuple[float, ...]
    client: float
    reads: float

    @property
    def server(self) -> float:
        """Of all servers together."""
        return sum(self.servers)

    @property
    def most(self) -> float:
        """How many life cycles a second the servers carry, until the busiest of them has no time left."""
        return 1e6 / max(self.servers)


async def cost(
    limiter: Limiter,
    servers: Sequence[RedisServer],
    asked: Sequence[Scopes],
    callers: int,
    effort: Effort,
) -> Cost:
    """What a life cycle takes with so many callers at once, over these scopes in turn."""
    callers = min(callers, effort.of(TIMES))
    each = effort.of(TIMES) // callers

    async def caller(number: int) -> None:
        for turn in range(each):
            scopes = asked[(number + turn * callers) % len(asked)]
            reservation = await limiter.pre_commit(*scopes, tokens=500)
            await reservation.settle_success(320)

    best: Cost | None = None
    await asyncio.gather(*map(caller, range(callers)))
    for _ in range(max(effort.rounds // 2, 1)):
        work = asyncio.gather(*map(caller, range(callers)))
        found = await taken(servers, work, each * callers)
        best = found if best is None or found.server < best.server else best
    assert best is not None
    return best


async def cost_of_arrivals(
    limiter: Limiter, server: RedisServer, asked: Sequence[Scopes], rate: int, effort: Effort
) -> Cost:
    """What a life cycle takes where so many a second arrive, whatever became of those before them, and last a while.

    One caller who asks again at once finds everything warm, and a hundred of them always share: a gateway is neither.
    """
    arrivals, lasts = effort.of(ARRIVALS), effort.seconds * 4
    chance, loop = random.Random(rate), asyncio.get_running_loop()

    async def until(due: float) -> None:
        is_due = asyncio.Event()
        loop.call_at(due, is_due.set)
        await is_due.wait()

    async def request(number: int) -> None:
        reservation = await limiter.pre_commit(*asked[number % len(asked)], tokens=500)
        await until(loop.time() + lasts)
        await reservation.settle_success(320)

    async def all_of_them() -> None:
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(arrivals):
                due += chance.expovariate(rate)
                await until(due)
                group.create_task(request(number))

    return await taken([server], all_of_them(), arrivals)


async def taken(servers: Sequence[RedisServer], work: Awaitable[object], done: int) -> Cost:
    """What each of so many life cycles took, while it is worked at."""
    before, processor = [look(server) for server in servers], time.process_time()
    await work
    processor = time.process_time() - processor
    pairs = list(zip(before, [look(server) for server in servers], strict=True))
    return Cost(
        tuple((late.processor - early.processor) / done * 1e6 for early, late in pairs),
        processor / done * 1e6,
        sum(late.reads - early.reads - 1 for early, late in pairs) / done,
    )


def look(server: RedisServer) -> Server:
    """What a server has done so far."""
    with server.client() as client:
        return Server.ask(client)


def each_alone(limits: Limits = LIMITS) -> list[Scopes]:
    """One scope for each tenant."""
    return [(Scope(f"tenant:{number}", limits),) for number in range(TENANTS)]


def with_a_model(tag: Callable[[int], str]) -> list[Scopes]:
    """A tenant and one of eight models; the tag says which of them are on one slot."""
    return [
        (
            Scope(f"{tag(number)}tenant:{number}", LIMITS),
            Scope(f"{tag(number)}model:{number % 8}", LIMITS),
        )
        for number in range(TENANTS)
    ]


def keys_of_teams() -> list[Scopes]:
    """What a gateway asks mostly: a key with a slot, and its team with limits of a day as well."""
    teams = [Scope(f"team:{number}", OF_A_DAY_TOO) for number in range(TEAMS)]
    return [
        (Scope(f"api_key:{number:020}", SLOTS), teams[number % TEAMS]) for number in range(TENANTS)
    ]


CASES: Final[dict[str, tuple[list[Scopes], int]]] = {
    "a tenant, one caller": (each_alone(), 1),
    "a tenant, 10 callers": (each_alone(), 10),
    "a tenant, 100 callers": (each_alone(), 100),
    "a tenant, 1,000 callers": (each_alone(), 1_000),
    "a tenant with a slot, 100 callers": (each_alone(SLOTS), 100),
    "a tenant and a model, one caller": (with_a_model(lambda _: ""), 1),
    "a tenant and a model, 100 callers": (with_a_model(lambda _: ""), 100),
    "a key with a slot and a team, one caller": (keys_of_teams(), 1),
    "a key with a slot and a team, 100 callers": (keys_of_teams(), 100),
}

RATES: Final = (100, 250)  # a second, of one process

OVER_TLS: Final = (
    "a key with a slot and a team, one caller",
    "a key with a slot and a team, 100 callers",
)

ON_A_CLUSTER: Final[dict[str, tuple[list[Scopes], int]]] = {
    "a tenant, one caller": (each_alone(), 1),
    "a tenant, 100 callers": (each_alone(), 100),
    "a tenant and a model of its own slot, one caller": (
        with_a_model(lambda number: f"{{{number % 100}}}"),
        1,
    ),
    "a tenant and a model of its own slot, 100 callers": (
        with_a_model(lambda number: f"{{{number % 100}}}"),
        100,
    ),
    "a tenant and a model elsewhere, one caller": (with_a_model(lambda _: ""), 1),
    "a tenant and a model elsewhere, 100 callers": (with_a_model(lambda _: ""), 100),
}


async def one_server(effort: Effort) -> Table:
    """By the number of callers, by the rate at which they come, and over TLS."""
    found: dict[str, Cost] = {}
    with redis_server() as server:
        async with limiter_of(server.url) as limiter:
            for name, (asked, callers) in CASES.items():
                found[name] = await cost(limiter, [server], asked, callers, effort)
            asked = keys_of_teams()
            for rate in RATES:
                took = await cost_of_arrivals(limiter, server, asked, rate, effort)
                found[f"a key with a slot and a team, {rate} a second come"] = took
    if knows_tls():
        with tempfile.TemporaryDirectory() as folder, secured_server(Path(folder)) as secured:
            async with limiter_of(secured.url) as limiter:
                for name in OVER_TLS:
                    took = await cost(limiter, [secured.server], *CASES[name], effort)
                    found[f"{name}, over TLS"] = took
    rows = [(name, it.server, it.most, it.client, it.reads) for name, it in found.items()]
    heads = ("", "server µs", "life cycles a second and core", "client µs", "reads")
    return Table("Scaling: one Redis server", heads, tuple(rows))


def limiter_of(url: str) -> Limiter:
    """One that nothing is decided for without the server."""
    return Limiter(RedisBackend.from_url(url, timeout=10, on_outage="closed"))


async def three_masters(effort: Effort) -> Table:
    """Of a cluster: what the busiest has to do says what all of them carry."""
    rows: list[tuple[str, float, float, float, float, float]] = []
    with redis_cluster() as cluster:
        backend = RedisBackend.from_url(cluster.url, cluster=True, timeout=10, on_outage="closed")
        async with Limiter(backend) as limiter:
            for name, (asked, callers) in ON_A_CLUSTER.items():
                took = await cost(limiter, cluster.masters, asked, callers, effort)
                share = max(took.servers) / took.server
                rows.append((name, took.server, share, took.most, took.client, took.reads))
    heads = (
        "",
        "servers µs",
        "part of the busiest",
        "life cycles a second",
        "client µs",
        "reads",
    )
    note = f"The keys of {TENANTS:,} tenants are on {spread()} slots."
    return Table("Scaling: a cluster of three masters", heads, tuple(rows), note)


def spread() -> int:
    """On how many slots the tenants are."""
    return len({slot_of(scope.key) for scopes in each_alone() for scope in scopes})


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """One server, and three."""
    yield await one_server(effort)
    yield await three_masters(effort)
