"""Faults of settlements, windows and retries that such systems had, each named by its case (C17–C29).

Windows are 60 s from t = 0. Each docstring says what the faulty system did.
"""

from __future__ import annotations

from typing import Any

import pytest

from earmark import Limit, Limiter, Limits, MemoryBackend, Scope
from tests.rows import C, Empty, P, R, Row, S, See, Table, X, key, play, used

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


@pytest.mark.parametrize(
    "failed", [S("r1", 0, at=62), X("r1", at=62)], ids=["settled", "cancelled"]
)
async def test_c17_a_refund_after_the_window_erases_nobody_elses_hold(failed: Row) -> None:
    """C17: the refund hit the current minute: used fell to 0, and r3 was admitted."""
    hundred = key(tpm=100)
    await play(
        R("r1", hundred, tok=80, at=55),
        R("r2", hundred, tok=80, at=61),
        failed,
        used("key.tpm", 80),
        R("r3", hundred, tok=30, at=63, deny="key.tpm", after=57),
        R("r4", hundred, tok=20, at=64),
    )


async def test_c19_each_limit_has_its_own_window() -> None:
    """C19: requests renewed the window that tokens shared, and the call at 60 was refused."""
    scope = key(rpm=500, tpm=186)
    await play(*(R(f"r{at}", scope, tok=31, at=at) for at in range(0, 61, 10)), used("key.tpm", 31))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c20_steady_traffic_within_the_limit_is_never_denied(algorithm: str) -> None:
    """C20: each update renewed the counter's expiry, so it never expired."""
    hundred = key(tpm=100, algorithm=algorithm)
    await play(*(R(f"r{at}", hundred, tok=10, at=at) for at in range(0, 600, 10)))


async def test_c22_a_request_is_judged_and_counted_at_one_moment() -> None:
    """C22: the window ended between the look and the count, which then landed below nothing."""
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return reads + 0.25

    limiter = Limiter(MemoryBackend(clock=clock))
    for _ in range(10):
        reservation = await limiter.pre_commit(key(rps=3_000))
        (status,) = reservation.statuses[0].limits
        assert (status.used, status.remaining, status.reset_after) == (1, 2_999, 0.75)
        assert await reservation.close_reserved_only()


@pytest.mark.parametrize("window", [1, 60, 86_400])
@pytest.mark.parametrize(
    ("algorithm", "counts_for"), [("fixed_window", 1), ("sliding_window", 2), ("token_bucket", 1)]
)
async def test_c23_state_is_kept_as_long_as_it_counts_and_no_longer(
    algorithm: Any, counts_for: int, window: int
) -> None:
    """C23: too short a life silently refilled a drained quota; too long a one filled the store."""
    scope = Scope("key", Limits(also=(Limit("requests", 1_000, window, algorithm),)))
    of, end = (
        ("key.rps" if window == 1 else "key.rpm" if window == 60 else "key.rpd"),
        window * counts_for,
    )
    await play(
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


async def test_c23_a_drained_day_stays_drained_over_an_idle_gap() -> None:
    """C23: twenty idle hours later the day's quota had refilled by itself."""
    one = key(rpd=1)
    await play(R("r1", one, at=0), R("r2", one, at=72_000, deny="key.rpd", after=14_400))


async def test_c24_a_second_settlement_is_no_second_refund() -> None:
    """C24: holds kept as a bare counter: settling h1 twice released h2's share too."""
    ten = key(tpm=10, concurrency=3)
    await play(
        R("h1", ten, tok=4),
        R("h2", ten, tok=4),
        S("h1", 1),
        S("h1", 1, won=False),
        used("key.tpm", 5),
        used("key.conc", 1),
        R("h3", ten, tok=6, deny="key.tpm"),
        R("h4", ten, tok=5),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c25_a_refund_that_is_tried_three_times_is_given_once(algorithm: str) -> None:
    """C25: each retry of the refund gave 10 more back."""
    scope = key(tpm=1_000, algorithm=algorithm)
    await play(
        P(scope, 100),
        R("r1", scope, tok=10),
        X("r1"),
        X("r1", won=False),
        X("r1", won=False),
        used("key.tpm", 100),
    )


async def test_c28_retries_under_one_id_count_once() -> None:
    """C28a: each attempt took another request; one guarded reservation takes one."""
    tenant = key("tenant", rpm=1, tpm=1_000)
    async with Table() as table:
        await table.play(R("r1", tenant, at=0, request_id="r1"))
        table.clock.set(2)
        again = await table.limiter.pre_commit(tenant, request_id="r1")
        assert again is table.handles["r1"]
        await table.play(S("r1", 50), used("tenant.rpm", 1), used("tenant.tpm", 50))


async def test_c28_debt_is_paid_by_the_clock() -> None:
    """C28b: 1,000 a minute, full; hold 100, actual 1,500: level -500, and a further 100 needs 36 s."""
    bucket = key(tpm=1_000, algorithm="token_bucket")
    await play(
        R("r1", bucket, tok=100),
        S("r1", 1_500),
        See("key.tpm", used=1_500, left=0, resets=90),
        R("r2", bucket, tok=100, deny="key.tpm", after=36),
        R("r2", bucket, tok=100, at=35.999999, deny="key.tpm", after=0.000001),
        R("r2", bucket, tok=100, at=36),
    )


@pytest.mark.parametrize(
    ("leave", "kept"), [(X("q1"), 0), (C("q1"), 50)], ids=["never sent", "unknown"]
)
async def test_c29_the_provider_that_served_carries_the_charge_and_the_user_pays_once(
    leave: Row, kept: int
) -> None:
    """C29: the second hop was refused by the first hop's own count of the user."""
    user, p1, p2 = key("user", rpm=1), key("p1", tpm=1_000), key("p2", tpm=1_000)
    await play(
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
