"""R18: waiting for room, in order of arrival per scope set, on asyncio and trio.

The rows are played on the memory backend here, and on other stores by the tests that collect them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope
from earmark.testing import ManualClock
from earmark.waiting import SLOT_PAUSE
from tests.rows import Stores

pytestmark = pytest.mark.anyio

TURNS: Final = 60  # checkpoints after which whatever was woken has run
PATIENCE: Final = 30.0  # seconds of a store's
MESSAGES: Final = {"reserve", "resolve", "add", "renew", "peek", "reset"}


class Counting:
    """A backend of which it is known when it is asked, and what is under way.

    Attributes:
        asked: how often for room.
        asked_at: when.
        under_way: how many messages have no answer yet.
        events: how many have begun or ended.
    """

    instant = None

    def __init__(self, clock: ManualClock) -> None:
        self.inner = Stores.make(clock=clock)
        self.asked_at: list[float] = []
        self.under_way = 0
        self.events = 0
        self._now = clock

    @property
    def asked(self) -> int:
        return len(self.asked_at)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in MESSAGES:
            return found

        async def message(*arguments: Any, **options: Any) -> Any:
            if name == "reserve":
                self.asked_at.append(self._now())
            self._step(1)
            try:
                if self.inner.instant:  # it would answer before anything else happens
                    await anyio.lowlevel.checkpoint()
                return await found(*arguments, **options)
            finally:
                self._step(-1)

        return message

    def _step(self, more: int) -> None:
        self.under_way += more
        self.events += 1


@dataclass
class Office:
    """A limiter on a clock that stands still, and those who queue at it."""

    clock: ManualClock = field(default_factory=ManualClock)
    served: list[tuple[str, float]] = field(default_factory=list)
    held: dict[str, Reservation] = field(default_factory=dict)
    refused: dict[str, tuple[float, RateLimited]] = field(default_factory=dict)
    doors: dict[str, anyio.CancelScope] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend = Counting(self.clock)
        store: Any = self.backend
        self.limiter = Limiter(store)

    async def visit(self, name: str, *scopes: Scope, wait: float, **asks: Any) -> None:
        """Wait for room, and keep what was had."""
        with anyio.CancelScope() as self.doors[name]:
            try:
                reservation = await self.limiter.pre_commit(*scopes, wait=wait, **asks)
            except RateLimited as refusal:
                self.refused[name] = (self.clock(), refusal)
            else:
                self.served.append((name, self.clock()))
                self.held[name] = reservation

    async def quiet(self) -> None:
        """Let everything run that can, until every message is answered and nobody has one to send."""
        with anyio.fail_after(PATIENCE):
            turns, events = 0, self.backend.events
            while turns < TURNS:
                await anyio.lowlevel.checkpoint()
                still = self.backend.events == events and not self.backend.under_way
                turns, events = (turns + 1 if still else 0), self.backend.events

    async def asks(self, after: int) -> None:
        """Wait until room was asked for more than so often."""
        with anyio.fail_after(PATIENCE):
            while self.backend.asked <= after:
                await anyio.lowlevel.checkpoint()

    @property
    def waiting(self) -> int:
        return len(self.backend.desk.queues)

    @property
    def names(self) -> list[str]:
        """Who was served, in this order."""
        return [name for name, _ in self.served]

    async def close(self) -> None:
        for reservation in self.held.values():
            await reservation.abandon()
        await self.limiter.aclose()
        assert not self.waiting


@asynccontextmanager
async def office() -> AsyncIterator[tuple[Office, Callable[..., Any]]]:
    """An office, and how one sends a visitor there who arrives before anything else happens."""
    one = Office()
    async with anyio.create_task_group() as group:

        async def arrive(name: str, *scopes: Scope, wait: float = 3_600, **asks: Any) -> None:
            async def visit() -> None:
                await one.visit(name, *scopes, wait=wait, **asks)

            group.start_soon(visit)
            await one.quiet()

        yield one, arrive
        await one.quiet()
    await one.close()


async def test_r18_a_hundred_waiters_are_served_ten_a_window_in_order() -> None:
    """Exactly ten a window, in order of arrival, and nobody asks before there is room."""
    scope = Scope("alice", Limits(rpm=10))
    async with office() as (one, arrive):
        for number in range(100):
            await arrive(f"{number:02}", scope)
        assert len(one.served) == 10
        assert one.waiting == 90
        for window in range(1, 10):
            asked = one.backend.asked
            one.clock.advance(59.999_999)
            await one.quiet()
            assert one.backend.asked == asked, "somebody asked before there was room"
            one.clock.advance(0.000_001)
            await one.quiet()
            assert len(one.served) == 10 * (window + 1)
            # Each of the ten asked once, and the next one, who learnt when to come back.
            assert one.backend.asked - asked <= 11
        assert one.names == sorted(one.names)


async def test_r18_the_deadline_is_exact_and_tells_of_the_limit() -> None:
    """At the deadline, not before and not after, also for those who never were the first."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("full", scope, tokens=10)
        await arrive("first", scope, tokens=10, wait=30)
        await arrive("second", scope, tokens=3, wait=20)
        asked = one.backend.asked
        one.clock.advance(19.999_999)
        await one.quiet()
        assert not one.refused
        one.clock.advance(0.000_001)
        await one.quiet()
        at, refusal = one.refused.pop("second")
        assert at == 20.0
        assert [(denial.asked, denial.limit.metric) for denial in refusal.denials] == [
            (3, "tokens")
        ]
        assert refusal.retry_after == 40.0, "R3: from now on, not from when the first was refused"
        assert one.backend.asked == asked, "whoever gives up behind the first need not ask"
        one.clock.advance(10)
        await one.quiet()
        at, refusal = one.refused["first"]
        assert (at, refusal.retry_after) == (30.0, 30.0)


@pytest.mark.parametrize(
    ("limits", "asks"),
    [(Limits(tpm=10), {"tokens": 11}), (Limits(tpm=0), {}), (Limits(concurrency=0), {})],
)
async def test_r18_refuses_at_once_where_waiting_cannot_help(
    limits: Limits, asks: dict[str, int]
) -> None:
    """An ask that the limit can never hold."""
    async with office() as (one, arrive):
        await arrive("never", Scope("alice", limits), **asks)
        at, refusal = one.refused["never"]
        assert at == 0.0
        assert not refusal.retryable


async def test_r18_refuses_at_once_behind_others_what_never_fits() -> None:
    """Nor does it wait behind others; and who gives up behind them is told of its own ask."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("full", scope, tokens=9)
        await arrive("first", scope, tokens=5)
        await arrive("never", scope, tokens=11)
        at, refusal = one.refused["never"]
        assert at == 0.0
        assert not refusal.retryable
        await arrive("fits", scope, tokens=1, wait=5)
        one.clock.advance(5)
        await one.quiet()
        at, refusal = one.refused["fits"]
        (denial,) = refusal.denials
        assert (at, denial.asked, denial.used, refusal.retry_after) == (5.0, 1, 9, 55.0)
        assert denial.reset_after == 55.0
        one.clock.advance(55)
        await one.quiet()


async def test_r18_room_that_this_process_frees_goes_to_the_first_alone() -> None:
    """A slot that is given back wakes one; a settlement that gives nothing back wakes nobody."""
    scope = Scope("alice", Limits(concurrency=1, tpm=100))
    async with office() as (one, arrive):
        for name in ("a", "b", "c"):
            await arrive(name, scope)
        assert one.names == ["a"]
        asked = one.backend.asked
        await one.held["a"].settle_success(1)
        await one.quiet()
        assert one.names == ["a", "b"]
        assert one.backend.asked - asked == 2  # b had room, c learnt that there is none
        await one.held["b"].cancel()
        await one.quiet()
        assert one.names == ["a", "b", "c"]


async def test_r18_a_settlement_that_frees_nothing_wakes_nobody() -> None:
    """Nobody is woken without room."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("a", scope, tokens=10)
        await arrive("b", scope, tokens=1)
        asked = one.backend.asked
        await one.held["a"].settle_success(15)
        await one.quiet()
        assert one.backend.asked == asked
        assert one.waiting == 1
        one.clock.advance(60)
        await one.quiet()


async def test_r18_tokens_given_back_and_a_reset_wake_the_first() -> None:
    """What frees room in the same window."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("a", scope, tokens=10)
        await arrive("b", scope, tokens=6)
        await one.held["a"].settle_success(4)
        await one.quiet()
        assert one.names == ["a", "b"]
        await arrive("c", scope, tokens=8)
        await one.limiter.reset(scope)
        await one.quiet()
        assert one.names == ["a", "b", "c"]


async def test_r18_a_slot_whose_lease_lapses_is_asked_for_now_and_then() -> None:
    """No clock promises a slot: the first asks again every so often."""
    scope = Scope("alice", Limits(concurrency=1))
    async with office() as (one, arrive):
        held = await one.limiter.pre_commit(scope, lease=1)
        await arrive("a", scope)
        asked = one.backend.asked
        for _ in range(9):
            one.clock.advance(SLOT_PAUSE)
            await one.quiet()
        assert not one.served
        assert one.backend.asked - asked <= 9
        one.clock.advance(SLOT_PAUSE)
        await one.quiet()
        assert one.names == ["a"]
        assert await held.abandon()


@pytest.mark.parametrize("leaves", ["first", "second", "third"])
async def test_r18_a_waiter_that_is_cancelled_disturbs_none(leaves: str) -> None:
    """Whoever leaves, the others keep their order, and nothing was taken by the one that left."""
    scope = Scope("alice", Limits(rpm=2))
    async with office() as (one, arrive):
        for name in ("x", "y", "first", "second", "third"):
            await arrive(name, scope)
        one.doors[leaves].cancel()
        await one.quiet()
        one.clock.advance(60)
        await one.quiet()
        left = [name for name in ("first", "second", "third") if name != leaves]
        assert one.served[2:] == [(name, 60.0) for name in left]
        (status,) = await one.limiter.peek(scope)
        assert status["requests"].used == 2


@pytest.mark.parametrize("turns", range(9))
@pytest.mark.parametrize("leaves", ["first", "second", "third"])
async def test_r18_one_that_leaves_while_the_first_asks_gives_its_room_on(
    leaves: str, turns: int
) -> None:
    """R16: before the message is on its way, after it has arrived, with its answer there: the others have the room."""
    scope = Scope("alice", Limits(rpm=2))
    async with office() as (one, arrive):
        for name in ("x", "y", "first", "second", "third"):
            await arrive(name, scope)
        asked = one.backend.asked
        one.clock.advance(60)
        await one.asks(asked)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        one.doors[leaves].cancel()
        await one.quiet()
        left = [name for name in ("first", "second", "third") if name != leaves or name in one.held]
        assert one.served[2:] == [(name, 60.0) for name in left[:2]]
        (status,) = await one.limiter.peek(scope)
        assert status["requests"].used == 2
        one.clock.advance(60)


@pytest.mark.parametrize("seed", range(3))
async def test_r18_any_of_a_hundred_may_leave(seed: int) -> None:
    """R16: the first, the last and others leave in every window; ten others are served in it, in order."""
    scope = Scope("alice", Limits(rpm=10))
    leaving = random.Random(seed)
    async with office() as (one, arrive):
        waiting = [f"{number:02}" for number in range(100)]
        for name in waiting:
            await arrive(name, scope)
        served, waiting = waiting[:10], waiting[10:]
        while waiting:
            for name in sorted({waiting[0], waiting[-1], *leaving.choices(waiting, k=3)}):
                waiting.remove(name)
                one.doors[name].cancel()
            await one.quiet()
            assert one.waiting == len(waiting)
            asked, before = one.backend.asked, served
            one.clock.advance(60)
            await one.quiet()
            assert one.backend.asked - asked <= 11
            served, waiting = served + waiting[:10], waiting[10:]
            assert one.names == served
            (status,) = await one.limiter.peek(scope)
            assert status["requests"].used == len(served) - len(before)


async def test_r18_who_does_not_wait_is_judged_at_once_and_may_pass() -> None:
    """A small ask fits where the first in the queue does not."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("a", scope, tokens=5)
        await arrive("big", scope, tokens=8)
        small = await one.limiter.pre_commit(scope, tokens=5)
        await small.abandon()
        with pytest.raises(RateLimited):
            await one.limiter.pre_commit(scope, tokens=1, wait=0)
        one.clock.advance(60)
        await one.quiet()
        assert one.names == ["a", "big"]


async def test_r18_other_scope_sets_have_queues_of_their_own() -> None:
    """Waiting for one key does not make one wait for another."""
    alice, bob = Scope("alice", Limits(rpm=1)), Scope("bob", Limits(rpm=1))
    async with office() as (one, arrive):
        await arrive("a", alice)
        await arrive("waits", alice)
        await arrive("b", bob)
        assert one.names == ["a", "b"]
        one.clock.advance(60)
        await one.quiet()


async def test_r18_nothing_is_held_while_one_waits() -> None:
    """Not even of the scopes that have room."""
    full, free = Scope("full", Limits(rpm=1)), Scope("free", Limits(rpm=5, concurrency=1))
    async with office() as (one, arrive):
        await arrive("a", full)
        await arrive("waits", full, free)
        (status,) = await one.limiter.peek(free)
        assert (status["requests"].used, status["concurrency"].used) == (0, 0)
        one.clock.advance(60)
        await one.quiet()


async def test_r18_a_waiter_asks_with_its_request_id() -> None:
    """R9 holds for those who waited: the same id again is the same reservation."""
    scope = Scope("alice", Limits(rpm=1))
    async with office() as (one, arrive):
        await arrive("a", scope)
        await arrive("b", scope, request_id="mine")
        one.clock.advance(60)
        await one.quiet()
        assert await one.limiter.pre_commit(scope, request_id="mine", wait=5) is one.held["b"]


async def test_r18_for_slots_it_is_asked_every_100_ms_at_most() -> None:
    """However many wait, and however finely time passes; a slot that is given back is asked for at once."""
    scope = Scope("alice", Limits(concurrency=1))
    async with office() as (one, arrive):
        for name in ("has", "a", "b", "c"):
            await arrive(name, scope)
        before = one.backend.asked
        for _ in range(100):
            one.clock.advance(0.01)
            await one.quiet()
        times = [round(at * 1_000_000) for at in one.backend.asked_at[before - 1 :]]
        assert len(times) > 5
        assert all(later - at >= 100_000 for at, later in itertools.pairwise(times))
        one.clock.advance(0.01)
        await one.held["has"].close_reserved_only()
        await one.quiet()
        assert one.served[1:] == [("a", 1.01)]
        for name in ("a", "b"):
            await one.held[name].close_reserved_only()
            await one.quiet()
        assert one.names == ["has", "a", "b", "c"]


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "5", True])
async def test_a_wait_is_a_number_of_seconds(wait: Any) -> None:
    """R12: a bad number is an error before anything is asked."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    with pytest.raises(ValueError, match="wait must be a number of seconds"):
        await limiter.pre_commit(Scope("alice", Limits(rpm=1)), wait=wait)
