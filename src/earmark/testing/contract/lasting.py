"""How long things last: no message prolongs what it is not about, and none cuts it short."""

from __future__ import annotations

from typing import Final

import anyio.lowlevel

from earmark.core.hold import Verb
from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.contract.messages import WIDE, hold_of, open_of, sent
from earmark.testing.rows import C, N, P, R, See, Z, key, used
from earmark.testing.table import Row, Table, expect

cases: Final = Cases()


async def at_work(table: Table, scope: Scope, until: int, step: int) -> None:
    """See the slot held while time passes; a backend that renews what is at work does so every third of a lease."""
    for at in range(step, until + 1, step):
        table.clock.set(at)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        await table.play(used("key.conc", 1, scope=scope))


@cases()
async def c02_asking_an_id_again_renews_no_lease(bench: Bench) -> None:
    """C2, R9, R10: retries under an open id, one every ten seconds: its slot is free when its lease is over."""
    async with bench.table(lease=60) as table:
        backend = open_of(table)
        for at in range(0, 60, 10):
            table.clock.set(at)
            await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        await table.play(used("key.conc", 1, at=59.999999), used("key.conc", 0, at=60))


@cases()
async def r10_asking_an_id_again_keeps_the_reservation_no_longer(bench: Bench) -> None:
    """R9, R10: the hour counts from its last renewal: asked again halfway, it is given up all the same."""
    async with bench.table() as table:
        backend = open_of(table)
        first = await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        expect("admitted", first is not None, True)
        table.clock.set(1_800)
        again = await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        expect("what stands is the first", again and first and again.id == first.id, True)
        table.clock.set(3_600)
        if first is not None:
            expect("a settlement after an hour", await sent(backend, first, "settle"), False)


@cases()
async def c02_an_addition_that_comes_again_is_remembered_no_longer(bench: Bench) -> None:
    """C2, R8, R14: sent again every fifty minutes it is not remembered for ever: two hours later it counts again."""
    scope = key(tpd=1_000)
    async with bench.table() as table:
        table.know((scope,))
        answers: list[bool] = []
        for at in (0, 3_000, 6_000):
            table.clock.set(at)
            answers.append(await table.backend.add(scope, {"tokens": 100}, "q"))
        expect("the answers", answers, [True, False, True])
        await table.play(used("key.tpd", 200))


@cases()
async def c56_a_reset_forgets_no_id_of_an_addition(bench: Bench) -> None:
    """C56, R8: counted, forgiven, and sent again: a lost reply brings back nothing of what a `reset` has forgotten."""
    scope = key(tpm=1_000)
    await bench.play(P(scope, 100, id="q"), Z(scope), P(scope, 100, id="q"), used("key.tpm", 0))


SLIDING: Final = Scope("key", Limits(rpd=1, also=(Limit("tokens", 500, 60, "sliding_window"),)))


@cases(
    each(
        "row",
        [
            See("key.tpm", at=70),
            R("r2", SLIDING, tok=5, deny="key.rpd", at=70),
            N("r1", at=70),
            C("r1", at=70),
        ],
    )
)
async def r14_what_counts_nothing_prolongs_nothing(bench: Bench, row: Row) -> None:
    """R2, R4, R8, R14: no peek, refusal, renewal or close keeps a state for longer: a bare key reaches it no more."""
    await bench.play(R("r1", SLIDING, tok=40), row, P("key", 90, at=125), used("key.tpm", 0))


@cases()
async def r10_a_holder_at_work_keeps_its_reservation(bench: Bench) -> None:
    """R10: a call of more than an hour is settled at its end, and its slot is held until then."""
    scope = key(concurrency=1, tpd=100)
    async with bench.table(lease=600) as table:
        async with await table.limiter.pre_commit(scope, tokens=40) as reservation:
            await at_work(table, scope, until=4_000, step=100)
            expect("settled", await reservation.settle_success(25), True)
        await table.play(used("key.conc", 0), used("key.tpd", 25))


@cases()
async def r10_a_lease_begins_with_the_handing_over(bench: Bench) -> None:
    """R10: a holder at work needed none, so that what is left of the one that it began with is not what counts."""
    one = key(concurrency=1)
    async with bench.table(lease=60) as table:
        async with await table.limiter.pre_commit(one) as reservation:
            await at_work(table, one, until=100, step=10)
            reservation.token()
        # A backend that renews has done so within the last third of a lease.
        await table.play(used("key.conc", 1, at=139.999999, scope=one))
        await table.play(used("key.conc", 0, at=160))


@cases()
async def b29_an_addition_counts_above_the_limit(bench: Bench) -> None:
    """B29, R8: what was used was used: added by its scope or by its key, also where nothing is left of the limit."""
    hundred = key(tpm=100)
    await bench.play(
        P(hundred, 100), P(hundred, 50), P("key", 7), See("key.tpm", used=157, left=0, refuses=True)
    )


@cases(each("verb", ["cancel", "settle"]))
async def r6_the_record_counts_and_not_what_the_caller_believes(bench: Bench, verb: Verb) -> None:
    """R6, C17: who names a reservation, and knows neither its asks nor its instant, gives back what was taken."""
    async with bench.table() as table:
        backend = open_of(table)
        taken = await backend.reserve(hold_of(WIDE, tokens=40))
        await table.play(R("other", WIDE, tok=50))
        expect("admitted", taken is not None, True)
        if taken is not None:
            said = hold_of(WIDE, tokens=90, requests=2)
            said.id = taken.id
            expect(verb, await sent(backend, said, verb), True)
        left = 25 if verb == "settle" else 0
        await table.play(used("key.tpm", 50 + left), used("key.conc", 1))
