"""The six messages themselves, sent as the core sends them: what no handle of one process can show.

A handle knows in its own process whether it is resolved, and a limiter knows the open ids of its process. So that the
store is asked, whoever has lost what he knew is played here: another process, or a message that comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from earmark.backends.protocol import Backend
from earmark.core.hold import Hold, Verb
from earmark.errors import RequestIdConflict
from earmark.ids import next_id
from earmark.limits import Scope
from earmark.testing.contract.cases import ALGORITHMS, Bench, Cases, each
from earmark.testing.rows import C, Gone, P, R, S, See, key, used
from earmark.testing.table import Table, expect
from earmark.usage import TOKEN_METRICS

cases: Final = Cases()

WIDE: Final = key(rpm=60, tpm=100, concurrency=2)
VERBS: Final[tuple[Verb, ...]] = ("settle", "close", "abandon", "cancel")
LEFT: Final[Mapping[str, tuple[int, int]]] = {
    "settle": (1, 25),
    "close": (1, 40),
    "abandon": (1, 40),
    "cancel": (0, 0),
}
"""What each verb leaves of a request with 40 tokens, if 25 are settled: requests and tokens."""


def hold_of(
    *scopes: Scope, tokens: int = 0, request_id: str | None = None, requests: int = 1
) -> Hold:
    """The record that a limiter sends for a request."""
    hold = Hold()
    hold.id = next_id()
    hold.request_id = request_id
    hold.scopes = scopes
    hold.asks = dict.fromkeys(TOKEN_METRICS, 0) | {"requests": requests, "tokens": tokens}
    hold.lease_us = None
    return hold


async def sent(backend: Backend, hold: Hold, verb: Verb) -> bool:
    """Resolve past every handle; a settlement uses 25 tokens."""
    exact: Mapping[str, int] = {"tokens": 25} if verb == "settle" else {}
    return await backend.resolve(hold, verb, exact, {})


def open_of(table: Table) -> Backend:
    """The backend of a table whose rows can name the limits of WIDE."""
    table.know((WIDE,))
    backend: Backend = table.backend
    return backend


@cases()
async def c56_a_reserve_under_an_open_id_debits_nothing(bench: Bench) -> None:
    """C56, R9: a reserve whose reply got lost is sent again under its id: one debit, one slot, the same record."""
    async with bench.table() as table:
        backend = open_of(table)
        first = await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        again = await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        expect("admitted", (first is not None, again is not None), (True, True))
        expect("the name of what stands", again and again.name, "q")
        await table.play(used("key.rpm", 1), used("key.tpm", 40), used("key.conc", 1))
        if again is not None:
            expect("resolved", await sent(backend, again, "settle"), True)
        await table.play(used("key.rpm", 1), used("key.tpm", 25), used("key.conc", 0))


@cases(
    each(
        ("scopes", "tokens"),
        [((WIDE,), 41), ((WIDE, key("other", rpm=5)), 40), ((key("other", rpm=5),), 40)],
    )
)
async def r9_an_open_id_with_other_asks_is_a_conflict(
    bench: Bench, scopes: tuple[Scope, ...], tokens: int
) -> None:
    """R9: RequestIdConflict, and nothing is debited anywhere."""
    async with bench.table() as table:
        backend = open_of(table)
        await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        try:
            await backend.reserve(hold_of(*scopes, tokens=tokens, request_id="q"))
            answer = "no error"
        except RequestIdConflict as conflict:
            answer = f"RequestIdConflict of {conflict.request_id}"
        expect("a reserve under an open id", answer, "RequestIdConflict of q")
        await table.play(used("key.rpm", 1), used("key.tpm", 40), used("key.conc", 1))


@cases(each("second", VERBS), each("first", VERBS))
async def c24_the_first_resolve_wins_in_the_store(bench: Bench, first: Verb, second: Verb) -> None:
    """C24, R5: whoever resolves second, perhaps in another process, is told False and changes nothing."""
    requests, tokens = LEFT[first]
    seen = (used("key.rpm", requests + 1), used("key.tpm", tokens + 10), used("key.conc", 1))
    async with bench.table() as table:
        backend = open_of(table)
        hold = await backend.reserve(hold_of(WIDE, tokens=40))
        await table.play(R("other", WIDE, tok=10))
        if hold is None:
            expect("a reserve with room for it", hold, "admitted")
            return
        expect(f"the first resolve, {first}", await sent(backend, hold, first), True)
        await table.play(*seen)
        expect(f"the second resolve, {second}", await sent(backend, hold, second), False)
        await table.play(*seen)


@cases(each("verb", VERBS))
async def r7_every_verb_frees_the_slot(bench: Bench, verb: Verb) -> None:
    """R7, R6: settle, close, abandon and cancel: the slot is free, and what is left of the debit is exact."""
    requests, tokens = LEFT[verb]
    async with bench.table() as table:
        backend = open_of(table)
        hold = await backend.reserve(hold_of(WIDE, tokens=40))
        if hold is not None:
            expect(verb, await sent(backend, hold, verb), True)
        await table.play(used("key.rpm", requests), used("key.tpm", tokens), used("key.conc", 0))


@cases()
async def r9_a_withdraw_spares_what_another_caller_was_given(bench: Bench) -> None:
    """R9: what was adopted under its request id since is not taken back; what was not, is."""
    async with bench.table() as table:
        backend = open_of(table)
        alone = await backend.reserve(hold_of(WIDE, tokens=40, request_id="alone"))
        if alone is not None:
            await backend.resolve(alone, "withdraw", {}, {})
        await table.play(used("key.rpm", 0), used("key.tpm", 0), used("key.conc", 0))
        first = await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        await backend.reserve(hold_of(WIDE, tokens=40, request_id="q"))
        if first is not None:
            await backend.resolve(first, "withdraw", {}, {})
        await table.play(used("key.rpm", 1), used("key.tpm", 40), used("key.conc", 1))


@cases()
async def c56_an_addition_that_is_sent_twice_counts_once(bench: Bench) -> None:
    """C56, R8: under one id: the second is answered False, and nothing is added."""
    async with bench.table() as table:
        backend = open_of(table)
        added = [await backend.add(WIDE, {"tokens": 30}, "p") for _ in range(2)]
        expect("the answers", added, [True, False])
        await table.play(used("key.tpm", 30))


@cases()
async def r10_a_renewal_of_many_answers_for_each(bench: Bench) -> None:
    """R10: one message for all reservations of a process: True for what is held, False for what is not."""
    async with bench.table(lease=30) as table:
        backend = open_of(table)
        lapsed = await backend.reserve(hold_of(WIDE))
        table.clock.set(20)
        held = await backend.reserve(hold_of(WIDE))
        table.clock.set(40)
        holds = [hold for hold in (lapsed, held, hold_of(WIDE)) if hold is not None]
        expect("the answers", list(await backend.renew(holds)), [False, True, False])
        await table.play(used("key.conc", 1), used("key.conc", 1, at=69.999999))
        await table.play(used("key.conc", 0, at=70))


@cases()
async def r9_the_store_knows_an_id_whose_handle_is_gone(bench: Bench) -> None:
    """R9, R15: a handle that was dropped and an id that is free again: the new owner is another reservation."""
    async with bench.table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"), Gone("r1"))
        await table.play(R("r2", WIDE, tok=40, request_id="q"), used("key.tpm", 80))
        await table.play(S("r2", 0), used("key.tpm", 40), used("key.conc", 0))


@cases(each("algorithm", ALGORITHMS))
async def r17_a_lower_amount_forgives_nothing_and_charges_nothing(
    bench: Bench, algorithm: Any
) -> None:
    """R17, R12: what was used stays used, whatever the amount is now; `remaining` is never below 0, nor above it."""
    many, few = key(tpm=100, algorithm=algorithm), key(tpm=30, algorithm=algorithm)
    more = key(tpm=500, algorithm=algorithm)
    await bench.play(
        R("r1", many, tok=50),
        C("r1"),
        See("key.tpm", used=50, left=0, refuses=True, scope=few),
        R("r2", few, deny="key.tpm"),
        See("key.tpm", used=50, left=450, scope=more),
        R("r3", more, tok=450),
        See("key.tpm", used=500, left=0, scope=many),
    )


@cases()
async def r12_a_debt_may_outlive_any_clock(bench: Bench) -> None:
    """R12, R14: a bucket of one token a day, with a debt of 10**12: no 64 bits hold the microsecond of its end."""
    slow = key(tpd=1, algorithm="token_bucket")
    await bench.play(
        R("r1", slow, tok=1),
        S("r1", 10**12),
        See("key.tpd", used=10**12, left=0, refuses=True),
        R("r2", slow, deny="key.tpd"),
        P(slow, 1),
        used("key.tpd", 10**12 + 1),
    )


@cases()
async def b41_one_debit_for_all_attempts_of_a_request(bench: Bench) -> None:
    """B41, C29: `once`: what its user holds is held once, and each target what it was asked for."""
    user, first, second = key("user", rpm=1, tpm=6), key("p1", tpm=100), key("p2", tpm=100)
    async with bench.table() as table:
        table.know((user, first, second))
        async with table.limiter.once(user, tokens=5) as once:
            attempt = await once.attempt(first)
            await table.play(used("user.tpm", 5), used("p1.tpm", 5))
            await attempt.cancel()
            await table.play(used("user.tpm", 5), used("p1.tpm", 0))
            attempt = await once.attempt(second)
            await attempt.settle_success(4)
        await table.play(used("user.rpm", 1), used("user.tpm", 4), used("p1.tpm", 0))
        await table.play(used("p2.tpm", 4))


@cases(each("algorithm", ALGORITHMS))
async def r4_a_peek_changes_nothing(bench: Bench, algorithm: Any) -> None:
    """B11, R4: looked at again and again, also where nothing was counted yet."""
    scope = key(rpm=9, tpm=100, concurrency=2, algorithm=algorithm)
    async with bench.table() as table:
        table.know((scope,))
        fresh = table.size()
        for _ in range(3):
            await table.look()
        expect("how much is kept", table.size(), fresh)
        await table.play(P(scope, 40), R("r1", scope, tok=40))
        shown = [await table.look() for _ in range(3)]
        expect("what is shown", shown[1:], shown[:1] * 2)
