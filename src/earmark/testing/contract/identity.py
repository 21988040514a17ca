"""Identity: one request_id is one reservation while it is open, and a handle names its own (R9, C8)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limiter import Limiter
from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import VERBS, C, Gone, R, S, key, resolve, used
from earmark.testing.table import expect
from earmark.usage import Usage

cases: Final = Cases()


WIDE = key(rpm=60, tpm=100, concurrency=1)


@cases(each("resolver", VERBS))
async def r9_an_id_is_one_reservation_while_it_is_open(bench: Bench, resolver: str) -> None:
    """R9: asked again it is the same object and debits nothing; resolved, the id is free."""
    async with bench.table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        first = table.handles["r1"]
        for at in (1, 30, 61, 200):
            table.clock.set(at)
            expect(
                'await table.limiter.pre_commit(WIDE, tokens=40, request_id="q") is first',
                await table.limiter.pre_commit(WIDE, tokens=40, request_id="q") is first,
                True,
            )
        expect("table.kinds()", table.kinds(), ["admitted"])
        await table.play(used("key.tpm", 0), used("key.rpm", 0))
        expect("await resolve(first, resolver)", await resolve(first, resolver), True)
        await table.play(R("r2", WIDE, tok=40, request_id="q"), used("key.tpm", 40))
        expect('table.handles["r2"] is not first', table.handles["r2"] is not first, True)
        expect('table.handles["r2"].request_id', table.handles["r2"].request_id, "q")


@cases()
async def r9_the_librarys_own_id_can_be_asked_again(bench: Bench) -> None:
    """R9: an id that the library chose names its reservation as well."""
    async with bench.table() as table:
        await table.play(R("r1", WIDE, tok=40))
        first = table.handles["r1"]
        again = await table.limiter.pre_commit(WIDE, tokens=40, request_id=first.request_id)
        expect("again is first", again is first, True)
        await table.play(used("key.tpm", 40))


@cases()
async def r9_who_chooses_the_librarys_next_ids_is_in_nobodys_way(bench: Bench) -> None:
    """R9: a name that reads like an id which the library will make is another reservation than that of the id."""
    own, theirs = key("own", rpm=60), key("theirs", rpm=60, concurrency=9)
    async with bench.table() as table:
        await table.play(R("first", WIDE), C("first"))
        nonce, _, number = table.handles["first"].request_id.partition(".")
        names = [f"{nonce}.{int(number) + ahead}" for ahead in range(8, 16)]
        chosen = [await table.limiter.pre_commit(theirs, request_id=name) for name in names]
        plain = [await table.limiter.pre_commit(own) for _ in range(9)]
        await table.play(used("theirs.conc", 8, scope=theirs), used("own.rpm", 9, scope=own))
        for handle in (*plain, *chosen):
            expect("await handle.cancel()", await handle.cancel(), True)
        await table.play(used("theirs.conc", 0), used("own.rpm", 0))


@cases()
async def r9_keys_and_asks_are_compared_without_order_and_without_limits(bench: Bench) -> None:
    """R9: other orders and other amounts of the limits are the same request."""
    a, b = key("a", tpm=100), Scope("b", Limits(also=(Limit("x", 9, 10), Limit("y", 9, 10))))
    wider = key("a", tpm=500, rpm=5)
    async with bench.table() as table:
        await table.play(R("r1", a, b, tok=40, amounts={"x": 1, "y": 2}, request_id="q"))
        for scopes, amounts in (((b, a), {"y": 2, "x": 1}), ((b, wider), {"x": 1, "y": 2})):
            again = await table.limiter.pre_commit(
                *scopes, tokens=40, amounts=amounts, request_id="q"
            )
            expect('again is table.handles["r1"]', again is table.handles["r1"], True)


A_SCOPE, B_SCOPE = key("a", tpm=100, rpm=9), key("b", tpm=100)


@cases(
    each(
        ("scopes", "asks"),
        [
            ((A_SCOPE,), {"tokens": 40}),
            ((A_SCOPE, B_SCOPE, WIDE), {"tokens": 40}),
            ((A_SCOPE, key("c", tpm=100)), {"tokens": 40}),
            ((A_SCOPE, B_SCOPE), {"tokens": 41}),
            ((A_SCOPE, B_SCOPE), {}),
            ((A_SCOPE, B_SCOPE), {"tokens": 40, "amounts": {"images": 1}}),
            ((A_SCOPE, B_SCOPE), {"tokens": 40, "amounts": {"requests": 2}}),
            ((A_SCOPE, B_SCOPE), {"tokens": Usage(20, 20)}),
        ],
    )
)
async def r9_an_open_id_with_other_keys_or_asks(
    bench: Bench, scopes: tuple[Scope, ...], asks: Any
) -> None:
    """R9: RequestIdConflict, which names the id; nothing is debited, and the reservation is as it was."""
    async with bench.table() as table:
        await table.play(R("r1", A_SCOPE, B_SCOPE, tok=40, request_id="q"))
        caught = await table.conflict(*scopes, request_id="q", **asks)
        expect("caught.request_id", caught.request_id, "q")
        expect('table.handles["r1"].state', table.handles["r1"].state, "open")
        await table.play(
            used("a.tpm", 40), used("b.tpm", 40), used("a.rpm", 1), S("r1", 5), used("b.tpm", 5)
        )


@cases()
async def r9_an_old_handle_never_hits_the_ids_new_owner(bench: Bench) -> None:
    """R9: handles name the reservation itself, not its request_id."""
    async with bench.table() as table:
        await table.play(R("r1", WIDE, tok=40, request_id="q"), S("r1", 10))
        await table.play(R("r2", WIDE, tok=40, request_id="q"))
        for verb in VERBS:
            expect(
                'await resolve(table.handles["r1"], verb)',
                await resolve(table.handles["r1"], verb),
                False,
            )
        expect('await table.handles["r1"].renew()', await table.handles["r1"].renew(), False)
        expect(
            '(table.handles["r1"].state, table.handles["r2"].state)',
            (table.handles["r1"].state, table.handles["r2"].state),
            ("settled", "open"),
        )
        await table.play(used("key.tpm", 50), used("key.conc", 1), S("r2", 5), used("key.tpm", 15))


@cases()
async def r9_dropping_an_old_handle_leaves_the_ids_new_owner_alone(bench: Bench) -> None:
    """R9, R15: a dropped handle abandons its own reservation, not the one that has the id now."""
    async with bench.table() as table:
        await table.play(
            R("r1", WIDE, tok=40, request_id="q"),
            Gone("r1"),
            R("r2", WIDE, tok=40, request_id="q"),
            used("key.tpm", 80),
            used("key.conc", 1),
        )
        expect('table.handles["r2"].state', table.handles["r2"].state, "open")
        expect(
            "sorted(table.kinds())", sorted(table.kinds()), ["abandoned", "admitted", "admitted"]
        )
        await table.play(S("r2", 0), used("key.tpm", 40))


@cases()
async def r9_a_refused_id_may_be_asked_again(bench: Bench) -> None:
    """R9: only `once` remembers a refusal: the same id is judged afresh."""
    await bench.play(
        R("r1", WIDE, tok=90),
        R("r2", WIDE, tok=40, request_id="q", deny="key.tpm key.conc"),
        R("r2", WIDE, tok=40, request_id="q", deny="key.tpm key.conc"),
        S("r1", 50),
        R("r2", WIDE, tok=40, request_id="q"),
    )


@cases()
async def r9_two_limiters_on_one_backend_share_ids(bench: Bench) -> None:
    """R9: within a process it is the same object, whichever limiter is asked."""
    async with bench.table() as table:
        other = Limiter(table.backend)
        await table.play(R("r1", WIDE, tok=40, request_id="q"))
        table.handles["again"] = await other.pre_commit(WIDE, tokens=40, request_id="q")
        expect(
            'table.handles["again"] is table.handles["r1"]',
            table.handles["again"] is table.handles["r1"],
            True,
        )
        await table.play(C("again"), C("r1", won=False))
