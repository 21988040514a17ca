"""Faults of slots and of refusals that such systems had, each named by its case (C1–C16)."""

from __future__ import annotations

import copy
from typing import Any, Final

import anyio

from earmark.reservation import Reservation
from earmark.testing.contract.cases import ALGORITHMS, Bench, Cases, each
from earmark.testing.rows import A, C, N, R, S, See, key, used
from earmark.testing.table import expect

cases: Final = Cases()


@cases(each("ending", [C, A]))
async def c01_a_failed_request_frees_its_slot(bench: Bench, ending: Any) -> None:
    """C1: the provider timed out: closing frees the slot, and the counter does not creep up to its cap."""
    two = key(concurrency=2)
    await bench.play(
        R("r1", two, at=0),
        R("r2", two),
        R("r3", two, at=11, deny="key.conc", after=None),
        ending("r1"),
        ending("r2"),
        R("r3", two),
        R("r4", two),
    )


@cases()
async def c01_a_dead_holder_frees_its_slot_after_one_lease(bench: Bench) -> None:
    """C1: no close at all: the slots are free when the lease is over, at that very moment."""
    two = key(concurrency=2)
    await bench.play(
        R("r1", two, at=0),
        R("r2", two),
        R("r3", two, at=59, deny="key.conc"),
        R("r3", two, at=59.999999, deny="key.conc"),
        R("r3", two, at=60),
        R("r4", two, at=61),
        R("r5", two, deny="key.conc"),
    )


@cases()
async def c02_steady_traffic_keeps_no_leaked_slot_alive(bench: Bench) -> None:
    """C2: one lost release was renewed by every later acquire, since the lease was of the whole counter."""
    two = key(concurrency=2)
    await bench.play(
        R("r1", two, at=0),
        R("r2", two, at=30),
        S("r2", 0, at=31),
        R("r3", two, at=55),
        S("r3", 0, at=56),
        R("r4", two, at=61),
        R("r5", two),
        R("r6", two, deny="key.conc"),
    )


@cases()
async def c04_a_release_that_comes_twice_frees_one_slot(bench: Bench) -> None:
    """C4: the second delivery of a release is a no-op: it frees nobody else's slot."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one, at=0),
        R("r2", one, at=2, deny="key.conc"),
        S("r1", 0, at=3),
        R("r2", one),
        S("r1", 0, at=4, won=False),
        R("r3", one, deny="key.conc"),
    )


@cases()
async def c05_a_renewed_lease_holds(bench: Bench) -> None:
    """C5a: a lease written once was pruned under a running holder; renewed every 10 s it stays."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one),
        *(N("r1", at=at) for at in (10, 20, 30)),
        R("r2", one, at=35, deny="key.conc"),
        *(N("r1", at=at) for at in range(40, 91, 10)),
        R("r3", one, at=100, deny="key.conc"),
        R("r3", one, at=119.999999, deny="key.conc"),
        R("r4", one, at=121),
        lease=30,
    )


@cases()
async def c05_late_renewals_and_releases_touch_no_other_slot(bench: Bench) -> None:
    """C5b: after its lease a renewal must not revive a slot, nor a release free another's."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one),
        R("r2", one, at=35),
        N("r1", held=False, at=36),
        used("key.conc", 1),
        S("r1", 0, at=40),
        used("key.conc", 1),
        R("r3", one, at=41, deny="key.conc"),
        C("r2"),
        used("key.conc", 0),
        R("r3", one),
        lease=30,
    )


@cases()
async def c05_a_late_renewal_revives_nothing_even_where_there_is_room(bench: Bench) -> None:
    """C5b: lapsed is lapsed: a free place is no reason to take it back."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one),
        N("r1", held=False, at=30),
        used("key.conc", 0),
        R("r2", one),
        lease=30,
    )


@cases(each("copied", [copy.copy, copy.deepcopy]))
async def c08_any_copy_of_the_handle_resolves(bench: Bench, copied: Any) -> None:
    """C8: the release was looked up on a stale copy of the request, and never happened."""
    one = key(concurrency=1, tpm=100)
    async with bench.table() as table:
        await table.play(R("r1", one, tok=50))
        twin: Reservation = copied(table.handles["r1"])
        won: list[bool] = []

        async def answer_from_cache() -> None:
            won.append(await twin.settle_success(0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_from_cache)
        expect("won", won, [True])
        await table.play(
            S("r1", 50, won=False), used("key.tpm", 0), used("key.conc", 0), R("r2", one, tok=100)
        )


@cases()
async def c09_refused_by_concurrency_costs_no_request(bench: Bench) -> None:
    """C9: B's refusal consumed the request quota, and C was denied."""
    scope = key(rpm=2, concurrency=1)
    await bench.play(
        R("A", scope, at=0),
        R("B", scope, at=1, deny="key.conc"),
        S("A", 0, at=2),
        R("C", scope, at=3),
        used("key.rpm", 2),
    )


@cases()
async def c10_a_later_scopes_refusal_drains_no_earlier_one(bench: Bench) -> None:
    """C10: under a saturated team limit a member's own daily quota drained with no request served."""
    mine, team = key("key", rpd=3), key("team", rpm=1)
    await bench.play(
        R("r1", mine, team, at=0),
        *(R(f"r{n + 1}", mine, team, at=n, deny="team.rpm", after=60 - n) for n in range(1, 9)),
        R("r10", mine, team, at=60),
        R("r11", mine, team, at=120),
        R("r12", mine, team, at=180, deny="key.rpd", after=86_220),
    )


@cases(each("algorithm", ALGORITHMS))
async def c11_an_oversized_ask_burns_nothing(bench: Bench, algorithm: str) -> None:
    """C11: the refused ask of 5 also consumed what was left."""
    ten = key(tpm=10, algorithm=algorithm)
    await bench.play(
        R("r1", ten, tok=8),
        R("r2", ten, tok=5, deny="key.tpm"),
        See("key.tpm", used=8, left=2),
        R("r3", ten, tok=1),
        See("key.tpm", used=9, left=1),
    )


@cases(each("algorithm", ALGORITHMS))
async def c13_a_rollback_returns_what_was_taken(bench: Bench, algorithm: str) -> None:
    """C13: rolling a back returned another amount than a was charged, above its capacity."""
    a, b = key("a", tpm=10, algorithm=algorithm), key("b", tpm=3, algorithm=algorithm)
    await bench.play(
        R("x", a, b, tok=5, deny="b.tpm", never=True),
        See("a.tpm", used=0, left=10),
        See("b.tpm", used=0, left=3),
        R("y", a, tok=10),
    )


@cases()
async def c16_one_scope_over_its_limit_and_the_others_still_counted(bench: Bench) -> None:
    """C16: b counted the refused ones too. Admitted and denied are exported as what they are."""
    a, b = key("a", rpm=1), key("b", rpm=5)
    async with bench.table() as table:
        await table.play(
            R("r0", a, b, at=0),
            *(R(f"r{n}", a, b, at=n, deny="a.rpm") for n in range(1, 5)),
            used("b.rpm", 1),
        )
        expect(
            '(table.kinds().count("admitted"), table.kinds().count("refused"))',
            (table.kinds().count("admitted"), table.kinds().count("refused")),
            (1, 4),
        )
