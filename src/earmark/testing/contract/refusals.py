"""Refusals: what is judged, what each refusal says, and that it is exact to the microsecond (R1–R4)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import C, P, R, S, See, key, used
from earmark.testing.table import Row, expect
from earmark.usage import Usage

cases: Final = Cases()


def one(
    amount: int, window: float, algorithm: Any = "fixed_window", burst: int | None = None
) -> Scope:
    """A scope with one limit of tokens."""
    return Scope("key", Limits(also=(Limit("tokens", amount, window, algorithm, burst),)))


SLIDE, POUR = "sliding_window", "token_bucket"


@cases(
    each("algorithm", ["fixed_window", SLIDE, POUR]),
    each(
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
    ),
)
async def r1_a_request_needs_room_for_what_it_asks_and_for_one_at_least(
    bench: Bench, algorithm: str, taken: int, ask: int, ok: bool
) -> None:
    """R1, R4: admitted iff used + max(ask, 1) <= amount, and debited its ask, not more."""
    ten = key(tpm=10, rpm=60, algorithm=algorithm)
    last = (
        (R("r2", ten, tok=ask), used("key.tpm", taken + ask), used("key.rpm", 2))
        if ok
        else (R("r2", ten, tok=ask, deny="key.tpm"), used("key.tpm", taken), used("key.rpm", 1))
    )
    await bench.play(R("r1", ten, tok=taken), *last)


@cases()
async def r3_every_limit_that_refused_in_the_order_of_scopes_and_limits(bench: Bench) -> None:
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
    await bench.play(
        R("r1", third, first, second, **asks),
        R("r2", third, first, second, deny=order, after=86_400, **asks),
        R("r3", second, first, deny=" ".join([*order.split()[-2:], *order.split()[:-2]]), **asks),
    )


@cases()
async def r3_a_denial_carries_its_data(bench: Bench) -> None:
    """R3: key, limit, used, asked, retry_after and reset_after of each limit that refused."""
    scope = Scope(
        "key",
        Limits(rpm=2, tpm=100, concurrency=2, also=(Limit("tokens", 50, 50, "token_bucket"),)),
    )
    async with bench.table(start=10) as table:
        await table.play(R("r1", scope, tok=30), R("r2", scope, tok=20))
        refusal = await table.refusal(scope, tokens=60)
        shown = [
            (one.key, one.limit, one.used, one.asked, one.retry_after, one.reset_after)
            for one in refusal.denials
        ]
        rpm, tpm, slots, bucket = scope.limits
        expect(
            "shown",
            shown,
            [
                ("key", rpm, 2, 1, 50, 50),
                ("key", tpm, 50, 60, 50, 50),
                ("key", slots, 2, 1, None, None),
                ("key", bucket, 50, 60, None, 50),
            ],
        )
        expect(
            "(refusal.retry_after, refusal.retryable)",
            (refusal.retry_after, refusal.retryable),
            (None, False),
        )


@cases()
async def r3_concurrency_adds_no_time_and_takes_none_away(bench: Bench) -> None:
    """R3: beside a window the window's time is the whole's; alone there is none, and it may be retried."""
    scope = key(rpm=2, concurrency=1)
    await bench.play(
        R("r1", scope, at=15),
        R("r2", scope, deny="key.conc", after=None),
        C("r1"),
        R("r3", scope),
        R("r4", scope, deny="key.rpm key.conc", after=45),
    )


@cases(each("algorithm", ["fixed_window", SLIDE, POUR]))
async def r3_what_can_never_fit_outweighs_every_time(bench: Bench, algorithm: str) -> None:
    """R3: one limit that never admits the ask makes the whole final, whatever the others' times."""
    small, minute = key("a", tpm=10, algorithm=algorithm), key("b", rpm=1)
    await bench.play(
        R("r1", minute, at=15),
        R("r2", minute, small, tok=11, deny="b.rpm a.tpm", after=None, never=True),
        R("r3", small, tok=10),
        R("r4", small, tok=11, deny="a.tpm", after=None, never=True),
        R("r5", minute, deny="b.rpm", after=45),
    )


@cases(
    each(
        ("burst", "ask", "ok"),
        [(10, 10, True), (10, 11, False), (100, 100, True), (100, 101, False), (0, 0, False)],
    )
)
async def r1_the_capacity_of_a_bucket_is_its_burst(
    bench: Bench, burst: int, ask: int, ok: bool
) -> None:
    """R1: a bucket admits up to its burst, which may be below or above its amount."""
    bucket = one(60, 60, POUR, burst)
    await bench.play(
        R("r1", bucket, tok=ask) if ok else R("r1", bucket, tok=ask, deny="key.tpm", never=True)
    )


@cases(each("burst", [None, 0, 1, 100]))
async def r1_amount_zero_admits_nothing_whatever_the_burst(bench: Bench, burst: int | None) -> None:
    """R1: a token bucket of amount 0: never, and its `reset_after` is None."""
    bucket = one(0, 60, POUR, burst)
    await bench.play(
        R("r1", bucket, deny="key.tpm", after=None, never=True),
        See("key.tpm", used=0, left=0, resets=None, refuses=True),
    )


OWN = Scope("key", Limits(rpm=60, also=(Limit("images", 5, 60),)))


@cases()
async def r1_a_metric_of_the_users_own_is_judged_and_counted_where_it_is_named(
    bench: Bench,
) -> None:
    """R1: exhausted, it refuses only requests that name it, 0 included."""
    await bench.play(
        R("r1", OWN, amounts={"images": 5}),
        See("key.images/60", used=5, left=0),
        R("r2", OWN, tok=7),
        used("key.images/60", 5),
        R("r3", OWN, amounts={"images": 0}, deny="key.images/60", after=60),
        R("r4", OWN, amounts={"images": 6}, deny="key.images/60", never=True, after=None),
        used("key.rpm", 2),
    )


@cases()
async def r1_requests_may_weigh_more_or_less_than_one(bench: Bench) -> None:
    """R1: `amounts` sets `requests` too: judged by max(ask, 1), debited its ask."""
    ten = key(rpm=10)
    await bench.play(
        R("r1", ten, amounts={"requests": 9}),
        R("r2", ten, amounts={"requests": 2}, deny="key.rpm"),
        R("r3", ten, amounts={"requests": 0}),
        used("key.rpm", 9),
        R("r4", ten),
        R("r5", ten, amounts={"requests": 0}, deny="key.rpm"),
        R("r6", ten, amounts={"requests": 11}, deny="key.rpm", never=True),
    )


@cases()
async def r1_a_usage_asks_each_token_metric(bench: Bench) -> None:
    """R1: `tokens` as a Usage: an ask of input, output, uncached ones and their total."""
    scope = Scope(
        "key",
        Limits(tpm=100, itpm=60, otpm=50, also=(Limit("uncached_tokens", 90, 60),)),
    )
    estimate = Usage(40, 30, cached_input_tokens=10)
    await bench.play(
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


@cases()
async def r2_a_refusal_among_many_scopes_leaves_each_as_it_was(bench: Bench) -> None:
    """R2: the last of ten scopes refuses: the other nine have no state at all."""
    wide = [key(f"k{n}", rpm=60, tpm=1_000, concurrency=5) for n in range(9)]
    last = key("last", rpm=1)
    async with bench.table() as table:
        await table.play(R("r1", last), C("r1"))
        size = table.size()
        await table.play(R("r2", *wide, last, tok=50, deny="last.rpm", after=60))
        await table.play(R("r3", last, *wide, tok=50, deny="last.rpm", after=60))
        expect("table.size()", table.size(), size)
        await table.play(
            *(used(f"k{n}.{of}", 0) for n in range(9) for of in ("rpm", "tpm", "conc"))
        )


@cases()
async def r11_a_clock_that_steps_back_stands_still(bench: Bench) -> None:
    """R11: within a key time does not step back, whatever the clock does; it goes on once it has caught up."""
    two = key(rpm=2)
    at_110 = See("key.rpm", used=2, resets=10)
    await bench.play(
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


@cases()
async def r11_a_stepping_clock_settles_where_it_stands(bench: Bench) -> None:
    """R11: a hold is given back to the window in which it was taken, also by a clock that went astray."""
    hundred = key(tpm=100, concurrency=1)
    await bench.play(
        R("r1", hundred, tok=80, at=61),
        S("r1", 30, at=5),
        used("key.tpm", 30),
        P("key", 20),
        used("key.tpm", 50),
        used("key.tpm", 0, at=120),
    )
