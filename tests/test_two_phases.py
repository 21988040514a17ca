"""Two phases: what a reservation takes, and what each way of resolving it leaves (B13–B26)."""

from __future__ import annotations

import pytest

from earmark import Scope, Usage
from tests.rows import A, C, Gone, R, Resolve, Row, S, See, Table, X, key, play, quiet, used

pytestmark = pytest.mark.anyio


async def test_b13_without_an_estimate_tokens_count_at_settlement() -> None:
    """B13: the request counts at once, tokens only when they are known; then the overshoot is paid for."""
    both = key(rpm=60, tpm=1_000)
    await play(
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


@pytest.mark.parametrize(("hold", "charged"), [(0, 600), (100, 500), (600, 0)])
async def test_b14_what_no_hold_covers_is_charged_when_it_is_settled(
    hold: int, charged: int
) -> None:
    """B14: held in one window, settled in the next: the difference is charged to the next."""
    thousand = key(tpm=1_000)
    await play(
        R("r1", thousand, tok=hold, at=50),
        used("key.tpm", hold),
        S("r1", 600, at=70),
        used("key.tpm", charged),
    )


@pytest.mark.parametrize("hold", [0, 40])
@pytest.mark.parametrize(
    "ending", [C("r1"), A("r1"), Gone("r1")], ids=["closed", "abandoned", "dropped"]
)
async def test_b15_without_settlement_the_slot_is_free_and_the_rest_stays(
    ending: Row, hold: int
) -> None:
    """B15: dropped or closed: the slot is free, tokens stay as held, and the request still counts."""
    wide = key(rpm=60, tpm=1_000, concurrency=1)
    await play(
        R("r1", wide, tok=hold),
        R("r2", wide, deny="key.conc"),
        ending,
        used("key.conc", 0),
        used("key.tpm", hold),
        used("key.rpm", 1),
        R("r3", wide),
        used("key.rpm", 2),
    )


async def test_b16_a_settlement_may_overrun_the_limit() -> None:
    """B16: hold 50, settle 50 in + 60 out: used 110 of 100, and the next ask of 1 waits for the window."""
    hundred = key(tpm=100)
    await play(
        R("r1", hundred, tok=50),
        S("r1", Usage(50, 60), at=5),
        See("key.tpm", used=110, left=0, resets=55),
        R("r2", hundred, tok=1, deny="key.tpm", after=55),
        R("r3", hundred, tok=1, at=60),
    )


async def test_b16_a_token_bucket_goes_into_debt() -> None:
    """B16: the same on a bucket: level -10, which 11 refilled units turn into room for 1."""
    hundred = key(tpm=100, algorithm="token_bucket")
    await play(
        R("r1", hundred, tok=50),
        S("r1", Usage(50, 60)),
        See("key.tpm", used=110, left=0, resets=66),
        R("r2", hundred, tok=1, deny="key.tpm", after=6.6),
        R("r3", hundred, tok=1, at=6.599999, deny="key.tpm", after=0.000001),
        R("r4", hundred, tok=1, at=6.6),
    )


async def test_b17_a_bucket_refills_before_it_is_charged() -> None:
    """B17: idle time cannot erase a charge that comes after it: 502 - 2 of 6,000 are used, not 442."""
    bucket = key(tpm=6_000, algorithm="token_bucket")
    await play(
        R("r1", bucket, tok=2),
        S("r1", Usage(2, 500), at=0.6),
        See("key.tpm", used=500, left=5_500),
        R("r2", bucket, tok=5_530, deny="key.tpm", after=0.3),
        R("r3", bucket, tok=5_530, at=0.9),
        See("key.tpm", used=6_000, left=0),
    )


async def test_b18_an_empty_bucket_names_its_time() -> None:
    """B18: 60 a minute, starts full; empty, an ask of 30 waits 30 s."""
    bucket = key(tpm=60, algorithm="token_bucket")
    await play(
        See("key.tpm", used=0, left=60, resets=0, scope=bucket),
        R("r1", bucket, tok=60),
        R("r2", bucket, tok=30, deny="key.tpm", after=30),
        R("r3", bucket, tok=30, at=29.999999, deny="key.tpm", after=0.000001),
        R("r4", bucket, tok=30, at=30),
    )


async def test_b18_a_debit_lowers_the_level() -> None:
    """B18: capacity 600, debit 100: 500 remain."""
    bucket = key(tpm=600, algorithm="token_bucket")
    await play(R("r1", bucket, tok=100), See("key.tpm", used=100, left=500, resets=10))


@pytest.mark.parametrize("giving", [S("r1", 0, at=60), X("r1", at=60), S("r1", 50, at=7)])
async def test_b18_a_refund_never_lifts_a_bucket_above_its_capacity(giving: Row) -> None:
    """B18: what the clock refilled is not given back once more."""
    bucket = key(tpm=600, algorithm="token_bucket")
    await play(
        R("r1", bucket, tok=100),
        giving,
        See("key.tpm", used=0, left=600, resets=0),
        R("r2", bucket, tok=600),
        R("r3", bucket, deny="key.tpm", after=0.1),
    )


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
async def test_b19_more_than_a_limit_can_hold(algorithm: str) -> None:
    """B19: ask 2 of tpm 1: refused, not retryable; exactly the capacity on an unused limit: admitted."""
    one = key(tpm=1, algorithm=algorithm)
    await play(
        R("r1", one, tok=2, deny="key.tpm", after=None, never=True),
        R("r2", one, tok=1),
        R("r3", one, tok=2, deny="key.tpm", after=None, never=True),
    )


async def test_b20_the_whole_waits_for_the_slowest() -> None:
    """B20: retry_after of the whole is the largest over scopes and limits, wherever it stands."""
    minute, day = key("a", rpm=1, rps=1), key("b", rpd=1)
    bucket = key("c", rpm=2, algorithm="token_bucket")
    await play(
        R("r1", minute, day, bucket, at=10.25),
        R("r2", minute, bucket, deny="a.rps a.rpm", after=49.75),
        R("r3", day, minute, deny="b.rpd a.rps a.rpm", after=86_389.75),
        R("r4", bucket),
        R("r5", bucket, minute, deny="c.rpm a.rps a.rpm", after=49.75),
        R("r6", bucket, minute, at=59.5, deny="a.rpm", after=0.5),
    )


async def test_b21_a_model_rule_beside_the_tenants_own_limits() -> None:
    """B21: the model's refusal leaves the tenant's counter alone, and another model has its own."""
    tenant = key("tenant", tpm=10_000)
    big, small = key("tenant/big", tpm=50), key("tenant/small", tpm=50)
    await play(
        R("r1", tenant, big, tok=40),
        R("r2", tenant, big, tok=20, deny="tenant/big.tpm", after=60),
        used("tenant.tpm", 40),
        R("r3", tenant, small, tok=20),
        used("tenant.tpm", 60),
    )


@pytest.mark.parametrize(
    "ending", [C("r1"), A("r1"), Gone("r1")], ids=["closed", "abandoned", "dropped"]
)
@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
async def test_b22_a_closed_hold_stays_used(algorithm: str, ending: Row) -> None:
    """B22: hold 100 of 100, then close or abandon: the next ask of 1 is refused."""
    hundred = key(tpm=100, algorithm=algorithm)
    await play(R("r1", hundred, tok=100), ending, R("r2", hundred, tok=1, deny="key.tpm"))


OUTCOMES = {
    "settle_success": ("settled", (1, 25)),
    "close_reserved_only": ("closed", (1, 40)),
    "abandon": ("abandoned", (1, 40)),
    "cancel": ("cancelled", (0, 0)),
}


@pytest.mark.parametrize("second", OUTCOMES)
@pytest.mark.parametrize("first", OUTCOMES)
async def test_b23_the_first_resolver_wins(first: str, second: str) -> None:
    """B23, R5: each verb after each other: the first True, the later ones False and without effect."""
    wide = key(rpm=60, tpm=100, concurrency=2)
    state, (requests, tokens) = OUTCOMES[first]
    seen: tuple[Row, ...] = (
        used("key.rpm", requests),
        used("key.tpm", tokens),
        used("key.conc", 0),
    )
    async with Table() as table:
        await table.play(
            R("r1", wide, tok=40),
            Resolve("r1", first, 25 if first == "settle_success" else None),
            *seen,
            Resolve("r1", second, 99 if second == "settle_success" else None, won=False),
            Resolve("r1", second, 99 if second == "settle_success" else None, won=False),
            *seen,
        )
        assert table.handles["r1"].state == state
        assert table.kinds() == ["admitted", state]


async def test_b23_settled_then_dropped_is_settled_only() -> None:
    """B23: dropping a resolved handle warns of nothing and changes nothing."""
    hundred = key(tpm=100)
    async with Table() as table:
        await table.play(R("r1", hundred, tok=40), S("r1", 25))
        with quiet():
            del table.handles["r1"]
        await table.play(used("key.tpm", 25))
        assert table.kinds() == ["admitted", "settled"]


async def test_b23_dropped_alone_is_abandoned_once() -> None:
    """B23: a dropped handle is abandoned by the next message, once."""
    hundred = key(tpm=100, concurrency=1)
    async with Table() as table:
        await table.play(
            R("r1", hundred, tok=40),
            Gone("r1"),
            used("key.tpm", 40),
            R("r2", hundred, tok=40),
            S("r2", 0),
            used("key.tpm", 40),
        )
        assert sorted(table.kinds()) == ["abandoned", "admitted", "admitted", "settled"]


async def test_b24_the_same_request_id_twice_is_one_debit() -> None:
    """B24: 60 of 100 once; 40 more fit; the settlement sees the first record, and a second one nothing."""
    hundred = key(rpm=60, tpm=100)
    async with Table() as table:
        await table.play(R("r1", hundred, tok=60, request_id="q"))
        again = await table.limiter.pre_commit(hundred, tokens=60, request_id="q")
        assert again is table.handles["r1"]
        await table.play(used("key.tpm", 60), used("key.rpm", 1))
        await table.play(R("r2", hundred, tok=40), R("r3", hundred, deny="key.tpm", after=60))
        assert await again.settle_success(10)
        await table.play(used("key.tpm", 50), S("r1", 0, won=False), used("key.tpm", 50))


async def test_b25_one_settlement_counts_in_every_scope() -> None:
    """B25: 500 over an api_key and a model scope: 500 in each, whatever each held of it."""
    alice, model = (
        key("api_key:alice", tpm=10_000, rpm=60),
        key("model:gpt", tpm=50_000, tpd=90_000),
    )
    both: tuple[Scope, ...] = (alice, model)
    await play(
        R("r1", *both),
        S("r1", 500),
        *(used(of, 500) for of in ("api_key:alice.tpm", "model:gpt.tpm", "model:gpt.tpd")),
        R("r2", *both, tok=700),
        S("r2", 500),
        *(used(of, 1_000) for of in ("api_key:alice.tpm", "model:gpt.tpm", "model:gpt.tpd")),
        used("api_key:alice.rpm", 2),
    )


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
async def test_b26_nothing_used_gives_the_whole_estimate_back(algorithm: str) -> None:
    """B26: tpm 6, hold 5, settle Usage(0, 0): an ask of 6 is admitted in the same window."""
    six = key(tpm=6, algorithm=algorithm)
    await play(R("r1", six, tok=5), S("r1", Usage(0, 0)), used("key.tpm", 0), R("r2", six, tok=6))
