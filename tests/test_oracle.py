"""The oracle hears what cannot be, and is silent about what can (R1, R5, R7, R9, R15)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings

from earmark import Event, Limiter, Limits, MemoryBackend, RateLimited, Scope
from earmark.testing import ManualClock
from earmark.testing.faults import LOST_REPLY, FaultyBackend
from earmark.testing.histories.drawing import histories
from earmark.testing.histories.driver import Driver
from earmark.testing.histories.gateway import Gateway
from earmark.testing.histories.steps import Amend, Enforce, History
from earmark.testing.histories.translation import scope_of
from earmark.testing.oracle import InvariantBroken, Oracle
from tests.mutants import AdmitsAtTheLimit, CancelKeepsTheSlot, FreesAnothersSlot
from tests.scale import examples
from tests.streams.toys import SAY, Source, Toy

pytestmark = pytest.mark.anyio

ALICE = Scope("alice", Limits(rpm=5, tpm=100, concurrency=1))


class World:
    """A limiter with an oracle."""

    def __init__(self, make: Any = MemoryBackend) -> None:
        self.clock = ManualClock()
        self.oracle = Oracle(ALICE, clock=self.clock)
        self.limiter = Limiter(make(clock=self.clock), observers=[self.oracle])


async def test_a_sound_limiter_is_heard_in_silence() -> None:
    """Admitted, refused, settled, cancelled, over several windows: nothing is wrong."""
    world = World()
    for minute in range(3):
        world.clock.set(60 * minute)
        for _ in range(4):
            async with await world.limiter.pre_commit(ALICE, tokens=20) as reservation:
                with pytest.raises(RateLimited):
                    await world.limiter.pre_commit(ALICE)
                await reservation.settle_success(25)
        with pytest.raises(RateLimited):
            await world.limiter.pre_commit(ALICE)
        world.oracle.check()
    await world.oracle.finish(world.limiter)


async def test_c31_many_at_once_are_heard_in_silence() -> None:
    """C31: callers that hear of their answers in another order than they were given are no fault."""
    world = World(lambda **options: FaultyBackend(MemoryBackend(**options)))

    async def use() -> None:
        for _ in range(5):
            try:
                reservation = await world.limiter.pre_commit(ALICE, tokens=1)
            except RateLimited:
                await anyio.lowlevel.checkpoint()
                continue
            await reservation.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(use)
    await world.oracle.finish(world.limiter)


async def test_r1_an_admission_over_a_limit() -> None:
    """R1: a backend that admits at the limit is heard of by the limit, and by what was used and asked."""
    world = World(AdmitsAtTheLimit)
    await (await world.limiter.pre_commit(ALICE, tokens=100)).close_reserved_only()
    await (await world.limiter.pre_commit(ALICE)).close_reserved_only()
    with pytest.raises(InvariantBroken) as caught:
        world.oracle.check()
    assert str(caught.value).partition(" ")[2] == (
        "was admitted over a limit (R1): 'alice', tokens of 100 in 60 s (fixed_window): 100 used, 0 asked"
    )


async def test_r1_a_slot_that_another_holds() -> None:
    """R1, C5: a late release frees the slot of somebody else, and a third is admitted beside him."""
    world = World(FreesAnothersSlot)
    late = await world.limiter.pre_commit(ALICE)
    world.clock.set(60)
    held = await world.limiter.pre_commit(ALICE)
    await late.close_reserved_only()
    third = await world.limiter.pre_commit(ALICE)
    with pytest.raises(InvariantBroken, match=r"over a limit \(R1\).*concurrency"):
        world.oracle.check()
    await held.cancel()
    await third.cancel()


async def test_r15_what_is_left_open() -> None:
    """R15: a reservation that nobody resolves is a leak of the gateway's, and named."""
    world = World()
    reservation = await world.limiter.pre_commit(ALICE, request_id="left")
    assert world.oracle.open == ("left",)
    world.oracle.check()
    with pytest.raises(InvariantBroken, match=r"'left' was admitted and never resolved") as caught:
        await world.oracle.finish(world.limiter)
    assert "1 slots are held" in str(caught.value)
    await reservation.cancel()
    await world.oracle.finish(world.limiter)


@pytest.mark.parametrize("message", [False, True], ids=["none", "a message between"])
async def test_r15_what_is_dropped(message: bool) -> None:
    """R15: whether it was collected before another message came, or is found only at the end, it is the same fault."""
    world = World()
    with pytest.warns(ResourceWarning):
        await world.limiter.pre_commit(ALICE, tokens=5, request_id="lost")
    if message:
        await (await world.limiter.pre_commit(ALICE)).cancel()
    for _ in range(2):
        with pytest.raises(InvariantBroken) as caught:
            await world.oracle.finish(world.limiter)
        assert (
            str(caught.value) == "'lost' was dropped while open (R15): alice, which asked 5 tokens"
        )


async def test_r15_what_is_left_by_its_generator_is_not_dropped() -> None:
    """R15, C42: a block that is left by `aclose` is abandoned, as it should be; so is a stream that is dropped."""
    world = World()

    async def body() -> AsyncGenerator[None]:
        async with await world.limiter.pre_commit(ALICE):
            yield

    generator = body()
    await anext(generator)
    await generator.aclose()
    stream = (await world.limiter.pre_commit(ALICE)).stream(Source([SAY]), dialect=Toy)
    assert await anext(stream) == SAY
    del stream
    await world.oracle.finish(world.limiter)


async def test_c24_a_settlement_whose_reply_is_lost_is_heard() -> None:
    """C24, R5: `FaultyBackend` and the oracle in one test: the gateway calls again, and all is well."""
    clock = ManualClock()
    backend = FaultyBackend(MemoryBackend(clock=clock))
    oracle = Oracle(ALICE, clock=clock)
    limiter = Limiter(backend, observers=[oracle])
    reservation = await limiter.pre_commit(ALICE, tokens=50)
    backend.script("resolve", LOST_REPLY)
    with pytest.raises(ConnectionError):
        await reservation.settle_success(7)
    assert not await reservation.settle_success(7)
    await oracle.finish(limiter)


async def test_r7_a_slot_that_nobody_holds() -> None:
    """R7: cancelled, and the slot is held still."""
    world = World(CancelKeepsTheSlot)
    await (await world.limiter.pre_commit(ALICE)).cancel()
    with pytest.raises(InvariantBroken, match="1 slots are held by nobody"):
        await world.oracle.finish(world.limiter)


@pytest.mark.parametrize(
    ("kinds", "match"),
    [
        (("admitted", "settled", "settled"), r"'q' is settled a second time \(R5\)"),
        (("admitted", "settled", "cancelled"), r"'q' is cancelled a second time \(R5\)"),
        (("closed",), r"'q' is closed and was never admitted \(R5\)"),
        (("admitted", "admitted"), r"'q' was admitted again while it is open \(R9\)"),
    ],
)
async def test_r5_what_is_told_twice(kinds: tuple[Any, ...], match: str) -> None:
    """R5, R9: one admission, one resolution."""
    oracle = Oracle(clock=ManualClock())
    for kind in kinds:
        oracle(Event(kind, "q", ("key",)))
    with pytest.raises(InvariantBroken, match=match):
        oracle.check()


async def test_a_reset_is_told_by_the_test() -> None:
    """No observer hears of a reset: the oracle is told."""
    world = World()
    await (await world.limiter.pre_commit(ALICE, tokens=90)).close_reserved_only()
    await world.limiter.reset(ALICE)
    world.oracle.forgive(ALICE)
    await (await world.limiter.pre_commit(ALICE, tokens=90)).close_reserved_only()
    await world.oracle.finish(world.limiter)


async def test_b41_attempts_of_one_request() -> None:
    """B41: `once` is heard as what it is: the user's hold, and each target's."""
    world = World()
    target = Scope("target", Limits(tpm=100))
    async with world.limiter.once(ALICE, tokens=5) as once:
        await (await once.attempt(target)).cancel()
        await (await once.attempt(target)).settle_success(4)
    await world.oracle.finish(world.limiter)


class Watched(Gateway):
    """A gateway that an oracle watches."""

    def __init__(self, clock: ManualClock, history: History) -> None:
        super().__init__(MemoryBackend(clock=clock))
        scopes = tuple(map(scope_of, history.offers))
        self.oracle = Oracle(*scopes, clock=clock, lease=1e-6, drops=True)
        self.limiter = Limiter(self.backend, observers=[self.oracle])

    async def reset(self, *scopes: Scope) -> None:
        self.oracle.forgive(*scopes)
        await super().reset(*scopes)


@settings(max_examples=examples(60))
@given(histories(30))
def test_no_history_of_a_sound_limiter_is_a_fault(history: History) -> None:
    """R1-R12: whatever happens to a sound limiter, the oracle has nothing to say."""
    steady = tuple(step for step in history.steps if not isinstance(step, Amend | Enforce))
    made: list[Watched] = []

    def watched(clock: ManualClock) -> Watched:
        made.append(Watched(clock, history))
        return made[0]

    Driver(history.offers, watched).run(steady)
    made[0].oracle.check()
