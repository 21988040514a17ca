"""R18: callers of many scope sets who wait for one limit that they share, on asyncio and trio."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from earmark import Limits, Scope
from earmark.waiting import SLOT_PAUSE
from tests.test_waiting import Office, office

pytestmark = pytest.mark.anyio

TENANTS = 100


def tenant(number: int, rpm: int = 10) -> Scope:
    return Scope(f"tenant:{number:02}", Limits(rpm=rpm))


async def left(one: Office) -> None:
    """Everybody goes."""
    for door in one.doors.values():
        door.cancel()
    await one.quiet()


async def test_r18_a_free_place_that_many_tenants_wait_for_wakes_no_herd() -> None:
    """Each is the first of its own queue: who came first has the place, and one more learns that there is none."""
    model = Scope("model", Limits(concurrency=1))
    async with office() as (one, arrive):
        await arrive("has", model)
        for number in range(TENANTS):
            await arrive(f"{number:02}", tenant(number), model)
        asked = one.backend.asked
        await one.held["has"].close_reserved_only()
        await one.quiet()
        assert one.names == ["has", "00"]
        assert one.backend.asked - asked == 2
        await one.held["00"].close_reserved_only()
        await one.quiet()
        assert one.names == ["has", "00", "01"]
        assert one.backend.asked - asked == 4
        await left(one)


async def test_r18_places_that_are_freed_at_once_are_taken_in_order_of_arrival() -> None:
    """Each wakes one, and nobody is left behind who would have had one."""
    model = Scope("model", Limits(concurrency=10))
    async with office() as (one, arrive):
        for number in range(10):
            await arrive(f"has {number}", model)
        for number in range(TENANTS):
            await arrive(f"{number:02}", tenant(number), model)
        asked = one.backend.asked
        async with anyio.create_task_group() as group:
            for number in range(7):
                group.start_soon(one.held[f"has {number}"].cancel)
        await one.quiet()
        assert sorted(one.names[10:]) == [f"{number:02}" for number in range(7)]
        assert one.backend.asked - asked <= 14
        await left(one)


async def test_r18_room_that_the_first_cannot_use_goes_to_the_next() -> None:
    """It waits for something else as well, or asks for more: there is room for others."""
    model = Scope("model", Limits(tpm=10))
    async with office() as (one, arrive):
        await arrive("has", model, tokens=10)
        await arrive("full", tenant(0, rpm=1))
        await arrive("waits for two", tenant(0, rpm=1), model, tokens=1)
        await arrive("big", tenant(1), model, tokens=8)
        for number in range(2, 20):
            await arrive(f"as big {number}", tenant(number), model, tokens=8)
        await arrive("small", tenant(20), model, tokens=4)
        await arrive("smaller", tenant(21), model, tokens=1)
        await arrive("as small", tenant(22), model, tokens=1)
        asked = one.backend.asked
        await one.held["has"].settle_success(5)
        await one.quiet()
        assert one.names == ["has", "full", "small", "smaller"]
        assert one.backend.asked - asked == 5
        await left(one)


async def test_r18_a_limit_of_another_amount_is_asked_for_all_the_same() -> None:
    """R17: who was refused by a lower amount tells nothing of the others."""
    async with office() as (one, arrive):
        await arrive("has", Scope("model", Limits(tpm=10)), tokens=10)
        await arrive("low", tenant(0), Scope("model", Limits(tpm=5)), tokens=5)
        await arrive("high", tenant(1), Scope("model", Limits(tpm=10)), tokens=5)
        await one.held["has"].settle_success(5)
        await one.quiet()
        assert one.names == ["has", "high"]
        await left(one)


@pytest.mark.parametrize("turns", range(9))
async def test_r16_who_goes_while_it_asks_hands_the_room_on(turns: int) -> None:
    """Cancelled on the way there or back, it leaves the place to the next one, of whatever queue."""
    model = Scope("model", Limits(concurrency=1))
    async with office() as (one, arrive):
        await arrive("has", model)
        for number in range(3):
            await arrive(f"{number:02}", tenant(number), model)
        asked = one.backend.asked
        await one.held["has"].close_reserved_only()
        await one.asks(asked)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        one.doors["00"].cancel()
        await one.quiet()
        assert len(one.names) == 2
        await left(one)


async def test_r18_of_many_tenants_one_asks_for_a_slot_every_100_ms() -> None:
    """And where several have become free elsewhere the first ones have them; who asks may go, and another does."""
    model = Scope("model", Limits(concurrency=3))
    async with office() as (one, arrive):
        held = [await one.limiter.pre_commit(model, lease=1) for _ in range(3)]
        for number in range(TENANTS):
            await arrive(f"{number:02}", tenant(number), model)
        asked = one.backend.asked
        for number in range(9):
            if number in {2, 5}:
                one.doors["00" if number == 2 else "01"].cancel()
                await one.quiet()
            one.clock.advance(SLOT_PAUSE)
            await one.quiet()
        assert not one.served
        assert one.backend.asked - asked <= 10
        one.clock.advance(2 * SLOT_PAUSE)
        await one.quiet()
        assert sorted(one.names) == ["02", "03", "04"]
        assert one.backend.asked - asked <= 20
        for reservation in held:
            await reservation.abandon()
        await left(one)
