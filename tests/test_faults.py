"""`FaultyBackend` and `fake_redis_backend`: what a gateway has to live with, played on purpose."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from earmark import (
    BackendUnavailable,
    Event,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    Reservation,
    Scope,
)
from earmark.testing import (
    CONTRACT,
    LOST,
    LOST_REPLY,
    FaultyBackend,
    ManualClock,
    check_backend,
    fake_redis_backend,
    slow,
    timeout_after_apply,
)
from tests.rows import quiet
from tests.streams.toys import DONE, USAGE, Source, Toy
from tests.suspending import quiesce

pytestmark = pytest.mark.anyio

WIDE = Scope("key", Limits(rpm=60, tpm=100, concurrency=2))


class World:
    """A limiter on a faulty backend, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = FaultyBackend(MemoryBackend(clock=self.clock))
        self.events: list[Event] = []
        self.limiter = Limiter(self.backend, observers=[self.events.append])

    async def used(self) -> list[int]:
        """What is used of requests, tokens and slots."""
        (status,) = await self.limiter.peek(WIDE)
        return [one.used for one in status.limits]


async def test_without_a_script_it_changes_nothing() -> None:
    """A wrapper through which every message goes passes the contract, on both event loops."""

    def make(**options: Any) -> FaultyBackend:
        return FaultyBackend(MemoryBackend(**options))

    await check_backend(make, CONTRACT[::3])


@pytest.mark.parametrize("fault", [LOST, LOST_REPLY])
async def test_c56_a_reserve_that_is_lost_leaves_nothing(fault: Any) -> None:
    """C56, R9: whether it was applied is unknown, so it is taken back by its id, and the caller hears of the fault."""
    world = World()
    world.backend.script("reserve", fault)
    with pytest.raises(ConnectionError):
        await world.limiter.pre_commit(WIDE, tokens=40)
    assert world.backend.applied["reserve"] == fault.applied
    assert await world.used() == [0, 0, 0]


async def test_c24_a_settlement_whose_reply_is_lost_counts_once() -> None:
    """C24, R5: it may be tried again: the store has it, and says False."""
    world = World()
    reservation = await world.limiter.pre_commit(WIDE, tokens=40)
    world.backend.script("resolve", LOST_REPLY)
    with pytest.raises(ConnectionError):
        await reservation.settle_success(10)
    assert await world.used() == [1, 10, 0]
    assert await reservation.settle_success(10) is False
    assert await world.used() == [1, 10, 0]


async def test_c24_its_state_is_what_the_first_try_made_of_it() -> None:
    """C24, R5: the answer False means that the reservation was over, by this very caller's first call."""
    world = World()
    reservation = await world.limiter.pre_commit(WIDE, tokens=40)
    world.backend.script("resolve", LOST_REPLY)
    with pytest.raises(ConnectionError):
        await reservation.settle_success(10)
    states: list[str] = [reservation.state]
    assert await reservation.close_reserved_only() is False
    states.append(reservation.state)
    assert states == ["open", "settled"]
    assert [(event.kind, dict(event.used)) for event in world.events] == [
        ("admitted", {}),
        ("settled", {"tokens": 10}),
    ]


async def test_r5_whose_try_it_was_is_not_guessed() -> None:
    """R5: two different tries failed, or another process knows of it: nobody here says how it was resolved."""
    world = World()
    tried_twice = await world.limiter.pre_commit(WIDE, tokens=40)
    known = await world.limiter.pre_commit(WIDE, tokens=40, request_id="known")
    world.backend.script("resolve", LOST_REPLY, LOST, LOST_REPLY)
    for call in (tried_twice.settle_success(10), tried_twice.cancel(), known.settle_success(10)):
        with pytest.raises(ConnectionError):
            await call
    for one in (tried_twice, known):
        assert await one.close_reserved_only() is False
        assert one.state == "abandoned"
    assert [event.kind for event in world.events] == ["admitted", "admitted"]


async def block(reservation: Reservation) -> None:
    async with reservation:
        pass


@pytest.mark.parametrize("fault", [LOST, LOST_REPLY], ids=["lost", "reply lost"])
@pytest.mark.parametrize("how", ["settled", "block", "stream"])
async def test_r15_who_could_not_resolve_it_is_not_told_off(
    fault: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R15: its settlement has failed, and that was said: dropped, it is resolved as was tried, without a warning."""
    monkeypatch.setattr("earmark.streams.loops.logger.disabled", True)  # a record keeps the error
    world = World()
    world.backend.script("resolve", fault)
    reservation = await world.limiter.pre_commit(WIDE, tokens=40)
    if how == "stream":
        assert [item async for item in reservation.stream(Source([USAGE, DONE]), dialect=Toy)]
    else:
        with pytest.raises(ConnectionError):
            await (reservation.settle_success(12) if how == "settled" else block(reservation))
    await quiesce()  # until then callbacks have the error, and its traceback the handle
    with quiet():
        del reservation
    assert await world.used() == [1, 40 if how == "block" else 12, 0]
    kind = "closed" if how == "block" else "settled"
    assert [event.kind for event in world.events] == ["admitted", kind]


async def test_c24_a_settlement_that_is_lost_is_tried_again() -> None:
    """C24: the reservation is open still, and the second try counts."""
    world = World()
    reservation = await world.limiter.pre_commit(WIDE, tokens=40)
    world.backend.script("resolve", LOST, None)
    with pytest.raises(ConnectionError):
        await reservation.settle_success(10)
    assert await world.used() == [1, 40, 1]
    assert await reservation.settle_success(10) is True
    assert await world.used() == [1, 10, 0]


async def test_c56_an_addition_with_an_id_is_sent_again() -> None:
    """C56, R8: the reply of the first was lost; under its id it counts once."""
    world = World()
    world.backend.script("add", LOST_REPLY)
    with pytest.raises(ConnectionError):
        await world.limiter.add_tokens_post_stream(WIDE, 30, request_id="p")
    await world.limiter.add_tokens_post_stream(WIDE, 30, request_id="p")
    assert await world.used() == [0, 30, 0]
    assert world.backend.applied["add"] == 2


async def test_a_timeout_after_apply_is_told_when_its_time_is_over() -> None:
    """The store has it at once; the caller waits for the clock, gives up, and what was taken is taken back."""
    world = World()
    world.backend.script("reserve", timeout_after_apply(5))
    told: list[str] = []

    async def ask() -> None:
        try:
            await world.limiter.pre_commit(WIDE, tokens=40)
        except TimeoutError:
            told.append("timeout")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await quiesce()
        assert await world.used() == [1, 40, 1]
        world.clock.advance(4.999999)
        await quiesce()
        assert told == []
        world.clock.advance(0.000001)
    assert told == ["timeout"]
    assert await world.used() == [0, 0, 0]


async def test_a_slow_message_is_judged_when_it_arrives() -> None:
    """It takes two seconds to the store, and then the window of the one before it is over."""
    world = World()
    world.clock.set(59)
    full = Scope("key", Limits(tpm=100))
    await (await world.limiter.pre_commit(full, tokens=100)).close_reserved_only()
    world.backend.script("reserve", slow(2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(take, world.limiter, full))
        await quiesce()
        world.clock.advance(2)
    (status,) = await world.limiter.peek(full)
    assert status["tokens"].used == 70


async def take(limiter: Limiter, scope: Scope) -> None:
    """Take 70 tokens and keep them."""
    await (await limiter.pre_commit(scope, tokens=70)).close_reserved_only()


async def test_c57_an_outage_and_its_end() -> None:
    """C57: nothing reaches the store, every message says so, and afterwards the counts are as they were."""
    world = World()
    reservation = await world.limiter.pre_commit(WIDE, tokens=40)
    world.backend.go_down("maintenance")
    health = world.limiter.health()
    assert (health.available, health.reason) == (False, "maintenance")
    for call in (world.limiter.pre_commit, world.limiter.peek, world.limiter.reset):
        with pytest.raises(BackendUnavailable, match="maintenance"):
            await call(WIDE)
    with pytest.raises(BackendUnavailable):
        await reservation.settle_success(10)
    world.backend.recover()
    assert world.limiter.health().available
    assert await world.used() == [1, 40, 1]
    assert await reservation.settle_success(10) is True
    assert await world.used() == [1, 10, 0]


async def test_a_refusal_can_be_lost_as_well() -> None:
    """A refusal is an answer; whoever does not hear it hears of the fault, and nothing was counted."""
    world = World()
    world.backend.script("reserve", LOST_REPLY)
    with pytest.raises(ConnectionError):
        await world.limiter.pre_commit(WIDE, tokens=1_000)
    with pytest.raises(RateLimited):
        await world.limiter.pre_commit(WIDE, tokens=1_000)
    assert await world.used() == [0, 0, 0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_fake_redis_passes_the_contract() -> None:
    """The real backend with its real scripts on a fake server; tests/redis/test_contract.py plays all of it."""
    await check_backend(fake_redis_backend, CONTRACT[::20])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_b50_two_fake_backends_share_a_server() -> None:
    """B50: as two processes do."""
    import fakeredis

    server, clock = fakeredis.FakeServer(), ManualClock()
    one = Limiter(fake_redis_backend(clock=clock, server=server))
    other = Limiter(fake_redis_backend(clock=clock, server=server))
    async with one, other:
        reservation = await one.pre_commit(WIDE, tokens=90)
        with pytest.raises(RateLimited):
            await other.pre_commit(WIDE, tokens=20)
        await reservation.cancel()
        await (await other.pre_commit(WIDE, tokens=20)).cancel()


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
async def test_a_fake_redis_says_what_it_needs(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Lua every message would fail, and be logged: it is said where the backend is made."""
    monkeypatch.setattr(
        "earmark.testing.fakes.find_spec", lambda name: None if name == missing else name
    )
    with pytest.raises(ImportError, match=rf"needs {missing}: pip install 'fakeredis\[lua\]'"):
        fake_redis_backend()


async def test_a_script_for_no_message_is_a_mistake() -> None:
    """A name that no message has would never go wrong, and whatever is then tested passes."""
    backend: Any = FaultyBackend(MemoryBackend())
    with pytest.raises(ValueError, match=r"'resrve' is no message: .*add, peek, renew, reserve"):
        backend.script("resrve", LOST)
