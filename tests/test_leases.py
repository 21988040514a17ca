"""Leases: slots are held under a lease, reservations are kept for an hour (R10, B66)."""

from __future__ import annotations

from typing import Any

import pytest

from earmark import (
    MemoryBackend,
    Scope,
)
from earmark.core.hold import Hold
from earmark.core.joint import Joint
from earmark.ids import next_id
from earmark.testing import ManualClock
from tests.doubles import reachable
from tests.rows import (
    VERBS,
    C,
    Empty,
    R,
    Table,
    Z,
    key,
    resolve,
    used,
)

pytestmark = pytest.mark.anyio

WIDE = key(rpm=60, tpm=100, concurrency=1)


@pytest.mark.parametrize(
    "bad", [0, -1, 0.0000001, float("nan"), float("inf"), True, "60"], ids=repr
)
async def test_r10_a_bad_lease_is_an_error(bad: Any) -> None:
    """A lease is a number of seconds, at least a microsecond; nothing is debited."""
    async with Table() as table:
        with pytest.raises((ValueError, TypeError), match="lease"):
            await table.limiter.pre_commit(WIDE, lease=bad)
        await table.play(Empty())
    with pytest.raises((ValueError, TypeError), match="lease"):
        MemoryBackend(lease=bad)


@pytest.mark.parametrize("verb", VERBS)
async def test_r10_observers_hear_once_of_what_was_given_up(verb: str) -> None:
    """R10: `expired`, and no more than that, whoever comes for it afterwards."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        table.clock.set(3_600)
        assert await resolve(table.handles["r1"], verb) is False
        await table.limiter.peek()  # the next message reports it
        assert table.kinds() == ["admitted", "expired"]
        assert table.events[-1].request_id == "q"


async def test_r10_an_attempt_of_a_once_is_a_message_that_reports_it_too() -> None:
    """R10: where all that a limiter is asked for is attempts, `expired` is told as well."""
    async with Table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        table.clock.set(3_600)
        async with table.limiter.once() as once:
            assert await resolve(table.handles["r1"], "abandon") is False
            await (await once.attempt(WIDE)).cancel()
        assert table.kinds() == ["admitted", "expired", "admitted", "cancelled"]


async def test_r10_what_nobody_resolves_is_forgotten() -> None:
    """R10, R14: an hour and two days later nothing is left of a thousand dead holders, resets included."""
    scope = key(concurrency=1_000, tpd=10_000, rpm=5_000)
    async with Table() as table:
        fresh = len(reachable(table.backend))
        await table.play(*(R(f"r{n}", scope, tok=1, request_id=f"q{n}") for n in range(1_000)))
        await table.play(used("key.conc", 0, at=60), used("key.tpd", 1_000), Z(scope))
        assert len(reachable(table.backend)) - fresh > 5_000
        await table.play(Empty(at=2 * 86_400))
        await table.limiter.peek()  # the next message reports what the backend gave up
        assert table.kinds().count("expired") == 1_000
        for handle in table.handles.values():
            assert await handle.abandon() is False
        assert len(reachable(table.backend)) - fresh < 50


async def test_b66_a_call_of_three_leases_keeps_its_slot() -> None:
    """B66: inside `async with` a reservation renews itself; a bare handle beside it does not."""
    two = key(concurrency=2, tpd=100)
    async with Table(lease=30) as table:
        await table.play(R("bare", two))
        async with await table.limiter.pre_commit(two, tokens=40) as reservation:
            await table.play(
                *(R(f"r{at}", two, at=at, deny="key.conc") for at in (0, 10, 29)),
                R("other", two, at=30),
                R("r35", two, at=35, deny="key.conc"),
                C("other"),
                used("key.conc", 1, at=90),
                R("r90", two),
                R("r91", two, at=91, deny="key.conc"),
            )
            assert await reservation.renew() is True
            assert await reservation.settle_success(25) is True
        await table.play(used("key.conc", 1), used("key.tpd", 25))


async def test_r10_a_reservation_at_work_is_never_forgotten() -> None:
    """R10: a call of many hours inside `async with` is as resolvable as one of a second."""
    scope = key(concurrency=1, tpd=100)
    async with Table() as table:
        async with await table.limiter.pre_commit(scope, tokens=40) as reservation:
            for hour in range(1, 9):
                await table.play(used("key.conc", 1, at=3_600 * hour, scope=scope))
            assert await reservation.settle_success(25) is True
        await table.play(used("key.tpd", 25), used("key.conc", 0))
        assert table.kinds() == ["admitted", "settled"]


async def test_r10_a_reservation_at_work_survives_one_idle_jump() -> None:
    """R10: the same where no message came in between: its holder lives, so it is open."""
    scope = key(concurrency=1, tpd=100)
    async with Table() as table:
        async with await table.limiter.pre_commit(scope, tokens=40) as reservation:
            table.clock.set(50_000)
            assert await reservation.settle_success(25) is True
        await table.play(used("key.tpd", 25, scope=scope), used("key.conc", 0))


SLOTLESS = key("user", tpm=100), key("provider", tpm=100)
SLOTTED = key("user", tpm=100, concurrency=1), key("provider", tpm=100, concurrency=1)


@pytest.mark.parametrize("user", [SLOTLESS[0], SLOTTED[0]], ids=["slotless", "slotted"])
@pytest.mark.parametrize("provider", [SLOTLESS[1], SLOTTED[1]], ids=["slotless", "slotted"])
@pytest.mark.parametrize("attended_one", [0, 1], ids=["user attended", "provider attended"])
async def test_r10_each_part_of_a_joint_hold_has_the_slots_of_its_own_scopes(
    user: Scope, provider: Scope, attended_one: int
) -> None:
    """R10: it frees these alone, and they alone make its lease matter."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock, lease=60.0)
    fresh = backend.size()
    scopes = (user, provider)
    for attended in (False, True):
        parts = [_hold(user), _hold(provider)]
        assert await backend.reserve(Joint(*parts)) is not None
        taken = [int(scope in SLOTTED) for scope in scopes]
        assert await _slots(backend, *scopes) == taken
        if attended:
            backend.attend(parts[attended_one])
        clock.advance(61.0)
        lapsed = [scope in SLOTTED for scope in scopes]
        if attended:
            lapsed[attended_one] = False
        assert await _slots(backend, *scopes) == [
            int(has and not lost) for has, lost in zip(taken, lapsed, strict=True)
        ]
        assert await backend.renew(parts) == [not lost for lost in lapsed]
        for part in parts:
            assert await backend.resolve(part, "cancel", {}, {})
            assert await _slots(backend, *part.scopes) == [0]
    clock.advance(120.0)
    assert backend.size() == fresh


def _hold(scope: Scope) -> Hold:
    hold = Hold()
    hold.id, hold.request_id, hold.scopes = next_id(), None, (scope,)
    hold.asks, hold.lease_us = {"tokens": 1}, None
    return hold


async def _slots(backend: MemoryBackend, *scopes: Scope) -> list[int]:
    """How many slots of each scope are taken."""
    seen = iter((await backend.peek(scopes)).states)
    return [
        sum(
            state
            for limit, state in zip(scope.limits, seen, strict=False)
            if limit.metric == "concurrency"
        )
        for scope in scopes
    ]
