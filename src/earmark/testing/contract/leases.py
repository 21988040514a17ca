"""Leases: slots are held under a lease, reservations are kept for an hour (R10)."""

from __future__ import annotations

from typing import Final

from earmark.limits import Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import VERBS, A, C, N, R, S, See, X, key, resolve, used
from earmark.testing.table import expect

cases: Final = Cases()


@cases(each(("lease", "end"), [(None, 60), (10, 10), (0.5, 0.5), (100, 100), (3_600, 3_600)]))
async def r10_a_lease_is_per_reservation_where_it_says_so(
    bench: Bench, lease: float | None, end: float
) -> None:
    """R10: the backend's lease, or the reservation's own; over at the very moment at which it ends."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one, lease=lease),
        R("r2", one, at=end - 1e-6, deny="key.conc"),
        R("r2", one, at=end),
    )


@cases()
async def r10_renew_extends_from_now_and_only_while_held(bench: Bench) -> None:
    """R10: renewed at 50 the lease ends at 110; once over, no renewal brings it back."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one),
        N("r1", at=50),
        R("r2", one, at=109.999999, deny="key.conc"),
        N("r1", held=False, at=110),
        R("r2", one),
        N("r1", held=False),
        N("r2"),
        used("key.conc", 1),
    )


@cases()
async def r10_a_renewed_lease_holds_up_no_other(bench: Bench) -> None:
    """R10: the older slot is renewed; the younger one, which is not, is free when its own lease is over."""
    three = key(concurrency=3)
    await bench.play(
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


@cases()
async def r10_one_lease_over_several_scopes(bench: Bench) -> None:
    """R10: renew is True iff every slot is still held, and extends all of them."""
    a, b = key("a", concurrency=1), key("b", concurrency=2)
    await bench.play(
        R("r1", a, b),
        N("r1", at=40),
        See("a.conc", used=1, at=99),
        See("b.conc", used=1),
        N("r1", held=False, at=100),
        See("a.conc", used=0),
        See("b.conc", used=0),
    )


@cases()
async def r10_renew_without_slots(bench: Bench) -> None:
    """R10: without slots it is True while open, False once resolved, by whatever verb."""
    scope = key(rpm=60)
    for ending in (S("r1", 0), C("r1"), A("r1"), X("r1")):
        await bench.play(
            R("r1", scope), N("r1", at=100), N("r1", at=3_000), ending, N("r1", held=False)
        )


@cases()
async def r10_a_lapsed_lease_leaves_debits_and_the_reservation(bench: Bench) -> None:
    """R10: the lease is about slots alone: the tokens stay, and the reservation can still be settled."""
    scope = key(concurrency=1, tpd=100)
    await bench.play(
        R("r1", scope, tok=40),
        See("key.conc", used=0, at=60),
        used("key.tpd", 40),
        R("r2", scope, tok=10),
        S("r1", 25, at=3_599.999999),
        used("key.tpd", 35),
    )


@cases(each("verb", VERBS), each("scope", [key(concurrency=1, tpd=100), key(tpd=100)]))
async def r10_an_unresolved_reservation_is_kept_for_an_hour(
    bench: Bench, scope: Scope, verb: str
) -> None:
    """R10: then a resolver returns False, the debit stays, and the id is free."""
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=40, request_id="q"))
        table.clock.set(3_600)
        expect(
            'await resolve(table.handles["r1"], verb)',
            await resolve(table.handles["r1"], verb),
            False,
        )
        await table.play(used("key.tpd", 40))
        await table.play(R("r2", scope, tok=40, request_id="q"), used("key.tpd", 80))
        expect(
            'table.handles["r2"] is not table.handles["r1"]',
            table.handles["r2"] is not table.handles["r1"],
            True,
        )


@cases(each("chosen", ["q", None]))
async def r10_after_an_hour_the_id_is_free_though_the_handle_is_alive(
    bench: Bench,
    chosen: str | None,
) -> None:
    """R10: nobody tried to resolve it: asking the id again makes a new reservation, which debits."""
    scope = key(concurrency=1, tpd=100)
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=40, request_id=chosen))
        name = table.handles["r1"].request_id
        await table.play(R("r2", scope, tok=40, request_id=name, at=3_600), used("key.tpd", 80))
        expect(
            'table.handles["r2"] is not table.handles["r1"]',
            table.handles["r2"] is not table.handles["r1"],
            True,
        )
        expect(
            'await table.handles["r1"].settle_success(0)',
            await table.handles["r1"].settle_success(0),
            False,
        )
        expect('table.handles["r2"].state', table.handles["r2"].state, "open")
        await table.play(S("r2", 10), used("key.tpd", 50))


@cases()
async def r10_keep_counts_from_the_last_renewal_whatever_it_found(bench: Bench) -> None:
    """R10: a renewal that found the slot gone still keeps the reservation for an hour."""
    scope = key(concurrency=1, tpd=100)
    await bench.play(
        R("r1", scope, tok=40),
        R("r2", scope, tok=40, at=100),
        N("r1", held=False, at=3_000),
        S("r1", 10, at=6_599.999999),
        S("r2", 10, won=False),
        used("key.tpd", 50),
    )
    await bench.play(
        R("r1", scope, tok=40), N("r1", held=False, at=3_000), S("r1", 10, at=6_600, won=False)
    )


@cases()
async def r10_entering_late_revives_no_slot(bench: Bench) -> None:
    """R10: a slot that lapsed before the block began stays lapsed."""
    one = key(concurrency=1)
    async with bench.table(lease=30) as table:
        await table.play(R("r1", one), R("r2", one, at=30))
        async with table.handles["r1"] as late:
            await table.play(used("key.conc", 1))
            expect("await late.renew()", await late.renew(), False)
        await table.play(used("key.conc", 1))
