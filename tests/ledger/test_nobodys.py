"""R9, R16: callers who spend under one name at the same moment and are all cancelled: nothing is held, and no money.

Whoever was given it has limits and money; and once nobody has it that asked, both are free, whoever made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import permutations, product
from typing import Any, Final

import pytest

from earmark import (
    Limiter,
    Limits,
    MemoryBackend,
    RedisBackend,
    RequestIdConflict,
    Reservation,
    Scope,
)
from earmark.ids import name_of, next_id
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.charge import Charge, Resolution
from earmark.ledger.store import Unreachable
from earmark.testing import ManualClock
from tests.ledgers import NOON, Database, adds_up, deliver, only_row, usd
from tests.reached import Reached
from tests.redis.wire import until
from tests.rivals import KINDS, Goes, Kind, rivals

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE: Final = Budget("user:alice", usd(10), "monthly")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=100, concurrency=5))

# An admission takes so many turns of the loop, more over a network.
TURNS: Final = (3, 10, 20, 35, 70)

reached = Reached("rivals who spend")


def spend(estimate: str = "1") -> Spend:
    return Spend((ALICE,), "big", usd(estimate))


class Scene:
    """The limiters of two processes on one database, and on one store of limits or on one each."""

    def __init__(self, database: Database, kind: str, new_backend: Callable[[], Any]) -> None:
        self.clock = ManualClock(NOON)
        self.ledgers = [database.ledger(clock=self.clock, timeout=60) for _ in range(2)]
        self.limiters = [Limiter(new_backend(), ledger=ledger) for ledger in self.ledgers]
        self.scopes = () if kind == "unlimited" else (SCOPE,)
        self.shared = kind == "redis"
        self._number = 0

    async def used(self) -> list[list[int]]:
        """What each process sees used of each limit."""
        seen = []
        for limiter in self.limiters:
            await limiter.peek(SCOPE)
            await until(lambda limiter=limiter: not limiter.health().owed)  # type: ignore[misc]
        for limiter in self.limiters:
            (status,) = await limiter.peek(SCOPE)
            seen.append([limit.used for limit in status.limits])
        return seen

    async def pending(self) -> int:
        return int((await self.ledgers[0].standing(ALICE)).pending)

    def ask(self, process: int = 0, estimate: str = "1") -> Any:
        """One who asks by the name of this time."""
        limiter = self.limiters[process]
        name = f"q{self._number}"
        return partial(limiter.pre_commit, *self.scopes, request_id=name, spend=spend(estimate))

    def next(self) -> None:
        """From now on another name is asked for."""
        self._number += 1

    async def end(self, goes: Sequence[Goes], *, apart: bool) -> None:
        """Have them ask and go; whoever was given it has all of it, or nobody has anything."""
        self.next()
        asks = [self.ask(apart and number % 2) for number in range(len(goes))]
        got = await rivals(asks, goes)
        reached.count(f"{len(got)} of {len(goes)} are given it")
        await self.holds(got)

    async def holds(self, got: Sequence[Reservation]) -> None:
        """Limits and money of what they were given, which they can give back; or nothing."""
        assert await self.pending() == bool(got)
        if self.scopes and (self.shared or not got):
            assert await self.used() == [[bool(got)] * 2] * 2
        if got:
            assert [await one.cancel() for one in got].count(True) == 1
            await self.is_empty()

    async def is_empty(self) -> None:
        """Nobody has anything."""
        assert await self.pending() == 0
        assert await self.used() == [[0, 0]] * 2
        await adds_up(self.ledgers[0])

    def answers(self, process: int, callers: int = 1) -> Answers:
        """Hold back what a database answers in a process."""
        return Answers(self.ledgers[process], callers)


class Answers:
    """What a database answers to those who have money set aside, held back until it is let go."""

    def __init__(self, ledger: Ledger, callers: int) -> None:
        self._write, self._ledger = ledger._store.write, ledger
        self._left = callers
        self._open = asyncio.Event()
        self.came = asyncio.Event()
        ledger._store.write = self._late  # type: ignore[method-assign]

    async def _late(self, work: Any, **options: Any) -> Any:
        answer = await self._write(work, **options)
        if self._left:
            self._left -= 1
            if not self._left:
                self.came.set()
            await self._open.wait()
        return answer

    def let_go(self) -> None:
        self._ledger._store.write = self._write  # type: ignore[method-assign]
        self._open.set()


@pytest.fixture(params=["memory", "redis", "unlimited"])
async def scene(
    request: pytest.FixtureRequest, database: Database, namespace: str
) -> AsyncIterator[Scene]:
    """Everything, with connections."""
    clock = ManualClock(NOON)

    def new_backend() -> Any:
        if request.param != "redis":
            return MemoryBackend(clock=clock)
        url = request.getfixturevalue("shared_redis").url
        return RedisBackend.from_url(url, namespace=namespace, clock=clock, timeout=60)

    one = Scene(database, request.param, new_backend)
    await one.ledgers[0].create()
    async with one.limiters[0], one.limiters[1]:
        async with await one.limiters[0].pre_commit(spend=Spend((ALICE,), estimate=usd(0))):
            pass
        await one.is_empty()
        yield one


@pytest.mark.parametrize("apart", [False, True])
async def test_r9_a_name_that_all_who_spend_have_left(scene: Scene, *, apart: bool) -> None:
    """R9, R16: in one process and in two, by both kinds of cancellation, at many turns of the loop."""
    for kinds in product(KINDS, KINDS):
        for turns in product(TURNS, repeat=2):
            await scene.end(tuple(zip(kinds, turns, strict=True)), apart=apart)


@pytest.mark.parametrize("kind", KINDS)
async def test_r9_a_name_that_three_who_spend_have_left(scene: Scene, kind: Kind) -> None:
    """R9, R16: of three, of whom one is in another process."""
    for turns in product(range(4, 36, 10), repeat=3):
        await scene.end([(kind, turn) for turn in turns], apart=True)


def gone(task: asyncio.Task[Any]) -> bool:
    return task.cancelled()


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
@pytest.mark.parametrize("apart", [False, True])
async def test_r9_the_last_who_goes_before_hearing_of_it_frees_limits_and_money(
    scene: Scene, order: tuple[int, ...], *, apart: bool
) -> None:
    """R9, R16: the database has given it to all of three, and none has heard of that: each goes by itself."""
    answers = [scene.answers(0, 2 if apart else 3), *([scene.answers(1)] if apart else [])]
    asking = [asyncio.ensure_future(scene.ask(apart and number == 1)()) for number in range(3)]
    for one in answers:
        await one.came.wait()
    for number in order:
        asking[number].cancel()
        await asyncio.sleep(0)
    for one in answers:
        one.let_go()
    await asyncio.wait(asking)
    assert all(map(gone, asking))
    await scene.is_empty()


@pytest.mark.parametrize("stays", range(3))
async def test_r9_who_stays_has_all_of_it(scene: Scene, stays: int) -> None:
    """R9, R16: whether he has made it or not, and whoever goes."""
    answers = scene.answers(0, 3)
    asking = [asyncio.ensure_future(scene.ask()()) for _ in range(3)]
    await answers.came.wait()
    for number in range(3):
        if number != stays:
            asking[number].cancel()
    answers.let_go()
    await asyncio.wait(asking)
    assert [gone(one) for one in asking].count(True) == 2
    await scene.holds([await asking[stays]])


async def test_r9_who_is_given_it_settles_what_its_maker_has_left(scene: Scene) -> None:
    """R9, R5: it is as good as ever: it costs what it cost, once."""
    answers = scene.answers(0)
    made = asyncio.ensure_future(scene.ask()())
    await answers.came.wait()
    theirs = await scene.ask(1)()
    made.cancel()
    answers.let_go()
    await asyncio.wait([made])
    assert await scene.pending() == 1
    assert await theirs.settle_success(1, cost=usd("0.7"))
    assert (await only_row(scene.ledgers[0], "q0")).cost == usd("0.7")
    assert await scene.pending() == 0


async def test_r9_who_is_told_of_an_outage_or_of_a_conflict_has_gone_as_well(scene: Scene) -> None:
    """R9: the limits do not wait for him: what its maker then leaves is free."""
    for fails in (Unreachable(None, asked=True), RequestIdConflict("q")):
        answers = scene.answers(0)
        made = asyncio.ensure_future(scene.ask()())
        await answers.came.wait()
        other = scene.ledgers[1]
        write = other._store.write

        async def failing(*_work: Any, fails: Exception = fails, **_options: Any) -> Any:
            raise fails

        other._store.write = failing  # type: ignore[method-assign]
        with pytest.raises(Exception, match=r"ledger|request id|q"):
            await scene.ask(1)()
        other._store.write = write  # type: ignore[method-assign]
        made.cancel()
        answers.let_go()
        await asyncio.wait([made])
        await deliver(other)
        await scene.is_empty()


# What a ledger is told, one message after another.


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[tuple[Ledger, ManualClock]]:
    clock = ManualClock(NOON)
    ledger = database.ledger(clock=clock, timeout=60)
    await ledger.create()
    yield ledger, clock
    await adds_up(ledger)
    await ledger.aclose()


async def ask_of(ledger: Ledger, name: str = "q") -> Charge:
    """One more who asks by the name, and is given what is pending by it."""
    mine = name_of(next_id())
    charge = Charge(name, mine, budgets=(ALICE,), amount=10**9, at=ledger.now(), asker=mine)
    await ledger.hold(charge)
    return charge


async def withdraw(ledger: Ledger, charge: Charge) -> bool:
    return await ledger.resolve(Resolution(Charge(charge.request_id, charge.asker), "withdraw"))


async def pending(ledger: Ledger) -> int:
    return int((await ledger.standing(ALICE)).pending)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
async def test_r9_the_last_who_withdraws_gives_the_money_back(
    database: Database, order: tuple[int, ...]
) -> None:
    """R9: whether that is who has made it or not; each may say so twice, and the name is free then."""
    async with opened(database) as (ledger, _):
        charges = [await ask_of(ledger) for _ in range(3)]
        assert len({charge.reservation for charge in charges}) == 1
        for left, number in zip((1, 1, 0), order, strict=True):
            assert await withdraw(ledger, charges[number]) is (not left)
            assert await withdraw(ledger, charges[number]) is False
            assert await pending(ledger) == left
        again = await ask_of(ledger)
        assert not again.adopted
        assert not any([await withdraw(ledger, charge) for charge in charges])
        assert await withdraw(ledger, again)


async def test_r9_more_than_are_told_apart_hold_it_until_it_expires(database: Database) -> None:
    """R9, C24: of so many callers some are not known by name: it stays for its expiry, and is posted as it stands."""
    async with opened(database) as (ledger, clock):
        few = [await ask_of(ledger, "few") for _ in range(31)]
        assert [await withdraw(ledger, charge) for charge in few].count(True) == 1
        assert await pending(ledger) == 0
        many = [await ask_of(ledger, "many") for _ in range(100)]
        assert not any([await withdraw(ledger, charge) for charge in many])
        assert await pending(ledger) == 1
        clock.advance(3_601)
        assert await ledger.spent(ALICE) == 1
        assert await pending(ledger) == 0


async def test_r9_what_comes_late_of_who_has_left_is_undone(database: Database) -> None:
    """R9, R16: of the one who makes it and of one who is given it, after their withdrawals."""
    async with opened(database) as (ledger, _):
        for callers in (1, 2):
            stays = [await ask_of(ledger) for _ in range(callers - 1)]
            mine = name_of(next_id())
            late = Charge("q", mine, budgets=(ALICE,), amount=10**9, at=ledger.now(), asker=mine)
            assert await withdraw(ledger, late) is False
            late.gone = True
            await ledger.hold(late)
            assert await pending(ledger) == len(stays)
            for charge in stays:
                assert await withdraw(ledger, charge)


async def test_r9_who_was_given_it_takes_back_nothing_that_has_expired(database: Database) -> None:
    """R9, C24: its holder may turn up, and it costs what it cost."""
    async with opened(database) as (ledger, clock):
        made, given = await ask_of(ledger), await ask_of(ledger)
        clock.advance(3_601)
        assert await ledger.spent(ALICE) == 1
        assert await withdraw(ledger, given) is False
        assert await ledger.spent(ALICE) == 1
        assert await withdraw(ledger, made) is True
        assert await ledger.spent(ALICE) == 0


async def test_r9_who_conflicts_is_given_nothing(database: Database) -> None:
    """R9: who asks something else of an open id does not keep it."""
    async with opened(database) as (ledger, _):
        made = await ask_of(ledger)
        mine = name_of(next_id())
        with pytest.raises(RequestIdConflict):
            await ledger.hold(Charge("q", mine, budgets=(ALICE,), amount=1, at=made.at, asker=mine))
        assert await withdraw(ledger, made) is True
