"""Refusals: what is judged, what each refusal says, and that it is exact to the microsecond (R1–R4)."""

from __future__ import annotations

from typing import Any

import pytest

from earmark import Limit, Limiter, Limits, RateLimited, Scope, Usage
from tests.rows import C, P, R, Row, S, See, Stores, Table, key, play, used

pytestmark = pytest.mark.anyio


def one(
    amount: int, window: float, algorithm: Any = "fixed_window", burst: int | None = None
) -> Scope:
    """A scope with one limit of tokens."""
    return Scope("key", Limits(also=(Limit("tokens", amount, window, algorithm, burst),)))


def took(*takes: tuple[float, int]) -> tuple[tuple[float, int], ...]:
    """What was taken when, for a table of histories."""
    return takes


SLIDE, POUR = "sliding_window", "token_bucket"


@pytest.mark.parametrize(
    ("scope", "history", "at", "ask", "after"),
    [
        # A fixed window frees everything at its end.
        (one(100, 60), took((0, 100)), 42.5, 1, 17.5),
        (one(100, 60), took((0, 60)), 0, 41, 60),
        (one(100, 1), took((7.25, 100)), 7.25, 100, 0.75),
        (one(100, 0.3), took((0.1, 100)), 0.1, 1, 0.2),
        (one(3, 86_400), took((1_753_920_007.125, 3)), 1_753_920_007.125, 1, 86_400 - 7.125),
        # A sliding window frees with the weight of the previous one, which ends with its second window.
        (one(100, 60, SLIDE), took((0, 100)), 60, 1, 0.6),
        (one(100, 60, SLIDE), took((0, 100)), 10, 1, 50.6),
        (one(100, 60, SLIDE), took((0, 100)), 10, 100, 110),
        (one(100, 60, SLIDE), took((0, 100)), 90, 51, 0.6),
        (one(100, 60, SLIDE), took((0, 40), (60, 60)), 60, 1, 1.5),
        (one(100, 60, SLIDE), took((0, 40), (60, 60)), 60, 40, 60),
        (one(100, 60, SLIDE), took((0, 40), (60, 60)), 60, 50, 70),
        (one(7, 60, SLIDE), took((0, 7)), 60, 1, 8.571429),
        (one(25, 60, SLIDE), took((0, 25)), 60, 18, 43.2),  # in doubles 25 · 16.8 / 60 is above 7
        (one(3, 1, SLIDE), took((0, 3)), 1, 1, 0.333334),
        # A bucket refills at amount / window, up to its burst.
        (one(60, 60, POUR), took((0, 60)), 0, 30, 30),
        (one(60, 60, POUR, 10), took((0, 10)), 0, 3, 3),
        (one(60, 60, POUR, 600), took((0, 600)), 0, 600, 600),
        (one(7, 60, POUR), took((0, 7)), 0, 1, 8.571429),
        (one(3, 1, POUR), took((0, 3)), 0, 1, 0.333334),
        (one(3, 1, POUR), took((0, 3)), 0.1, 1, 0.233334),
        (one(7, 3, POUR), took((0, 7), (1, 2)), 1, 5, 2),
        (one(1, 86_400, POUR), took((1_753_920_007.125, 1)), 1_753_920_007.125, 1, 86_400),
        (one(10, 0.000001, POUR), took((0, 10)), 0, 1, 0.000001),
    ],
)
async def test_r3_retry_after_is_exact_on_both_sides(
    scope: Scope, history: tuple[tuple[float, int], ...], at: float, ask: int, after: float
) -> None:
    """R3: that long without other traffic admits the same ask, a microsecond less is refused."""
    limit = next(iter(scope.limits))
    async with Table(start=history[0][0]) as table:
        for n, (when, amount) in enumerate(history):
            await table.play(R(f"taken{n}", scope, tok=amount, at=when))
        table.clock.set(at)
        with pytest.raises(RateLimited) as caught:
            await table.limiter.pre_commit(scope, tokens=ask)
        (denial,) = caught.value.denials
        assert (denial.key, denial.limit, denial.asked) == ("key", limit, ask)
        assert (denial.retry_after, caught.value.retry_after) == (after, after)
        if after > 0.000001:
            table.clock.set(at + after - 0.000001)
            with pytest.raises(RateLimited) as caught:
                await table.limiter.pre_commit(scope, tokens=ask)
            assert caught.value.retry_after == 0.000001
        await table.play(R("now", scope, tok=ask, at=at + after))


@pytest.mark.parametrize(
    ("scope", "at", "resets", "empty"),
    [
        (one(100, 60), 42.5, 17.5, 17.5),
        (one(100, 60, SLIDE), 42.5, 77.5, 77.5),
        (one(100, 60, POUR), 42.5, 54, 54),
        (one(7, 60, POUR, 100), 0.25, 771.428572, 771.428572),
    ],
)
async def test_reset_after_is_when_nothing_is_used(
    scope: Scope, at: float, resets: float, empty: float
) -> None:
    """`reset_after`: a fixed window's end, for the others the time until `used` is 0, to the microsecond."""
    of = "key.tpm"
    await play(
        R("r1", scope, tok=90, at=at),
        See(of, used=90, resets=resets),
        See(of, used=90 if scope == one(100, 60) else 1, at=at + empty - 0.000001),
        See(of, used=0, at=at + empty),
    )


async def test_r12_what_is_whole_on_paper_is_whole_in_doubles() -> None:
    """R12: a bucket of 3 a second that is written every 0.1 s: ten times 0.3 is 3, though not in doubles."""
    shadow = Scope("key", Limits(also=(Limit("tokens", 3, 1, "token_bucket"),)), enforce=False)
    await play(
        R("r0", shadow, tok=3),
        *(R(f"r{n}", shadow, at=n / 10) for n in range(1, 10)),
        See("key.tps", used=1, left=2),
        R("r10", shadow, at=1),
        See("key.tps", used=0, left=3, resets=0),
        R("r11", Scope("key", shadow.limits), tok=3),
    )


async def test_reset_after_of_what_is_unused() -> None:
    """A fixed window's is its end, used or not; the others' is 0; a bucket of amount 0 and slots have none."""
    scope = Scope(
        "key",
        Limits(
            rpm=5,
            concurrency=2,
            also=(
                Limit("tokens", 5, 10, "sliding_window"),
                Limit("tokens", 5, 10, "token_bucket"),
                Limit("tokens", 0, 20, "token_bucket"),
            ),
        ),
    )
    async with Table(start=42) as table:
        (status,) = await table.limiter.peek(scope)
        assert [limit.reset_after for limit in status.limits] == [18, None, 0, 0, None]


@pytest.mark.parametrize("algorithm", ["fixed_window", SLIDE, POUR])
@pytest.mark.parametrize(
    ("taken", "ask", "ok"),
    [
        (0, 0, True),
        (0, 10, True),
        (9, 0, True),
        (9, 1, True),
        (9, 2, False),
        (10, 0, False),
        (10, 1, False),
    ],
)
async def test_r1_a_request_needs_room_for_what_it_asks_and_for_one_at_least(
    algorithm: str, taken: int, ask: int, ok: bool
) -> None:
    """R1, R4: admitted iff used + max(ask, 1) <= amount, and debited its ask, not more."""
    ten = key(tpm=10, rpm=60, algorithm=algorithm)
    last = (
        (R("r2", ten, tok=ask), used("key.tpm", taken + ask), used("key.rpm", 2))
        if ok
        else (R("r2", ten, tok=ask, deny="key.tpm"), used("key.tpm", taken), used("key.rpm", 1))
    )
    await play(R("r1", ten, tok=taken), *last)


async def test_r3_every_limit_that_refused_in_the_order_of_scopes_and_limits() -> None:
    """R3: rps, rpm, rph, rpd, tpm, tph, tpd, itpm, otpm, concurrency, then `also`; scopes as they were given."""
    full: dict[str, Any] = dict.fromkeys(
        ("otpm", "tpd", "rpd", "tpm", "itpm", "rph", "concurrency", "tph", "rpm", "rps"), 1
    )
    first = key("a", also=(Limit("pages", 1, 7), Limit("tokens", 1, 7)), **full)
    second, third = key("b", tpm=1, rpm=1), key("c", rpm=100)
    order = "a.rps a.rpm a.rph a.rpd a.tpm a.tph a.tpd a.itpm a.otpm a.conc a.pages/7 a.tokens/7 b.rpm b.tpm"
    asks: dict[str, Any] = {
        "tok": 1,
        "amounts": {"pages": 1, "input_tokens": 1, "output_tokens": 1},
    }
    await play(
        R("r1", third, first, second, **asks),
        R("r2", third, first, second, deny=order, after=86_400, **asks),
        R("r3", second, first, deny=" ".join([*order.split()[-2:], *order.split()[:-2]]), **asks),
    )


async def test_r3_a_denial_carries_its_data() -> None:
    """R3: key, limit, used, asked, retry_after and reset_after of each limit that refused."""
    scope = Scope(
        "key",
        Limits(rpm=2, tpm=100, concurrency=2, also=(Limit("tokens", 50, 50, "token_bucket"),)),
    )
    async with Table(start=10) as table:
        await table.play(R("r1", scope, tok=30), R("r2", scope, tok=20))
        with pytest.raises(RateLimited) as caught:
            await table.limiter.pre_commit(scope, tokens=60)
        shown = [
            (one.key, one.limit, one.used, one.asked, one.retry_after, one.reset_after)
            for one in caught.value.denials
        ]
        rpm, tpm, slots, bucket = scope.limits
        assert shown == [
            ("key", rpm, 2, 1, 50, 50),
            ("key", tpm, 50, 60, 50, 50),
            ("key", slots, 2, 1, None, None),
            ("key", bucket, 50, 60, None, 50),
        ]
        assert (caught.value.retry_after, caught.value.retryable) == (None, False)


async def test_r3_concurrency_adds_no_time_and_takes_none_away() -> None:
    """R3: beside a window the window's time is the whole's; alone there is none, and it may be retried."""
    scope = key(rpm=2, concurrency=1)
    await play(
        R("r1", scope, at=15),
        R("r2", scope, deny="key.conc", after=None),
        C("r1"),
        R("r3", scope),
        R("r4", scope, deny="key.rpm key.conc", after=45),
    )


@pytest.mark.parametrize("algorithm", ["fixed_window", SLIDE, POUR])
async def test_r3_what_can_never_fit_outweighs_every_time(algorithm: str) -> None:
    """R3: one limit that never admits the ask makes the whole final, whatever the others' times."""
    small, minute = key("a", tpm=10, algorithm=algorithm), key("b", rpm=1)
    await play(
        R("r1", minute, at=15),
        R("r2", minute, small, tok=11, deny="b.rpm a.tpm", after=None, never=True),
        R("r3", small, tok=10),
        R("r4", small, tok=11, deny="a.tpm", after=None, never=True),
        R("r5", minute, deny="b.rpm", after=45),
    )


@pytest.mark.parametrize(
    ("burst", "ask", "ok"),
    [(10, 10, True), (10, 11, False), (100, 100, True), (100, 101, False), (0, 0, False)],
)
async def test_r1_the_capacity_of_a_bucket_is_its_burst(burst: int, ask: int, ok: bool) -> None:
    """R1: a bucket admits up to its burst, which may be below or above its amount."""
    bucket = one(60, 60, POUR, burst)
    await play(
        R("r1", bucket, tok=ask) if ok else R("r1", bucket, tok=ask, deny="key.tpm", never=True)
    )


@pytest.mark.parametrize("burst", [None, 0, 1, 100])
async def test_r1_amount_zero_admits_nothing_whatever_the_burst(burst: int | None) -> None:
    """A token bucket of amount 0: never, and its `reset_after` is None."""
    bucket = one(0, 60, POUR, burst)
    await play(
        R("r1", bucket, deny="key.tpm", after=None, never=True),
        See("key.tpm", used=0, left=0, resets=None, refuses=True),
    )


OWN = Scope("key", Limits(rpm=60, also=(Limit("images", 5, 60),)))


async def test_r1_a_metric_of_the_users_own_is_judged_and_counted_where_it_is_named() -> None:
    """R1: exhausted, it refuses only requests that name it, 0 included."""
    await play(
        R("r1", OWN, amounts={"images": 5}),
        See("key.images/60", used=5, left=0),
        R("r2", OWN, tok=7),
        used("key.images/60", 5),
        R("r3", OWN, amounts={"images": 0}, deny="key.images/60", after=60),
        R("r4", OWN, amounts={"images": 6}, deny="key.images/60", never=True, after=None),
        used("key.rpm", 2),
    )


async def test_r1_requests_may_weigh_more_or_less_than_one() -> None:
    """R1: `amounts` sets `requests` too: judged by max(ask, 1), debited its ask."""
    ten = key(rpm=10)
    await play(
        R("r1", ten, amounts={"requests": 9}),
        R("r2", ten, amounts={"requests": 2}, deny="key.rpm"),
        R("r3", ten, amounts={"requests": 0}),
        used("key.rpm", 9),
        R("r4", ten),
        R("r5", ten, amounts={"requests": 0}, deny="key.rpm"),
        R("r6", ten, amounts={"requests": 11}, deny="key.rpm", never=True),
    )


async def test_r1_a_usage_asks_each_token_metric() -> None:
    """`tokens` as a Usage: an ask of input, output, uncached ones and their total."""
    scope = Scope(
        "key",
        Limits(tpm=100, itpm=60, otpm=50, also=(Limit("uncached_tokens", 90, 60),)),
    )
    estimate = Usage(40, 30, cached_input_tokens=10)
    await play(
        R("r1", scope, tok=estimate),
        *(
            used(f"key.{of}", n)
            for of, n in (("tpm", 70), ("itpm", 40), ("otpm", 30), ("uncached_tokens/60", 60))
        ),
        R(
            "r2",
            scope,
            tok=estimate,
            deny="key.tpm key.itpm key.otpm key.uncached_tokens/60",
            after=60,
        ),
        S("r1", Usage(5, 5, cached_input_tokens=5)),
        used("key.uncached_tokens/60", 5),
        R("r2", scope, tok=estimate),
    )


BAD_ASKS: list[dict[str, Any]] = [
    *({"tokens": bad} for bad in (True, 1.0, 1.5, float("nan"), -1, 2**53, "5", None)),
    *({"amounts": {"images": bad}} for bad in (True, 1.0, float("inf"), -1, 2**53, "5", None)),
    *({"amounts": {"requests": bad}} for bad in (-1, 2**53, 0.5)),
    *({"amounts": {name: 1}} for name in ("", "\ud800")),
    {"tokens": 5, "amounts": {"tokens": 5}},
    {"tokens": Usage(5, 5), "amounts": {"input_tokens": 5}},
    {"tokens": Usage(5, 5), "amounts": {"tokens": 5}},
]


@pytest.mark.parametrize("bad", BAD_ASKS, ids=ascii)
async def test_r12_a_bad_ask_is_an_error_before_anything_is_counted(bad: dict[str, Any]) -> None:
    """R12: no amount, no name, or an ask of what `tokens` asks already: nothing changes, nothing is told."""
    async with Table() as table:
        await table.play(R("r1", OWN, amounts={"images": 1}))
        before = (await table.look(), table.backend.size(), len(table.events))
        with pytest.raises((ValueError, TypeError)):
            await table.limiter.pre_commit(OWN, **bad)
        assert (await table.look(), table.backend.size(), len(table.events)) == before


@pytest.mark.parametrize("verb", ["pre_commit", "peek", "reset"])
async def test_two_scopes_with_one_key_in_one_request(verb: str) -> None:
    """A ValueError that names the key; what is no scope is a TypeError that shows it."""
    async with Table() as table:
        call = getattr(table.limiter, verb)
        with pytest.raises(ValueError, match="twin"):
            await call(key("twin", rpm=5), key("other"), key("twin", tpm=5))
        with pytest.raises(TypeError, match="not-a-scope"):
            await call("not-a-scope")


async def test_r2_a_refusal_among_many_scopes_leaves_each_as_it_was() -> None:
    """R2: the last of ten scopes refuses: the other nine have no state at all."""
    wide = [key(f"k{n}", rpm=60, tpm=1_000, concurrency=5) for n in range(9)]
    last = key("last", rpm=1)
    async with Table() as table:
        await table.play(R("r1", last), C("r1"))
        size = table.backend.size()
        await table.play(R("r2", *wide, last, tok=50, deny="last.rpm", after=60))
        await table.play(R("r3", last, *wide, tok=50, deny="last.rpm", after=60))
        assert table.backend.size() == size
        await table.play(
            *(used(f"k{n}.{of}", 0) for n in range(9) for of in ("rpm", "tpm", "conc"))
        )


async def test_r11_a_clock_that_steps_back_stands_still() -> None:
    """R11: within a key time does not step back, whatever the clock does; it goes on once it has caught up."""
    two = key(rpm=2)
    at_110 = See("key.rpm", used=2, resets=10)
    await play(
        R("r1", two, at=100),
        R("r2", two, at=110),
        Row(at=20),
        at_110,
        R("r3", two, deny="key.rpm", after=10),
        Row(at=109.999999),
        at_110,
        See("key.rpm", used=2, resets=9, at=111),
        R("r4", two, at=120),
    )


async def test_r11_a_clock_s_float_is_the_nearest_microsecond() -> None:
    """R11: 1.001 · 10**6 is 1000999.9999999999 in doubles: a window that begins there has begun."""
    scope = one(5, 0.001)
    async with Limiter(Stores.make(clock=lambda: 1.001)) as limiter:
        (status,) = await limiter.peek(scope)
    assert status["tokens"].reset_after == 0.001


async def test_r11_a_stepping_clock_settles_where_it_stands() -> None:
    """R11: a hold is given back to the window in which it was taken, also by a clock that went astray."""
    hundred = key(tpm=100, concurrency=1)
    await play(
        R("r1", hundred, tok=80, at=61),
        S("r1", 30, at=5),
        used("key.tpm", 30),
        P("key", 20),
        used("key.tpm", 50),
        used("key.tpm", 0, at=120),
    )
