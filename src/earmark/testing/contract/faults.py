"""Faults of settlements, windows and retries that such systems had, each named by its case (C17–C29)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import ALGORITHMS, Bench, Cases, each
from earmark.testing.rows import C, Empty, P, R, S, See, X, key, used
from earmark.testing.table import Row, expect

cases: Final = Cases()


@cases(each("failed", [S("r1", 0, at=62), X("r1", at=62)]))
async def c17_a_refund_after_the_window_erases_nobody_elses_hold(bench: Bench, failed: Row) -> None:
    """C17: the refund hit the current minute: used fell to 0, and r3 was admitted."""
    hundred = key(tpm=100)
    await bench.play(
        R("r1", hundred, tok=80, at=55),
        R("r2", hundred, tok=80, at=61),
        failed,
        used("key.tpm", 80),
        R("r3", hundred, tok=30, at=63, deny="key.tpm", after=57),
        R("r4", hundred, tok=20, at=64),
    )


@cases()
async def c19_each_limit_has_its_own_window(bench: Bench) -> None:
    """C19: requests renewed the window that tokens shared, and the call at 60 was refused."""
    scope = key(rpm=500, tpm=186)
    await bench.play(
        *(R(f"r{at}", scope, tok=31, at=at) for at in range(0, 61, 10)), used("key.tpm", 31)
    )


@cases(each("algorithm", ALGORITHMS))
async def c20_steady_traffic_within_the_limit_is_never_denied(bench: Bench, algorithm: str) -> None:
    """C20: each update renewed the counter's expiry, so it never expired."""
    hundred = key(tpm=100, algorithm=algorithm)
    await bench.play(*(R(f"r{at}", hundred, tok=10, at=at) for at in range(0, 600, 10)))


@cases(
    each("window", [1, 60, 86_400]),
    each(
        ("algorithm", "counts_for"),
        [("fixed_window", 1), ("sliding_window", 2), ("token_bucket", 1)],
    ),
)
async def c23_state_is_kept_as_long_as_it_counts_and_no_longer(
    bench: Bench, algorithm: Any, counts_for: int, window: int
) -> None:
    """C23: too short a life silently refilled a drained quota; too long a one filled the store."""
    scope = Scope("key", Limits(also=(Limit("requests", 1_000, window, algorithm),)))
    of, end = (
        ("key.rps" if window == 1 else "key.rpm" if window == 60 else "key.rpd"),
        window * counts_for,
    )
    await bench.play(
        R("r1", scope, amounts={"requests": 1_000}),
        C("r1"),
        See(of, used=1_000, resets=end),
        used(of, 1, at=end - 1e-6)
        if algorithm != "fixed_window"
        else used(of, 1_000, at=end - 1e-6),
        See(of, used=0, at=end),
        R("r2", key("other"), at=end + 2 * window),
        C("r2"),
        Empty(),
    )


@cases()
async def c23_a_drained_day_stays_drained_over_an_idle_gap(bench: Bench) -> None:
    """C23: twenty idle hours later the day's quota had refilled by itself."""
    one = key(rpd=1)
    await bench.play(R("r1", one, at=0), R("r2", one, at=72_000, deny="key.rpd", after=14_400))


@cases()
async def c24_a_second_settlement_is_no_second_refund(bench: Bench) -> None:
    """C24: holds kept as a bare counter: settling h1 twice released h2's share too."""
    ten = key(tpm=10, concurrency=3)
    await bench.play(
        R("h1", ten, tok=4),
        R("h2", ten, tok=4),
        S("h1", 1),
        S("h1", 1, won=False),
        used("key.tpm", 5),
        used("key.conc", 1),
        R("h3", ten, tok=6, deny="key.tpm"),
        R("h4", ten, tok=5),
    )


@cases(each("algorithm", ALGORITHMS))
async def c25_a_refund_that_is_tried_three_times_is_given_once(
    bench: Bench, algorithm: str
) -> None:
    """C25: each retry of the refund gave 10 more back."""
    scope = key(tpm=1_000, algorithm=algorithm)
    await bench.play(
        P(scope, 100),
        R("r1", scope, tok=10),
        X("r1"),
        X("r1", won=False),
        X("r1", won=False),
        used("key.tpm", 100),
    )


@cases()
async def c28_retries_under_one_id_count_once(bench: Bench) -> None:
    """C28a: each attempt took another request; one guarded reservation takes one."""
    tenant = key("tenant", rpm=1, tpm=1_000)
    async with bench.table() as table:
        await table.play(R("r1", tenant, at=0, request_id="r1"))
        table.clock.set(2)
        again = await table.limiter.pre_commit(tenant, request_id="r1")
        expect('again is table.handles["r1"]', again is table.handles["r1"], True)
        await table.play(S("r1", 50), used("tenant.rpm", 1), used("tenant.tpm", 50))


@cases()
async def c28_debt_is_paid_by_the_clock(bench: Bench) -> None:
    """C28b: 1,000 a minute, full; hold 100, actual 1,500: level -500, and a further 100 needs 36 s."""
    bucket = key(tpm=1_000, algorithm="token_bucket")
    await bench.play(
        R("r1", bucket, tok=100),
        S("r1", 1_500),
        See("key.tpm", used=1_500, left=0, resets=90),
        R("r2", bucket, tok=100, deny="key.tpm", after=36),
        R("r2", bucket, tok=100, at=35.999999, deny="key.tpm", after=0.000001),
        R("r2", bucket, tok=100, at=36),
    )


@cases(each(("leave", "kept"), [(X("q1"), 0), (C("q1"), 50)]))
async def c29_the_provider_that_served_carries_the_charge_and_the_user_pays_once(
    bench: Bench, leave: Row, kept: int
) -> None:
    """C29: the second hop was refused by the first hop's own count of the user."""
    user, p1, p2 = key("user", rpm=1), key("p1", tpm=1_000), key("p2", tpm=1_000)
    await bench.play(
        R("q", user, tok=50),
        R("q1", p1, tok=50),
        leave,
        R("q2", p2, tok=50),
        S("q2", 70),
        S("q", 70),
        used("p1.tpm", kept),
        used("p2.tpm", 70),
        used("user.rpm", 1),
        R("next", user, deny="user.rpm"),
    )
