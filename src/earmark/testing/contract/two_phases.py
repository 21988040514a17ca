"""Two phases: what a reservation takes, and what each way of resolving it leaves (B13–B26)."""

from __future__ import annotations

from typing import Final

from earmark.limits import Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import A, C, Gone, R, Resolve, S, See, X, key, used
from earmark.testing.table import Row, expect
from earmark.usage import Usage

cases: Final = Cases()


@cases()
async def b13_without_an_estimate_tokens_count_at_settlement(bench: Bench) -> None:
    """B13: the request counts at once, tokens only when they are known; then the overshoot is paid for."""
    both = key(rpm=60, tpm=1_000)
    await bench.play(
        R("r1", both),
        used("key.rpm", 1),
        used("key.tpm", 0),
        S("r1", 600),
        used("key.tpm", 600),
        R("r2", both),
        S("r2", 1_500, at=10),
        See("key.tpm", used=2_100, left=0),
        R("r3", both, deny="key.tpm", after=50),
        R("r4", both, at=60),
        used("key.rpm", 1),
        used("key.tpm", 0),
    )


@cases(each(("hold", "charged"), [(0, 600), (100, 500), (600, 0)]))
async def b14_what_no_hold_covers_is_charged_when_it_is_settled(
    bench: Bench, hold: int, charged: int
) -> None:
    """B14: held in one window, settled in the next: the difference is charged to the next."""
    thousand = key(tpm=1_000)
    await bench.play(
        R("r1", thousand, tok=hold, at=50),
        used("key.tpm", hold),
        S("r1", 600, at=70),
        used("key.tpm", charged),
    )


@cases(each("hold", [0, 40]), each("ending", [C("r1"), A("r1"), Gone("r1")]))
async def b15_without_settlement_the_slot_is_free_and_the_rest_stays(
    bench: Bench, ending: Row, hold: int
) -> None:
    """B15: dropped or closed: the slot is free, tokens stay as held, and the request still counts."""
    wide = key(rpm=60, tpm=1_000, concurrency=1)
    await bench.play(
        R("r1", wide, tok=hold),
        R("r2", wide, deny="key.conc"),
        ending,
        used("key.conc", 0),
        used("key.tpm", hold),
        used("key.rpm", 1),
        R("r3", wide),
        used("key.rpm", 2),
    )


@cases()
async def b16_a_settlement_may_overrun_the_limit(bench: Bench) -> None:
    """B16: hold 50, settle 50 in + 60 out: used 110 of 100, and the next ask of 1 waits for the window."""
    hundred = key(tpm=100)
    await bench.play(
        R("r1", hundred, tok=50),
        S("r1", Usage(50, 60), at=5),
        See("key.tpm", used=110, left=0, resets=55),
        R("r2", hundred, tok=1, deny="key.tpm", after=55),
        R("r3", hundred, tok=1, at=60),
    )


@cases()
async def b16_a_token_bucket_goes_into_debt(bench: Bench) -> None:
    """B16: the same on a bucket: level -10, which 11 refilled units turn into room for 1."""
    hundred = key(tpm=100, algorithm="token_bucket")
    await bench.play(
        R("r1", hundred, tok=50),
        S("r1", Usage(50, 60)),
        See("key.tpm", used=110, left=0, resets=66),
        R("r2", hundred, tok=1, deny="key.tpm", after=6.6),
        R("r3", hundred, tok=1, at=6.599999, deny="key.tpm", after=0.000001),
        R("r4", hundred, tok=1, at=6.6),
    )


@cases()
async def b17_a_bucket_refills_before_it_is_charged(bench: Bench) -> None:
    """B17: idle time cannot erase a charge that comes after it: 502 - 2 of 6,000 are used, not 442."""
    bucket = key(tpm=6_000, algorithm="token_bucket")
    await bench.play(
        R("r1", bucket, tok=2),
        S("r1", Usage(2, 500), at=0.6),
        See("key.tpm", used=500, left=5_500),
        R("r2", bucket, tok=5_530, deny="key.tpm", after=0.3),
        R("r3", bucket, tok=5_530, at=0.9),
        See("key.tpm", used=6_000, left=0),
    )


@cases()
async def b18_an_empty_bucket_names_its_time(bench: Bench) -> None:
    """B18: 60 a minute, starts full; empty, an ask of 30 waits 30 s."""
    bucket = key(tpm=60, algorithm="token_bucket")
    await bench.play(
        See("key.tpm", used=0, left=60, resets=0, scope=bucket),
        R("r1", bucket, tok=60),
        R("r2", bucket, tok=30, deny="key.tpm", after=30),
        R("r3", bucket, tok=30, at=29.999999, deny="key.tpm", after=0.000001),
        R("r4", bucket, tok=30, at=30),
    )


@cases()
async def b18_a_debit_lowers_the_level(bench: Bench) -> None:
    """B18: capacity 600, debit 100: 500 remain."""
    bucket = key(tpm=600, algorithm="token_bucket")
    await bench.play(R("r1", bucket, tok=100), See("key.tpm", used=100, left=500, resets=10))


@cases(each("giving", [S("r1", 0, at=60), X("r1", at=60), S("r1", 50, at=7)]))
async def b18_a_refund_never_lifts_a_bucket_above_its_capacity(bench: Bench, giving: Row) -> None:
    """B18: what the clock refilled is not given back once more."""
    bucket = key(tpm=600, algorithm="token_bucket")
    await bench.play(
        R("r1", bucket, tok=100),
        giving,
        See("key.tpm", used=0, left=600, resets=0),
        R("r2", bucket, tok=600),
        R("r3", bucket, deny="key.tpm", after=0.1),
    )


@cases(each("algorithm", ["fixed_window", "sliding_window", "token_bucket"]))
async def b19_more_than_a_limit_can_hold(bench: Bench, algorithm: str) -> None:
    """B19: ask 2 of tpm 1: refused, not retryable; exactly the capacity on an unused limit: admitted."""
    one = key(tpm=1, algorithm=algorithm)
    await bench.play(
        R("r1", one, tok=2, deny="key.tpm", after=None, never=True),
        R("r2", one, tok=1),
        R("r3", one, tok=2, deny="key.tpm", after=None, never=True),
    )


@cases()
async def b20_the_whole_waits_for_the_slowest(bench: Bench) -> None:
    """B20: retry_after of the whole is the largest over scopes and limits, wherever it stands."""
    minute, day = key("a", rpm=1, rps=1), key("b", rpd=1)
    bucket = key("c", rpm=2, algorithm="token_bucket")
    await bench.play(
        R("r1", minute, day, bucket, at=10.25),
        R("r2", minute, bucket, deny="a.rps a.rpm", after=49.75),
        R("r3", day, minute, deny="b.rpd a.rps a.rpm", after=86_389.75),
        R("r4", bucket),
        R("r5", bucket, minute, deny="c.rpm a.rps a.rpm", after=49.75),
        R("r6", bucket, minute, at=59.5, deny="a.rpm", after=0.5),
    )


@cases()
async def b21_a_model_rule_beside_the_tenants_own_limits(bench: Bench) -> None:
    """B21: the model's refusal leaves the tenant's counter alone, and another model has its own."""
    tenant = key("tenant", tpm=10_000)
    big, small = key("tenant/big", tpm=50), key("tenant/small", tpm=50)
    await bench.play(
        R("r1", tenant, big, tok=40),
        R("r2", tenant, big, tok=20, deny="tenant/big.tpm", after=60),
        used("tenant.tpm", 40),
        R("r3", tenant, small, tok=20),
        used("tenant.tpm", 60),
    )


@cases(
    each("ending", [C("r1"), A("r1"), Gone("r1")]),
    each("algorithm", ["fixed_window", "sliding_window", "token_bucket"]),
)
async def b22_a_closed_hold_stays_used(bench: Bench, algorithm: str, ending: Row) -> None:
    """B22: hold 100 of 100, then close or abandon: the next ask of 1 is refused."""
    hundred = key(tpm=100, algorithm=algorithm)
    await bench.play(R("r1", hundred, tok=100), ending, R("r2", hundred, tok=1, deny="key.tpm"))


OUTCOMES = {
    "settle_success": ("settled", (1, 25)),
    "close_reserved_only": ("closed", (1, 40)),
    "abandon": ("abandoned", (1, 40)),
    "cancel": ("cancelled", (0, 0)),
}


@cases(each("second", OUTCOMES), each("first", OUTCOMES))
async def b23_the_first_resolver_wins(bench: Bench, first: str, second: str) -> None:
    """B23, R5: each verb after each other: the first True, the later ones False and without effect."""
    wide = key(rpm=60, tpm=100, concurrency=2)
    state, (requests, tokens) = OUTCOMES[first]
    seen: tuple[Row, ...] = (
        used("key.rpm", requests),
        used("key.tpm", tokens),
        used("key.conc", 0),
    )
    async with bench.table() as table:
        await table.play(
            R("r1", wide, tok=40),
            Resolve("r1", first, 25 if first == "settle_success" else None),
            *seen,
            Resolve("r1", second, 99 if second == "settle_success" else None, won=False),
            Resolve("r1", second, 99 if second == "settle_success" else None, won=False),
            *seen,
        )
        expect('table.handles["r1"].state', table.handles["r1"].state, state)
        expect("table.kinds()", table.kinds(), ["admitted", state])


@cases()
async def b23_dropped_alone_is_abandoned_once(bench: Bench) -> None:
    """B23: a dropped handle is abandoned by the next message, once."""
    hundred = key(tpm=100, concurrency=1)
    async with bench.table() as table:
        await table.play(
            R("r1", hundred, tok=40),
            Gone("r1"),
            used("key.tpm", 40),
            R("r2", hundred, tok=40),
            S("r2", 0),
            used("key.tpm", 40),
        )
        expect(
            "sorted(table.kinds())",
            sorted(table.kinds()),
            ["abandoned", "admitted", "admitted", "settled"],
        )


@cases()
async def b24_the_same_request_id_twice_is_one_debit(bench: Bench) -> None:
    """B24: 60 of 100 once; 40 more fit; the settlement sees the first record, and a second one nothing."""
    hundred = key(rpm=60, tpm=100)
    async with bench.table() as table:
        await table.play(R("r1", hundred, tok=60, request_id="q"))
        again = await table.limiter.pre_commit(hundred, tokens=60, request_id="q")
        expect('again is table.handles["r1"]', again is table.handles["r1"], True)
        await table.play(used("key.tpm", 60), used("key.rpm", 1))
        await table.play(R("r2", hundred, tok=40), R("r3", hundred, deny="key.tpm", after=60))
        expect("await again.settle_success(10)", await again.settle_success(10), True)
        await table.play(used("key.tpm", 50), S("r1", 0, won=False), used("key.tpm", 50))


@cases()
async def b25_one_settlement_counts_in_every_scope(bench: Bench) -> None:
    """B25: 500 over an api_key and a model scope: 500 in each, whatever each held of it."""
    alice, model = (
        key("api_key:alice", tpm=10_000, rpm=60),
        key("model:gpt", tpm=50_000, tpd=90_000),
    )
    both: tuple[Scope, ...] = (alice, model)
    await bench.play(
        R("r1", *both),
        S("r1", 500),
        *(used(of, 500) for of in ("api_key:alice.tpm", "model:gpt.tpm", "model:gpt.tpd")),
        R("r2", *both, tok=700),
        S("r2", 500),
        *(used(of, 1_000) for of in ("api_key:alice.tpm", "model:gpt.tpm", "model:gpt.tpd")),
        used("api_key:alice.rpm", 2),
    )


@cases(each("algorithm", ["fixed_window", "sliding_window", "token_bucket"]))
async def b26_nothing_used_gives_the_whole_estimate_back(bench: Bench, algorithm: str) -> None:
    """B26: tpm 6, hold 5, settle Usage(0, 0): an ask of 6 is admitted in the same window."""
    six = key(tpm=6, algorithm=algorithm)
    await bench.play(
        R("r1", six, tok=5), S("r1", Usage(0, 0)), used("key.tpm", 0), R("r2", six, tok=6)
    )
