"""R18: waiting for room, in order of arrival per scope set, on the memory backend, on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark import Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope
from earmark.testing import ManualClock
from earmark.waiting import SLOT_PAUSE

pytestmark = pytest.mark.anyio

TURNS = 60  # checkpoints after which whatever was woken has run


class Counting:
    """A memory backend that counts how often it is asked."""

    instant = None

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryBackend(clock=clock)
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def reserve(self, hold: Any) -> Any:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        return await self.inner.reserve(hold)


@dataclass
class Office:
    """A limiter on a clock that stands still, and those who queue at it."""

    clock: ManualClock = field(default_factory=ManualClock)
    served: list[tuple[str, float]] = field(default_factory=list)
    held: dict[str, Reservation] = field(default_factory=dict)
    refused: dict[str, tuple[float, RateLimited]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend = Counting(self.clock)
        store: Any = self.backend
        self.limiter = Limiter(store)

    async def visit(self, name: str, *scopes: Scope, wait: float, **asks: Any) -> None:
        """Wait for room, and keep what was had."""
        try:
            reservation = await self.limiter.pre_commit(*scopes, wait=wait, **asks)
        except RateLimited as refusal:
            self.refused[name] = (self.clock(), refusal)
        else:
            self.served.append((name, self.clock()))
            self.held[name] = reservation

    @property
    def waiting(self) -> int:
        return len(self.backend.desk.queues)

    async def close(self) -> None:
        for reservation in self.held.values():
            await reservation.abandon()
        assert not self.waiting


async def quiet() -> None:
    """Let everything run that can."""
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def office() -> AsyncIterator[tuple[Office, Callable[..., Any]]]:
    """An office, and how one sends a visitor there who arrives before anything else happens."""
    one = Office()
    async with anyio.create_task_group() as group:

        async def arrive(name: str, *scopes: Scope, wait: float = 3_600, **asks: Any) -> None:
            async def visit() -> None:
                await one.visit(name, *scopes, wait=wait, **asks)

            group.start_soon(visit)
            await quiet()

        yield one, arrive
        await quiet()
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
            await quiet()
            assert one.backend.asked == asked, "somebody asked before there was room"
            one.clock.advance(0.000_001)
            for _ in range(20):
                await quiet()
            assert len(one.served) == 10 * (window + 1)
            # Each of the ten asked once, and the next one, who learnt when to come back.
            assert one.backend.asked - asked <= 11
        names = [name for name, _ in one.served]
        assert names == sorted(names)


async def test_r18_the_deadline_is_exact_and_tells_of_the_limit() -> None:
    """At the deadline, not before and not after, also for those who never were the first."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("full", scope, tokens=10)
        await arrive("first", scope, tokens=10, wait=30)
        await arrive("second", scope, tokens=3, wait=20)
        asked = one.backend.asked
        one.clock.advance(19.999_999)
        await quiet()
        assert not one.refused
        one.clock.advance(0.000_001)
        await quiet()
        at, refusal = one.refused.pop("second")
        assert at == 20.0
        assert [(denial.asked, denial.limit.metric) for denial in refusal.denials] == [
            (3, "tokens")
        ]
        assert one.backend.asked == asked, "whoever gives up behind the first need not ask"
        one.clock.advance(10)
        await quiet()
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
        await quiet()
        at, refusal = one.refused["fits"]
        (denial,) = refusal.denials
        assert (at, denial.asked, denial.used, refusal.retry_after) == (5.0, 1, 9, 60.0)
        one.clock.advance(55)
        await quiet()


async def test_r18_room_that_this_process_frees_goes_to_the_first_alone() -> None:
    """A slot that is given back wakes one; a settlement that gives nothing back wakes nobody."""
    scope = Scope("alice", Limits(concurrency=1, tpm=100))
    async with office() as (one, arrive):
        for name in ("a", "b", "c"):
            await arrive(name, scope)
        assert [name for name, _ in one.served] == ["a"]
        asked = one.backend.asked
        await one.held["a"].settle_success(1)
        await quiet()
        assert [name for name, _ in one.served] == ["a", "b"]
        assert one.backend.asked - asked == 2  # b had room, c learnt that there is none
        await one.held["b"].cancel()
        await quiet()
        assert [name for name, _ in one.served] == ["a", "b", "c"]


async def test_r18_a_settlement_that_frees_nothing_wakes_nobody() -> None:
    """Nobody is woken without room."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("a", scope, tokens=10)
        await arrive("b", scope, tokens=1)
        asked = one.backend.asked
        await one.held["a"].settle_success(15)
        await quiet()
        assert one.backend.asked == asked
        assert one.waiting == 1
        one.clock.advance(60)
        await quiet()


async def test_r18_tokens_given_back_and_a_reset_wake_the_first() -> None:
    """What frees room in the same window."""
    scope = Scope("alice", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("a", scope, tokens=10)
        await arrive("b", scope, tokens=6)
        await one.held["a"].settle_success(4)
        await quiet()
        assert [name for name, _ in one.served] == ["a", "b"]
        await arrive("c", scope, tokens=8)
        await one.limiter.reset(scope)
        await quiet()
        assert [name for name, _ in one.served] == ["a", "b", "c"]


async def test_r18_a_slot_whose_lease_lapses_is_asked_for_now_and_then() -> None:
    """No clock promises a slot: the first asks again every so often."""
    scope = Scope("alice", Limits(concurrency=1))
    async with office() as (one, arrive):
        held = await one.limiter.pre_commit(scope, lease=1)
        await arrive("a", scope)
        asked = one.backend.asked
        for _ in range(9):
            one.clock.advance(SLOT_PAUSE)
            await quiet()
        assert not one.served
        assert one.backend.asked - asked <= 9
        one.clock.advance(SLOT_PAUSE)
        await quiet()
        assert [name for name, _ in one.served] == ["a"]
        assert await held.abandon()


@pytest.mark.parametrize("leaves", ["first", "second", "third"])
async def test_r18_a_waiter_that_is_cancelled_disturbs_none(leaves: str) -> None:
    """Whoever leaves, the others keep their order, and nothing was taken by the one that left."""
    scope = Scope("alice", Limits(rpm=2))
    async with office() as (one, arrive):
        for name in ("x", "y"):
            await arrive(name, scope)
        scopes: dict[str, anyio.CancelScope] = {}

        async def visit(name: str) -> None:
            with anyio.CancelScope() as scopes[name]:
                await one.visit(name, scope, wait=3_600)

        async with anyio.create_task_group() as group:
            for name in ("first", "second", "third"):
                group.start_soon(visit, name)
                await quiet()
            scopes[leaves].cancel()
            await quiet()
            one.clock.advance(60)
            await quiet()
        left = [name for name in ("first", "second", "third") if name != leaves]
        assert [name for name, _ in one.served] == ["x", "y", *left]
        (status,) = await one.limiter.peek(scope)
        assert status["requests"].used == 2


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
        await quiet()
        assert [name for name, _ in one.served] == ["a", "big"]


async def test_r18_other_scope_sets_have_queues_of_their_own() -> None:
    """Waiting for one key does not make one wait for another."""
    alice, bob = Scope("alice", Limits(rpm=1)), Scope("bob", Limits(rpm=1))
    async with office() as (one, arrive):
        await arrive("a", alice)
        await arrive("waits", alice)
        await arrive("b", bob)
        assert [name for name, _ in one.served] == ["a", "b"]
        one.clock.advance(60)
        await quiet()


async def test_r18_nothing_is_held_while_one_waits() -> None:
    """Not even of the scopes that have room."""
    full, free = Scope("full", Limits(rpm=1)), Scope("free", Limits(rpm=5, concurrency=1))
    async with office() as (one, arrive):
        await arrive("a", full)
        await arrive("waits", full, free)
        (status,) = await one.limiter.peek(free)
        assert (status["requests"].used, status["concurrency"].used) == (0, 0)
        one.clock.advance(60)
        await quiet()


async def test_r18_a_waiter_asks_with_its_request_id() -> None:
    """R9 holds for those who waited: the same id again is the same reservation."""
    scope = Scope("alice", Limits(rpm=1))
    async with office() as (one, arrive):
        await arrive("a", scope)
        await arrive("b", scope, request_id="mine")
        one.clock.advance(60)
        await quiet()
        assert await one.limiter.pre_commit(scope, request_id="mine", wait=5) is one.held["b"]


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "5", True])
async def test_a_wait_is_a_number_of_seconds(wait: Any) -> None:
    """R12: a bad number is an error before anything is asked."""
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    with pytest.raises(ValueError, match="wait must be a number of seconds"):
        await limiter.pre_commit(Scope("alice", Limits(rpm=1)), wait=wait)
