"""Faults that such systems had, as cases, each named by its number: what memory and one process can show.

Windows are 60 s from t = 0. Each docstring says what the faulty system did.
"""

from __future__ import annotations

import copy
import gc
import sys
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from earmark import Limit, Limiter, Limits, MemoryBackend, RateLimited, Reservation, Scope, Usage
from earmark.testing import ManualClock
from tests.rows import A, C, Empty, N, P, R, Row, S, See, Table, X, key, play, used

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# Concurrency slots


@pytest.mark.parametrize("ending", [C, A])
async def test_c01_a_failed_request_frees_its_slot(ending: Any) -> None:
    """C1: the provider timed out: closing frees the slot, and the counter does not creep up to its cap."""
    two = key(concurrency=2)
    await play(
        R("r1", two, at=0),
        R("r2", two),
        R("r3", two, at=11, deny="key.conc", after=None),
        ending("r1"),
        ending("r2"),
        R("r3", two),
        R("r4", two),
    )


async def test_c01_a_dead_holder_frees_its_slot_after_one_lease() -> None:
    """C1: no close at all: the slots are free when the lease is over, at that very moment."""
    two = key(concurrency=2)
    await play(
        R("r1", two, at=0),
        R("r2", two),
        R("r3", two, at=59, deny="key.conc"),
        R("r3", two, at=59.999999, deny="key.conc"),
        R("r3", two, at=60),
        R("r4", two, at=61),
        R("r5", two, deny="key.conc"),
    )


async def test_c02_steady_traffic_keeps_no_leaked_slot_alive() -> None:
    """C2: one lost release was renewed by every later acquire, since the lease was of the whole counter."""
    two = key(concurrency=2)
    await play(
        R("r1", two, at=0),
        R("r2", two, at=30),
        S("r2", 0, at=31),
        R("r3", two, at=55),
        S("r3", 0, at=56),
        R("r4", two, at=61),
        R("r5", two),
        R("r6", two, deny="key.conc"),
    )


async def test_c04_a_release_that_comes_twice_frees_one_slot() -> None:
    """C4: the second delivery of a release is a no-op: it frees nobody else's slot."""
    one = key(concurrency=1)
    await play(
        R("r1", one, at=0),
        R("r2", one, at=2, deny="key.conc"),
        S("r1", 0, at=3),
        R("r2", one),
        S("r1", 0, at=4, won=False),
        R("r3", one, deny="key.conc"),
    )


async def test_c05_a_renewed_lease_holds() -> None:
    """C5a: a lease written once was pruned under a running holder; renewed every 10 s it stays."""
    one = key(concurrency=1)
    await play(
        R("r1", one),
        *(N("r1", at=at) for at in (10, 20, 30)),
        R("r2", one, at=35, deny="key.conc"),
        *(N("r1", at=at) for at in range(40, 91, 10)),
        R("r3", one, at=100, deny="key.conc"),
        R("r3", one, at=119.999999, deny="key.conc"),
        R("r4", one, at=121),
        lease=30,
    )


async def test_c05_late_renewals_and_releases_touch_no_other_slot() -> None:
    """C5b: after its lease a renewal must not revive a slot, nor a release free another's."""
    one = key(concurrency=1)
    await play(
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


async def test_c05_a_late_renewal_revives_nothing_even_where_there_is_room() -> None:
    """C5b: lapsed is lapsed: a free place is no reason to take it back."""
    one = key(concurrency=1)
    await play(
        R("r1", one),
        N("r1", held=False, at=30),
        used("key.conc", 0),
        R("r2", one),
        lease=30,
    )


async def test_c06_a_stream_keeps_its_slot_and_settles_after_the_handler_returned() -> None:
    """C6: the handler returns before the body is sent: the slot stays taken, the tokens are counted."""
    scope = key(concurrency=1, tpm=100)

    async def body() -> Any:
        yield {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": "hi"}}],
        }
        yield {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        }
        yield {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120},
        }

    async with Table() as table:

        async def handler() -> Any:
            async with await table.limiter.pre_commit(scope) as reservation:
                return reservation.stream(body())

        stream = await handler()
        await table.play(R("r2", scope, at=1, deny="key.conc"))
        items = [item async for item in stream]
        assert len(items) == 3
        await table.play(
            used("key.tpm", 120),
            used("key.conc", 0),
            R("r3", scope, at=6, deny="key.tpm", after=54),
            R("r4", scope, at=60),
        )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_c08_any_copy_of_the_handle_resolves(copied: Any) -> None:
    """C8: the release was looked up on a stale copy of the request, and never happened."""
    one = key(concurrency=1, tpm=100)
    async with Table() as table:
        await table.play(R("r1", one, tok=50))
        twin: Reservation = copied(table.handles["r1"])
        won: list[bool] = []

        async def answer_from_cache() -> None:
            won.append(await twin.settle_success(0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_from_cache)
        assert won == [True]
        await table.play(
            S("r1", 50, won=False), used("key.tpm", 0), used("key.conc", 0), R("r2", one, tok=100)
        )


# Rejection and rollback


async def test_c09_refused_by_concurrency_costs_no_request() -> None:
    """C9: B's refusal consumed the request quota, and C was denied."""
    scope = key(rpm=2, concurrency=1)
    await play(
        R("A", scope, at=0),
        R("B", scope, at=1, deny="key.conc"),
        S("A", 0, at=2),
        R("C", scope, at=3),
        used("key.rpm", 2),
    )


async def test_c10_a_later_scopes_refusal_drains_no_earlier_one() -> None:
    """C10: under a saturated team limit a member's own daily quota drained with no request served."""
    mine, team = key("key", rpd=3), key("team", rpm=1)
    await play(
        R("r1", mine, team, at=0),
        *(R(f"r{n + 1}", mine, team, at=n, deny="team.rpm", after=60 - n) for n in range(1, 9)),
        R("r10", mine, team, at=60),
        R("r11", mine, team, at=120),
        R("r12", mine, team, at=180, deny="key.rpd", after=86_220),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c11_an_oversized_ask_burns_nothing(algorithm: str) -> None:
    """C11: the refused ask of 5 also consumed what was left."""
    ten = key(tpm=10, algorithm=algorithm)
    await play(
        R("r1", ten, tok=8),
        R("r2", ten, tok=5, deny="key.tpm"),
        See("key.tpm", used=8, left=2),
        R("r3", ten, tok=1),
        See("key.tpm", used=9, left=1),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c13_a_rollback_returns_what_was_taken(algorithm: str) -> None:
    """C13: rolling a back returned another amount than a was charged, above its capacity."""
    a, b = key("a", tpm=10, algorithm=algorithm), key("b", tpm=3, algorithm=algorithm)
    await play(
        R("x", a, b, tok=5, deny="b.tpm", never=True),
        See("a.tpm", used=0, left=10),
        See("b.tpm", used=0, left=3),
        R("y", a, tok=10),
    )


class Stalling:
    """A backend that stands still before or after it reserves, until somebody gives up on it."""

    instant = False

    def __init__(self, inner: MemoryBackend, where: str) -> None:
        self._inner = inner
        self._where = where
        self.stalled = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def reserve(self, *message: Any) -> Any:
        for where in ("before", "after"):
            if where == self._where:
                self.stalled.set()
                await anyio.sleep_forever()
            if where == "before":
                await self._inner.reserve(*message)
        raise AssertionError


@pytest.mark.parametrize("where", ["before", "after"])
async def test_c14_a_cancelled_pre_commit_gives_back_what_it_took_and_no_more(where: str) -> None:
    """C14: cancelled between "listed as applied" and "done", it gave back what it had never taken: used 10."""
    scope = key(tpm=100, concurrency=2)
    async with Table() as table:
        await table.play(P(scope, 40))
        backend = Stalling(table.backend, where)
        limiter = Limiter(backend, observers=(table.events.append,))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(limiter.pre_commit, scope, tokens=30, request_id="x"))
            await backend.stalled.wait()
            tasks.cancel_scope.cancel()
        await table.play(
            used("key.tpm", 40), used("key.conc", 0), R("x", scope, tok=60, request_id="x")
        )
        assert "admitted" not in table.kinds()[:-1]


async def test_c16_one_scope_over_its_limit_and_the_others_still_counted() -> None:
    """C16: b counted the refused ones too. Admitted and denied are exported as what they are."""
    a, b = key("a", rpm=1), key("b", rpm=5)
    async with Table() as table:
        await table.play(
            R("r0", a, b, at=0),
            *(R(f"r{n}", a, b, at=n, deny="a.rpm") for n in range(1, 5)),
            used("b.rpm", 1),
        )
        assert (table.kinds().count("admitted"), table.kinds().count("refused")) == (1, 4)


# Settlement, windows, idempotency


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


# Estimates and check-then-act


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c31_of_five_at_once_only_one_fits(algorithm: str) -> None:
    """C31: all five passed a check that one of them may pass."""
    hundred = key(tpm=100, algorithm=algorithm)
    refused: list[int] = []
    async with Table() as table:

        async def ask(name: str) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[name] = await table.limiter.pre_commit(hundred, tokens=58)
            except RateLimited as refusal:
                refused.extend(denial.used for denial in refusal.denials)

        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(ask, f"r{n}")
        assert (len(table.handles), refused) == (1, [58] * 4)
        assert sorted(table.kinds()) == ["admitted"] + ["refused"] * 4


async def test_c32_an_estimate_holds_what_it_says_and_no_more() -> None:
    """C32: an unknown output size reserved the whole headroom; an estimate of 0 also did."""
    scope = key(tpm=100_000)
    await play(
        R("zero", scope),
        used("key.tpm", 0),
        *(R(f"r{n}", scope, tok=16_384) for n in range(6)),
        used("key.tpm", 98_304),
        R("r7", scope, tok=16_384, deny="key.tpm", after=60),
        R("hostile", scope, tok=10**9, deny="key.tpm", after=None, never=True),
    )


async def test_c34_n_multiplies_the_output_and_not_the_prompt() -> None:
    """C34: prompt 100, max_tokens 200: n = 4 asks 900, n = 5 asks 1,100; usage has the prompt once."""
    thousand = key(tpm=1_000)
    await play(
        R("n5", thousand, tok=100 + 5 * 200, deny="key.tpm", after=None, never=True),
        R("n4", thousand, tok=100 + 4 * 200),
        S("n4", Usage(100, 4 * 150)),
        used("key.tpm", 700),
    )


async def test_c37_no_estimate_is_demanded() -> None:
    """C37: an estimate was demanded even where no token limit applies."""
    requests, tokens = key("a", rpm=60), key("b", tpm=1_000)
    await play(
        R("r1", requests),
        S("r1", Usage(30, 20)),
        R("r2", tokens),
        used("b.tpm", 0),
        S("r2", Usage(900, 200)),
        used("b.tpm", 1_100),
        R("r3", tokens, deny="b.tpm"),
    )


# Numbers, races, keys


async def test_c62_debt_gives_nothing_away() -> None:
    """C62: in debt, "take what is there" returned a negative number and added tokens."""
    bucket = key(tpm=50, algorithm="token_bucket")
    debt = See("key.tpm", used=80, left=0, refuses=True)
    await play(
        R("r1", bucket),
        S("r1", 80),
        debt,
        R("r2", bucket, tok=10, deny="key.tpm", after=48),
        R("r3", bucket, deny="key.tpm", after=37.2),
        debt,
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c62_ten_idle_years_leave_nothing_used(algorithm: str) -> None:
    """C62: long idleness overflowed; it must leave exactly nothing used, and everything admitted."""
    fifty = key(tpm=50, rpd=9, algorithm=algorithm)
    ten_years = 10 * 365 * 86_400.0
    await play(
        R("r1", fifty, tok=50, at=1.5),
        S("r1", 130),
        See("key.tpm", used=0, left=50, refuses=False, at=ten_years),
        See("key.rpd", used=0, left=9),
        R("r2", fifty, tok=50),
        See("key.tpm", used=50, left=0),
    )


TOP = 2**53 - 1


async def test_c62_amounts_up_to_the_top_are_exact() -> None:
    """C62, R12: every unit counts up to 2**53 - 1, and there the counter stays."""
    most = key(tpm=TOP, tpd=TOP)
    await play(
        R("r1", most, tok=TOP - 2),
        See("key.tpm", used=TOP - 2, left=2),
        R("r2", most, tok=3, deny="key.tpm key.tpd"),
        R("r3", most, tok=1),
        See("key.tpm", used=TOP - 1, left=1),
        S("r1", TOP - 3),
        See("key.tpd", used=TOP - 2, left=2),
        R("r4", most, tok=2),
        R("r5", most, deny="key.tpm key.tpd", after=86_400),
        P(most, TOP),
        P("key", TOP),
        See("key.tpm", used=TOP, left=0),
        R("r6", most, at=60, deny="key.tpd"),
        R("r7", most, tok=TOP, at=86_400),
        See("key.tpd", used=TOP, left=0),
    )


@pytest.mark.parametrize("algorithm", ["sliding_window", "token_bucket"])
async def test_c62_the_largest_amounts_overflow_nothing(algorithm: str) -> None:
    """C62: the top amount on the fractional algorithms: full, refused with a time, free at that time."""
    most = key(tpm=TOP, algorithm=algorithm)
    end = 120 if algorithm == "sliding_window" else 60
    await play(
        R("r1", most, tok=TOP),
        S("r1", TOP),
        See("key.tpm", resets=end),
        R("r2", most, tok=TOP, deny="key.tpm", after=end),
        P(most, TOP),
        R("r3", most, tok=TOP, at=10 * 365 * 86_400),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c65_a_thousand_at_once_on_ten_keys(algorithm: str) -> None:
    """C65: a cut-off computed outside the lock dropped fresh entries, and the limit was never hit."""
    scopes = [key(f"key{n}", rpd=4, algorithm=algorithm) for n in range(10)]
    async with Table() as table:

        async def ask(n: int) -> None:
            await anyio.lowlevel.checkpoint()
            try:
                table.handles[f"r{n}"] = await table.limiter.pre_commit(scopes[n % 10])
            except RateLimited:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(1_000):
                tasks.start_soon(ask, n)
        assert len(table.handles) == 40
        await table.play(*(used(f"key{n}.rpd", 4, scope=scopes[n]) for n in range(10)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_c65_a_small_cost_after_a_large_one_counts(algorithm: str) -> None:
    """C65: a large cost followed by a small one was not counted."""
    ten = key(tpm=10, algorithm=algorithm)
    await play(R("r1", ten, tok=8), R("r2", ten, tok=1), R("r3", ten, tok=2, deny="key.tpm"))


AWKWARD = [
    *(
        "a",
        "a:",
        ":a",
        "a:b",
        "a:b:c",
        "a::b",
        "{a}",
        "{a",
        "a}",
        "a{b}c",
        "%",
        "%3A",
        "a%3Ab",
        "a%00",
    ),
    *(
        "a\0",
        "\0",
        "a\0b",
        "a\nb",
        "a\n",
        " a",
        "a ",
        "A",
        "é",
        "e\u0301",
        "0123456789x",
        "0123456789y",
    ),
    *(
        "a:tokens",
        "a:fixed_window:60000000:tokens",
        "fixed_window:60000000:tokens",
        "a\r\n",
        "*",
        "a*",
        "\\",
        "🙂",
    ),
]


async def test_c67_no_two_keys_share() -> None:
    """C67, R13: delimiters inside keys, cut-off prefixes, control characters: each key is its own."""
    scopes = [key(name, tpm=1_000, rpm=10, concurrency=3) for name in AWKWARD]
    async with Table() as table:
        for n, scope in enumerate(scopes, 1):
            await table.play(R(f"r{n}", scope, tok=n))
        for n, status in enumerate(await table.limiter.peek(*scopes), 1):
            assert status.key == AWKWARD[n - 1]
            assert [one.used for one in status.limits] == [1, n, 1]


async def test_c67_a_delimiter_between_key_and_metric_joins_nothing() -> None:
    """C67: ("a", "b:c") and ("a:b", "c") never share."""
    one = Scope("a", Limits(also=(Limit("b:c", 10, 60),)))
    other = Scope("a:b", Limits(also=(Limit("c", 10, 60),)))
    await play(
        R("r1", one, amounts={"b:c": 7}),
        used("a:b.c/60", 0, scope=other),
        R("r2", other, amounts={"c": 2}),
        used("a.b:c/60", 7),
        used("a:b.c/60", 2),
    )


async def test_c67_two_rules_on_one_scope_are_two_counters() -> None:
    """C67: two limits of one scope that differ in metric, window or algorithm count apart."""
    scope = Scope(
        "key",
        Limits(
            tpm=1_000, tph=1_000, itpm=1_000, also=(Limit("tokens", 1_000, 60, "sliding_window"),)
        ),
    )
    async with Table() as table:
        await table.play(R("r1", scope, tok=Usage(30, 20), at=30))
        table.clock.set(90)
        (status,) = await table.limiter.peek(scope)
        assert [one.used for one in status.limits] == [0, 50, 0, 25]


def reachable_bytes(*roots: object) -> int:
    """The bytes of everything that these objects hold, the slack of their tables included."""
    seen, todo, total = {id(root) for root in roots}, list(roots), 0
    while todo:
        total += sys.getsizeof(todo[-1])
        for held in gc.get_referents(todo.pop()):
            if id(held) not in seen and not isinstance(held, type | ModuleType | FunctionType):
                seen.add(id(held))
                todo.append(held)
    return total


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c67_a_million_keys_once_each_leave_nothing() -> None:
    """C67, R14: a million keys, each used once; two windows later, memory is back to what it was before."""
    clock = ManualClock()
    backend = MemoryBackend(clock=clock)
    limiter = Limiter(backend)
    limits = Limits(rpm=60, tpm=1_000)
    traffic = Scope("traffic", limits)

    async def use(*scopes: Scope) -> None:
        await (await limiter.pre_commit(*scopes, tokens=5)).close_reserved_only()

    await use(traffic)
    gc.collect()
    held, blocks = reachable_bytes(limiter), sys.getallocatedblocks()
    for n in range(0, 1_000_000, 20):
        await use(*(Scope(f"user:{n + one}", limits) for one in range(20)))
    assert backend.size() >= 2_000_000
    for window in (1, 2):
        clock.set(60 * window)
        await use(traffic)
    gc.collect()
    assert reachable_bytes(limiter) - held < 10_000
    assert sys.getallocatedblocks() - blocks < 10_000
    clock.set(180)
    assert backend.size() == MemoryBackend().size()
