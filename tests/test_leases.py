"""Leases: slots are held under a lease, reservations are kept for an hour (R10, B66)."""

from __future__ import annotations

from typing import Any

import pytest

from earmark import (
    MemoryBackend,
    Scope,
)
from tests.doubles import reachable
from tests.rows import (
    VERBS,
    A,
    C,
    Empty,
    N,
    R,
    S,
    See,
    Table,
    X,
    Z,
    key,
    play,
    resolve,
    used,
)

pytestmark = pytest.mark.anyio

WIDE = key(rpm=60, tpm=100, concurrency=1)


@pytest.mark.parametrize(
    ("lease", "end"), [(None, 60), (10, 10), (0.5, 0.5), (100, 100), (3_600, 3_600)]
)
async def test_r10_a_lease_is_per_reservation_where_it_says_so(
    lease: float | None, end: float
) -> None:
    """R10: the backend's lease, or the reservation's own; over at the very moment at which it ends."""
    one = key(concurrency=1)
    await play(
        R("r1", one, lease=lease),
        R("r2", one, at=end - 1e-6, deny="key.conc"),
        R("r2", one, at=end),
    )


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


async def test_r10_renew_extends_from_now_and_only_while_held() -> None:
    """R10: renewed at 50 the lease ends at 110; once over, no renewal brings it back."""
    one = key(concurrency=1)
    await play(
        R("r1", one),
        N("r1", at=50),
        R("r2", one, at=109.999999, deny="key.conc"),
        N("r1", held=False, at=110),
        R("r2", one),
        N("r1", held=False),
        N("r2"),
        used("key.conc", 1),
    )


async def test_r10_a_renewed_lease_holds_up_no_other() -> None:
    """R10: the older slot is renewed; the younger one, which is not, is free when its own lease is over."""
    three = key(concurrency=3)
    await play(
        R("r1", three),
        R("r2", three, at=5),
        R("r3", three, at=6, lease=10),
        N("r1", at=20),
        used("key.conc", 2),
        used("key.conc", 1, at=35),
        used("key.conc", 1, at=49.999999),
        used("key.conc", 0, at=50),
        lease=30,
    )


async def test_r10_one_lease_over_several_scopes() -> None:
    """R10: renew is True iff every slot is still held, and extends all of them."""
    a, b = key("a", concurrency=1), key("b", concurrency=2)
    await play(
        R("r1", a, b),
        N("r1", at=40),
        See("a.conc", used=1, at=99),
        See("b.conc", used=1),
        N("r1", held=False, at=100),
        See("a.conc", used=0),
        See("b.conc", used=0),
    )


async def test_r10_renew_without_slots() -> None:
    """R10: without slots it is True while open, False once resolved, by whatever verb."""
    scope = key(rpm=60)
    for ending in (S("r1", 0), C("r1"), A("r1"), X("r1")):
        await play(R("r1", scope), N("r1", at=100), N("r1", at=3_000), ending, N("r1", held=False))


async def test_r10_a_lapsed_lease_leaves_debits_and_the_reservation() -> None:
    """R10: the lease is about slots alone: the tokens stay, and the reservation can still be settled."""
    scope = key(concurrency=1, tpd=100)
    await play(
        R("r1", scope, tok=40),
        See("key.conc", used=0, at=60),
        used("key.tpd", 40),
        R("r2", scope, tok=10),
        S("r1", 25, at=3_599.999999),
        used("key.tpd", 35),
    )


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "scope", [key(concurrency=1, tpd=100), key(tpd=100)], ids=["slots", "none"]
)
async def test_r10_an_unresolved_reservation_is_kept_for_an_hour(scope: Scope, verb: str) -> None:
    """R10: then a resolver returns False, the debit stays, and the id is free."""
    async with Table() as table:
        await table.play(R("r1", scope, tok=40, request_id="q"))
        table.clock.set(3_600)
        assert await resolve(table.handles["r1"], verb) is False
        await table.play(used("key.tpd", 40))
        await table.play(R("r2", scope, tok=40, request_id="q"), used("key.tpd", 80))
        assert table.handles["r2"] is not table.handles["r1"]


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


@pytest.mark.parametrize("chosen", ["q", None])
async def test_r10_after_an_hour_the_id_is_free_though_the_handle_is_alive(
    chosen: str | None,
) -> None:
    """R10: nobody tried to resolve it: asking the id again makes a new reservation, which debits."""
    scope = key(concurrency=1, tpd=100)
    async with Table() as table:
        await table.play(R("r1", scope, tok=40, request_id=chosen))
        name = table.handles["r1"].request_id
        await table.play(R("r2", scope, tok=40, request_id=name, at=3_600), used("key.tpd", 80))
        assert table.handles["r2"] is not table.handles["r1"]
        assert await table.handles["r1"].settle_success(0) is False
        assert table.handles["r2"].state == "open"
        await table.play(S("r2", 10), used("key.tpd", 50))


async def test_r10_keep_counts_from_the_last_renewal_whatever_it_found() -> None:
    """R10: a renewal that found the slot gone still keeps the reservation for an hour."""
    scope = key(concurrency=1, tpd=100)
    await play(
        R("r1", scope, tok=40),
        R("r2", scope, tok=40, at=100),
        N("r1", held=False, at=3_000),
        S("r1", 10, at=6_599.999999),
        S("r2", 10, won=False),
        used("key.tpd", 50),
    )
    await play(
        R("r1", scope, tok=40), N("r1", held=False, at=3_000), S("r1", 10, at=6_600, won=False)
    )


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


async def test_r10_entering_late_revives_no_slot() -> None:
    """R10: a slot that lapsed before the block began stays lapsed."""
    one = key(concurrency=1)
    async with Table(lease=30) as table:
        await table.play(R("r1", one), R("r2", one, at=30))
        async with table.handles["r1"] as late:
            await table.play(used("key.conc", 1))
            assert await late.renew() is False
        await table.play(used("key.conc", 1))
