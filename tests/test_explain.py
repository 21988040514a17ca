"""`explain`: what every limit would say to a request, and the earliest moment at which it is admitted (R1–R3, R18)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import pytest

from earmark import (
    BackendUnavailable,
    Limit,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    RedisBackend,
    Reservation,
    Scope,
    Usage,
)
from earmark.core.admission import levels
from earmark.limits import MICROSECONDS, Algorithm
from earmark.testing import FaultyBackend, ManualClock
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

HISTORIES: Final = 100
HISTORIES_ON_REDIS: Final = 30
STARTS: Final = (0.0, 59.999_999, 1_700_000_000.123_457)
MARKS: Final = ("admitted", "later", "no clock tells", "held", "several refuse")

ALGORITHMS: Final[tuple[Algorithm, ...]] = ("fixed_window", "sliding_window", "token_bucket")


def drawn_scope(rng: random.Random, key: str) -> Scope:
    """A scope of a few small limits, which meet one another."""
    limits = {
        Limit(metric, rng.randint(1, 40), window, algorithm).id: Limit(
            metric,
            rng.randint(1, 40),
            window,
            algorithm,
            rng.randint(5, 50) if algorithm == "token_bucket" and rng.random() < 0.5 else None,
        )
        for metric in rng.sample(["requests", "tokens", "input_tokens", "images"], 2)
        for window in [rng.choice([1, 7, 60, 0.333_333])]
        for algorithm in rng.sample(ALGORITHMS, 1)
    }
    slots = rng.choice([None, None, 2, 5])
    return Scope(key, Limits(concurrency=slots, also=limits.values()), rng.random() < 0.8)


class World:
    """A limiter on a clock of its own, and what a random history has left open."""

    def __init__(self, limiter: Limiter, clock: ManualClock, rng: random.Random) -> None:
        self.limiter, self.clock, self.rng = limiter, clock, rng
        self.scopes = [drawn_scope(rng, "a"), drawn_scope(rng, "b")]
        self.open: list[Reservation] = []

    def ask(self) -> tuple[int | Usage, Mapping[str, int]]:
        """What a request asks: some of it, more than there is, or nothing of a metric."""
        rng = self.rng
        drawn: list[int | Usage] = [0, rng.randint(0, 30), Usage(rng.randint(0, 20), 5)]
        tokens = rng.choice(drawn)
        return tokens, {"images": rng.randint(0, 9)} if rng.random() < 0.5 else {}

    async def happen(self) -> None:
        """One step of traffic."""
        rng = self.rng
        self.clock.advance(rng.choice([0, 0, 0.000_001, rng.random(), rng.random() * 20]))
        if self.open and rng.random() < 0.4:
            reservation = self.open.pop(rng.randrange(len(self.open)))
            used = rng.choice([None, rng.randint(0, 60)])
            await (reservation.cancel() if used is None else reservation.settle_success(used))
            return
        tokens, amounts = self.ask()
        scopes = rng.sample(self.scopes, rng.randint(1, 2))
        try:
            made = await self.limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts)
        except RateLimited:
            return
        self.open.append(made)

    async def aclose(self) -> None:
        """Give everything back."""
        for reservation in self.open:
            await reservation.cancel()
        await self.limiter.aclose()


async def holds_to_its_word(world: World) -> set[str]:
    """The law: at the moment that `explain` names the request is admitted, and a microsecond earlier it is not."""
    limiter, clock, scopes = world.limiter, world.clock, world.scopes
    tokens, amounts = world.ask()
    before = await limiter.peek(*scopes)
    said = await limiter.explain(*scopes, tokens=tokens, amounts=amounts)
    assert await limiter.peek(*scopes) == before
    assert [(one.key, one.limit) for one in said.limits] == [
        (scope.key, limit) for scope in scopes for limit in scope.limits
    ]
    assert [one.used for one in said.limits] == [one.used for of in before for one in of.limits]
    marks = {"held"} if any(one.held for one in said.limits) else set[str]()
    at, after = said.feasible_at, said.feasible_after
    if said.admitted:
        assert (at, after) == (said.at, 0.0)
        world.open.append(await limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts))
        return {*marks, "admitted"}
    with pytest.raises(RateLimited) as caught:
        await limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts)
    assert [
        (one.key, one.limit, one.used, one.asked, one.retry_after) for one in caught.value.denials
    ] == [(one.key, one.limit, one.used, one.asked, one.retry_after) for one in said.refused_by]
    if len(said.refused_by) > 1:
        marks.add("several refuse")
    if at is None or after is None:
        assert any(
            one.limit.metric == "concurrency" or max(one.asked or 0, 1) > one.limit.capacity
            for one in said.refused_by
        )
        return {*marks, "no clock tells"}
    moment = round(at * MICROSECONDS)
    assert moment == round(said.at * MICROSECONDS) + round(after * MICROSECONDS)
    clock.set((moment - 1) / MICROSECONDS)
    with pytest.raises(RateLimited):
        await limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts)
    clock.set(at)
    world.open.append(await limiter.pre_commit(*scopes, tokens=tokens, amounts=amounts))
    return {*marks, "later"}


async def play(limiter: Limiter, clock: ManualClock, seed: int) -> set[str]:
    """One history; its seed is all that there is to know of it."""
    world = World(limiter, clock, random.Random(seed))
    try:
        for _ in range(world.rng.randint(1, 12)):
            await world.happen()
        return await holds_to_its_word(world)
    finally:
        await world.aclose()


async def test_the_earliest_moment_is_exact() -> None:
    """R3, R18 in memory: admitted at `feasible_at`, refused a microsecond earlier, and nothing is counted (R2)."""
    reached = Reached("explain")
    for seed in range(examples(HISTORIES)):
        clock = ManualClock(STARTS[seed % len(STARTS)])
        reached.history(await play(Limiter(MemoryBackend(clock=clock, lease=3_600)), clock, seed))
    if reached.histories >= HISTORIES:
        reached.require(0.04, MARKS)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_earliest_moment_is_exact_on_redis(
    shared_redis: RedisServer, namespace: str, anyio_backend: str
) -> None:
    """R3, R12, R18: the same through a server."""
    reached = Reached("explain on Redis")
    for seed in range(examples(HISTORIES_ON_REDIS)):
        clock = ManualClock(STARTS[seed % len(STARTS)])
        backend = RedisBackend.from_url(
            shared_redis.url,
            namespace=f"{namespace}.{seed}",
            clock=clock,
            lease=3_600,
            timeout=20,
            on_outage="closed",
        )
        reached.history(await play(Limiter(backend), clock, seed))
    if reached.histories >= HISTORIES_ON_REDIS:
        reached.require(0.04, {"admitted", "later", "no clock tells"})


async def test_what_is_held_is_what_cancelling_gives_back() -> None:
    """R6, R7: `held` is the difference that it would make if every open reservation were cancelled now."""
    reached = Reached("explain: held")
    for seed in range(examples(HISTORIES)):
        clock = ManualClock(STARTS[seed % len(STARTS)])
        limiter = Limiter(MemoryBackend(clock=clock, lease=3_600))
        world = World(limiter, clock, random.Random(seed))
        for _ in range(10):
            await world.happen()
            if world.rng.random() < 0.05:
                await limiter.reset(world.scopes[0])
        said = await limiter.explain(*world.scopes)
        for reservation in world.open:
            await reservation.cancel()
        left = [one.used for of in await limiter.peek(*world.scopes) for one in of.limits]
        assert [one.used - (one.held or 0) for one in said.limits] == left, f"seed {seed}"
        marks = {"held"} if any(one.held for one in said.limits) else set[str]()
        if any(one.held and 0 < one.held < one.used for one in said.limits):
            marks.add("held in part")
        reached.history(marks)
        await limiter.aclose()
    if reached.histories >= HISTORIES:
        reached.require(0.1, {"held", "held in part"})


class Wrapped:
    """Passes on what a backend has, as wrappers of one do."""

    def __init__(self, inner: MemoryBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", ["memory", "wrapped", "redis"])
async def test_which_backend_tells_what_of_held(
    kind: str, shared_redis: RedisServer, namespace: str, anyio_backend: str
) -> None:
    """Memory of every limit, whoever wraps it; Redis of slots, and of what nobody has used that nothing is held."""
    clock = ManualClock(1)
    backend: Any = MemoryBackend(clock=clock)
    if kind == "wrapped":
        backend = Wrapped(backend)
    elif kind == "redis":
        backend = RedisBackend.from_url(shared_redis.url, namespace=namespace, clock=clock)
    limits = Limits(rpm=9, tpm=90, concurrency=3, also=[Limit("images", 9, 60)])
    alice = Scope("alice", limits)
    async with Limiter(backend) as limiter:
        unused = await limiter.explain(alice)
        assert {one.held for one in unused.limits} == {0}
        await (await limiter.pre_commit(alice, tokens=20)).settle_success(15)
        async with await limiter.pre_commit(alice, tokens=30) as reservation:
            said = await limiter.explain(alice)
            await reservation.cancel()
    known = kind != "redis"
    assert {one.limit.metric: (one.used, one.held) for one in said.limits} == {
        "requests": (2, 1 if known else None),
        "tokens": (45, 30 if known else None),
        "images": (0, 0),
        "concurrency": (1, 1),
    }


async def test_levels_are_statuses_without_times() -> None:
    """R4: what a request leaves of every limit, and whom it would have been refused by, is the same by both."""
    admitted = 0
    for seed in range(examples(HISTORIES)):
        clock = ManualClock(STARTS[seed % len(STARTS)])
        limiter = Limiter(MemoryBackend(clock=clock, lease=3_600))
        world = World(limiter, clock, random.Random(seed))
        for _ in range(6):
            await world.happen()
        for reservation in world.open:
            hold = reservation._hold
            told = list(levels(hold.scopes, hold.asks, hold.seen, hold.at))
            expected = [
                (scope, one.limit, one.used, one.would_refuse)
                for scope, status in zip(hold.scopes, reservation.statuses, strict=True)
                for one in status.limits
                if hold.asks.get(one.limit.metric, one.limit.unasked) is not None
            ]
            assert told == expected, f"seed {seed}"
            admitted += 1
        await world.aclose()
    assert admitted


async def test_an_explanation_reads_as_text() -> None:
    """Every limit with what is used, held and asked, who refuses, who would, and when it fits."""
    limiter = Limiter(MemoryBackend(clock=ManualClock(30)))
    alice = Scope("alice", Limits(rpm=2, tpm=100, concurrency=1))
    team = Scope("team", Limits(tph=60), enforce=False)
    first = await limiter.pre_commit(alice, team, tokens=70)
    said = await limiter.explain(alice, team, tokens=50)
    assert str(said).splitlines() == [
        "refused; no clock tells until when",
        "'alice': 1 of 2 requests per 60 s used (1 held), 1 asked: fits",
        "'alice': 70 of 100 tokens per 60 s used (70 held), 50 asked: refuses, fits in 30.0 s",
        "'alice': 1 of 1 concurrency used (1 held), 1 asked: refuses; no clock tells until when",
        "'team': 70 of 60 tokens per 3600 s used (70 held), 50 asked: would refuse, fits in 3570.0 s",
    ]
    await first.settle_success(80)
    said = await limiter.explain(alice, team, tokens=50)
    assert str(said).splitlines()[:3] == [
        "refused; admitted in 30.0 s, if nothing else happens",
        "'alice': 1 of 2 requests per 60 s used (0 held), 1 asked: fits",
        "'alice': 80 of 100 tokens per 60 s used (0 held), 50 asked: refuses, fits in 30.0 s",
    ]
    assert (said.at, said.feasible_after, said.feasible_at) == (30, 30, 60)
    never = await limiter.explain(alice, tokens=101)
    assert (never.feasible_after, never.admitted) == (None, False)
    assert str(await limiter.explain(alice, tokens=20)).startswith("admitted\n")


async def test_a_metric_that_is_not_named_is_not_judged() -> None:
    """R1: a metric of the user's own refuses nobody who does not name it."""
    limiter = Limiter()
    scope = Scope("a", Limits(also=[Limit("images", 0, 60)]))
    said = await limiter.explain(scope)
    assert [(one.asked, one.would_refuse) for one in said.limits] == [(None, False)]
    assert not (await limiter.explain(scope, amounts={"images": 0})).admitted


async def test_where_nothing_is_limited_everything_is_admitted() -> None:
    """B46: no scopes, no limits, a disabled limiter: nobody refuses."""
    for limiter, scopes in (
        (Limiter(), ()),
        (Limiter(), (Scope("a", Limits()),)),
        (Limiter.disabled(), (Scope("a", Limits(rpm=0)),)),
    ):
        said = await limiter.explain(*scopes)
        assert (said.limits, said.admitted, said.feasible_after) == ((), True, 0.0)


async def test_what_is_wrong_is_told() -> None:
    """R12: amounts and scopes are checked as for `pre_commit`; a store that is out of reach cannot explain."""
    backend = FaultyBackend(MemoryBackend())
    limiter = Limiter(backend)
    scope = Scope("a", Limits(rpm=1))
    with pytest.raises(ValueError, match="tokens must be"):
        await limiter.explain(scope, tokens=-1)
    with pytest.raises(ValueError, match="two scopes with one key"):
        await limiter.explain(scope, scope)
    backend.go_down()
    with pytest.raises(BackendUnavailable):
        await limiter.explain(scope)
