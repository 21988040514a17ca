"""Each message does the whole: for every scope and limit, for as long as it is to last, and what ends is told."""

from __future__ import annotations

from typing import Any, Final

import anyio
import anyio.lowlevel

from earmark.errors import RateLimited
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.contract.messages import hold_of
from earmark.testing.rows import VERBS, C, Empty, N, P, R, S, X, Z, key, resolve, used
from earmark.testing.table import expect

cases: Final = Cases()

MINUTE, DAY = key("minute", tpm=100), key("day", tpd=1_000)


@cases()
async def r1_ten_tasks_at_once_and_one_slot(bench: Bench) -> None:
    """R1, R10: of ten tasks at once under concurrency 1 one is admitted: a slot is taken where it was judged."""
    one = key(concurrency=1)
    async with bench.table() as table:

        async def ask(name: str) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[name] = await table.limiter.pre_commit(one)
            except RateLimited:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(ask, f"r{n}")
        expect("how many were admitted", len(table.handles), 1)
        await table.play(used("key.conc", 1, scope=one))


@cases(each("verb", VERBS))
async def r7_every_scope_gets_its_slot_back(bench: Bench, verb: str) -> None:
    """R7, R10: a request that held a slot of each of two scopes frees both."""
    a, b = key("a", concurrency=2), key("b", concurrency=2)
    async with bench.table() as table:
        await table.play(R("r1", a, b), R("r2", a, b))
        expect(verb, await resolve(table.handles["r1"], verb), True)
        await table.play(used("a.conc", 1), used("b.conc", 1))


@cases()
async def r6_each_window_is_over_by_itself(bench: Bench) -> None:
    """R6: a settlement that finds the minute over and the day not gives the day back what was not used."""
    for scopes in ((key("day", tpm=100, tpd=1_000),), (MINUTE, DAY), (DAY, MINUTE)):
        await bench.play(
            R("r1", *scopes, tok=80),
            S("r1", 10, at=90),
            *(used("minute.tpm", 0) for scope in scopes if scope is MINUTE),
            used("day.tpd", 10),
        )


@cases()
async def reset_forgets_every_scope_that_it_names(bench: Bench) -> None:
    """R6: a `reset` of two scopes: nothing is used of either any more."""
    a, b = key("a", tpm=100), key("b", tpm=100)
    await bench.play(R("r1", a, b, tok=60), Z(a, b), used("a.tpm", 0), used("b.tpm", 0))


@cases()
async def reset_of_one_scope_costs_another_nothing(bench: Bench) -> None:
    """R6: after a `reset` of a, b gets back what was not used, although both have a limit of one kind."""
    a, b = key("a", tpm=100), key("b", tpm=100)
    await bench.play(R("r1", a, b, tok=60), Z(a), S("r1", 10), used("a.tpm", 0), used("b.tpm", 10))


@cases()
async def r10_a_renewal_is_for_the_lease_of_its_reservation(bench: Bench) -> None:
    """R10: one that was taken for ten minutes is renewed for ten minutes, whatever the lease of the backend is."""
    one = key(concurrency=1)
    await bench.play(
        R("r1", one, lease=600),
        N("r1", at=100),
        used("key.conc", 1, at=699.999999),
        N("r1", held=False, at=700),
        used("key.conc", 0),
    )


@cases()
async def r10_a_holder_at_work_keeps_its_slot(bench: Bench) -> None:
    """R10: inside `async with` a reservation needs no renewal by its holder, for as long as the block lasts."""
    one = key(concurrency=1, tpd=100)
    async with bench.table(lease=60) as table:
        reservation = await table.limiter.pre_commit(one, tokens=40)
        async with reservation:
            for at in range(10, 300, 10):  # a backend that renews does so every third of a lease
                table.clock.set(at)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                await table.play(used("key.conc", 1, scope=one))
            expect("settled", await reservation.settle_success(25), True)
        await table.play(used("key.conc", 0), used("key.tpd", 25))


@cases()
async def r10_what_was_handed_over_is_held_for_one_lease(bench: Bench) -> None:
    """R10: whoever has the token is the holder now: nobody renews it here, and its slot is free after one lease."""
    one = key(concurrency=1)
    async with bench.table(lease=60) as table:
        async with await table.limiter.pre_commit(one) as reservation:
            reservation.token()
        await table.play(used("key.conc", 1, at=59.999999, scope=one), used("key.conc", 0, at=60))


@cases()
async def r9_a_renewal_keeps_the_id_as_well(bench: Bench) -> None:
    """R9, R10: renewed at 3,000, it is open at 6,000, and its id still names it: asked again it debits nothing."""
    scope = key(rpd=60, tpd=100)
    async with bench.table() as table:
        first = await table.backend.reserve(hold_of(scope, tokens=40, request_id="q"))
        expect("admitted", first is not None, True)
        table.clock.set(3_000)
        expect("the answers", list(await table.backend.renew([first])), [True])
        table.clock.set(6_000)
        again = await table.backend.reserve(hold_of(scope, tokens=40, request_id="q"))
        expect("what stands is the first", again is not None and again.id == first.id, True)
        await table.play(used("key.rpd", 1, scope=scope), used("key.tpd", 40))


@cases()
async def r8_an_addition_is_remembered_for_an_hour(bench: Bench) -> None:
    """R8, R9: sent again within an hour, as a queue of what could not be delivered may, it counts once."""
    scope = key(tpd=1_000)
    await bench.play(
        P(scope, 100, id="q"),
        P(scope, 100, id="q", at=600),
        P(scope, 100, id="q", at=3_599.999999),
        used("key.tpd", 100),
    )


@cases()
async def r8_an_addition_that_counts_nothing_spends_no_id(bench: Bench) -> None:
    """R8: where the scope limits no tokens nothing is kept: under a limit the same id counts."""
    requests, tokens = key(rpm=5), key(tpm=100)
    await bench.play(P(requests, 7, id="q"), Empty(), P(tokens, 7, id="q"), used("key.tpm", 7))


@cases(each("ending", [S("r1", 10), C("r1"), X("r1")]))
async def r14_what_is_resolved_leaves_no_id(bench: Bench, ending: Any) -> None:
    """R14: when the windows, the lease and the horizon of R9 are over, nothing is left of a request id."""
    scope = key(rpm=60, tpm=100, concurrency=1)
    await bench.play(R("r1", scope, tok=40, request_id="q"), ending, Empty(at=600))


@cases()
async def r10_observers_hear_of_what_a_backend_gives_up(bench: Bench) -> None:
    """R10: what it puts into `desk.forgotten` is told as `expired`, once, to whoever was told of the admission."""
    scope = key(tpd=100)
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=10, request_id="q"), R("r2", scope, tok=10))
        names = {table.handles[name].request_id for name in ("r1", "r2")}
        table.clock.set(3_600)
        await table.backend.peek((scope,))  # where nobody looks at what is forgotten
        given_up = [hold.name for hold in table.backend.desk.forgotten]
        expect("what is given up besides", [name for name in given_up if name not in names], [])
        await table.play(used("key.tpd", 20), used("key.tpd", 20))
        told = [str(event.request_id) for event in table.events if event.kind == "expired"]
        expect("who is told as expired", sorted(told), sorted(given_up))


@cases()
async def r9_an_admission_is_told_once(bench: Bench) -> None:
    """R9: who asks again for what was handed over gets the same reservation, and observers hear of no second one."""
    scope = key(tpd=100)
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=40, request_id="q"))
        table.handles.pop("r1").token()
        table.handles["r2"] = await table.limiter.pre_commit(scope, tokens=40, request_id="q")
        expect("what was told", table.kinds(), ["admitted"])
        await table.play(S("r2", 10), used("key.tpd", 10))
        expect("what was told", table.kinds(), ["admitted", "settled"])
