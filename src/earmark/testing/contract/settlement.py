"""Settlement: what a hold becomes once the usage is known, in which window, for which metrics (R6, R7)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import A, C, Empty, P, R, S, See, X, key, used
from earmark.testing.table import Row, expect
from earmark.usage import Usage

cases: Final = Cases()


TOP = 2**53 - 1


FIXED, SLIDING = key(tpm=100), key(tpm=100, algorithm="sliding_window")


BUCKET = key(tpm=60, algorithm="token_bucket")


@cases(
    each(
        ("scope", "taken", "settled", "actual", "left"),
        [
            # A fixed window: a refund only within the window of the hold, a charge always at T.
            (FIXED, 55, 57, 30, 30),
            (FIXED, 55, 59.999999, 30, 30),
            (FIXED, 55, 60, 30, 0),
            (FIXED, 55, 60, 80, 0),
            (FIXED, 55, 62, 100, 20),
            (FIXED, 55, 57, 100, 100),
            (FIXED, 55, 57, 500, 500),
            (FIXED, 55, 600, 0, 0),
            # A sliding window: while that window is the current or the previous one. At 62 the previous
            # window weighs 58/60, at 119.999999 nearly nothing.
            (SLIDING, 55, 57, 30, 30),
            (SLIDING, 55, 60, 30, 30),
            (SLIDING, 55, 62, 80, 78),
            (SLIDING, 55, 62, 30, 29),
            (SLIDING, 55, 62, 0, 0),
            (SLIDING, 55, 62, 100, 98),
            (SLIDING, 55, 119.999999, 0, 0),
            (SLIDING, 55, 119.999999, 80, 1),
            (SLIDING, 55, 120, 0, 0),
            (SLIDING, 55, 120, 100, 20),
        ],
    )
)
async def r6_a_refund_belongs_to_the_window_of_its_hold(
    bench: Bench, scope: Scope, taken: float, settled: float, actual: int, left: int
) -> None:
    """R6: 80 held at 55; delta below zero only while that window counts, above zero charged at T."""
    await bench.play(
        R("r1", scope, tok=80, at=taken), S("r1", actual, at=settled), used("key.tpm", left)
    )


@cases(
    each(
        ("settled", "actual", "left"),
        [
            (0, 40, 40),
            (10, 40, 30),
            (10, 20, 10),
            (10, 10, 0),
            (10, 0, 0),
            (30, 40, 10),
            (100, 0, 0),
            (100, 40, 0),
            (100, 100, 60),
            (10, 200, 190),
        ],
    )
)
async def r6_a_bucket_refills_first_and_takes_a_refund_at_any_time(
    bench: Bench, settled: float, actual: int, left: int
) -> None:
    """R6: one unit a second, 40 held at 0: refilled, then changed, never above its capacity, or into debt."""
    await bench.play(
        R("r1", BUCKET, tok=40),
        S("r1", actual, at=settled),
        See("key.tpm", used=left, left=max(60 - left, 0), resets=left),
    )


@cases(
    each("ending", [S("r1", 0), X("r1"), S("r1", Usage(0, 0))]),
    each("scope", [FIXED, SLIDING, BUCKET]),
)
async def r6_a_refund_for_what_is_over_creates_nothing(
    bench: Bench, scope: Scope, ending: Row
) -> None:
    """R6: when the window is over there is nothing to give back, and no state is created for it."""
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=60), Row(at=180))
        await table.play(ending, used("key.tpm", 0), Empty())


@cases()
async def r6_a_refund_never_reaches_below_nothing(bench: Bench) -> None:
    """R6: with a hold of a window that others have filled since, their counts stay (C17)."""
    scope = key(rpm=60, tpm=100, also=(Limit("tokens", 100, 60, "sliding_window"),))
    async with bench.table() as table:
        await table.play(
            R("r1", scope, tok=90, at=55), R("r2", scope, tok=9, at=61), X("r1", at=62)
        )
        (status,) = await table.limiter.peek(scope)
        expect(
            "[one.used for one in status.limits]", [one.used for one in status.limits], [1, 9, 9]
        )


@cases(each(("at", "left"), [(70, 55), (125, 28), (180, 0)]))
async def r6_a_sliding_window_takes_back_its_own_hold_alone(
    bench: Bench, at: float, left: int
) -> None:
    """R6: 40 held at 0 and 30 of another's at 61: at 125 the first is over, and the other's stays."""
    await bench.play(
        R("r1", SLIDING, tok=40),
        R("r2", SLIDING, tok=30, at=61),
        R("r3", SLIDING, tok=25, at=70) if at == 70 else Row(at=at),
        S("r1", 0),
        used("key.tpm", left),
    )


@cases()
async def r6_settling_at_the_estimate_changes_nothing(bench: Bench) -> None:
    """R6: delta 0, in any window and by any algorithm."""
    for scope in (FIXED, SLIDING, BUCKET):
        async with bench.table() as table:
            await table.play(R("r1", scope, tok=60), R("r2", key("other", tpm=5), tok=5))
            before = await table.look()
            await table.play(S("r1", 60))
            expect("await table.look()", await table.look(), before)


MANY = Scope(
    "key",
    Limits(
        rpm=60,
        tpm=1_000,
        itpm=1_000,
        otpm=1_000,
        also=(Limit("uncached_tokens", 1_000, 60), Limit("uncached_input_tokens", 1_000, 60)),
    ),
)


@cases(
    each(
        ("usage", "counts"),
        [
            # tokens, input, output, uncached, uncached input; held: 50, 30, 20, 40, 20
            (12, (12, 30, 20, 40, 20)),
            (Usage(40, 10, cached_input_tokens=25), (50, 40, 10, 25, 15)),
            (Usage(10, 5, cached_input_tokens=10), (15, 10, 5, 5, 0)),
            (Usage(0, 0), (0, 0, 0, 0, 0)),
            (Usage(), (50, 30, 20, 40, 20)),
            (Usage(reported_total=90), (90, 30, 20, 40, 20)),
            (Usage(reported_total=10), (10, 30, 20, 40, 20)),
            # Known in part: what is not determined keeps its hold, raised to the sum of what is known of it.
            (Usage(40), (50, 40, 20, 40, 20)),
            (Usage(70), (70, 70, 20, 40, 20)),
            (Usage(output_tokens=70), (70, 30, 70, 70, 20)),
            (Usage(output_tokens=5), (50, 30, 5, 40, 20)),
            (Usage(reasoning_tokens=70), (70, 30, 70, 70, 20)),
            (Usage(cached_input_tokens=70), (70, 70, 20, 40, 20)),
            (Usage(cached_input_tokens=50, cache_write_tokens=45), (95, 95, 20, 45, 45)),
            (Usage(60, 20), (80, 60, 20, 40, 20)),
            (Usage(60, 50), (110, 60, 50, 50, 20)),
            (Usage(60, 20, cache_write_tokens=45), (80, 60, 20, 65, 45)),
            # A part is never more than its known whole.
            (Usage(10, 20, cache_write_tokens=45), (30, 10, 20, 40, 20)),
            (Usage(cached_input_tokens=500, reported_total=60), (60, 60, 20, 40, 20)),
            ({"input_tokens": 15}, (50, 15, 20, 40, 20)),
            ({"input_tokens": 70}, (70, 70, 20, 40, 20)),
            ({"output_tokens": 70}, (70, 30, 70, 70, 20)),
            ({"input_tokens": 60, "output_tokens": 50}, (110, 60, 50, 50, 20)),
            ({"uncached_input_tokens": 60}, (60, 60, 20, 60, 60)),
            ({"tokens": 15, "output_tokens": 3}, (15, 30, 3, 40, 20)),
            ({"uncached_tokens": 0}, (50, 30, 20, 0, 20)),
            ({}, (50, 30, 20, 40, 20)),
        ],
    )
)
async def r6_which_metrics_a_usage_names(bench: Bench, usage: Any, counts: tuple[int, ...]) -> None:
    """R6: an int names tokens, a Usage what its known fields determine, a mapping its keys."""
    names = ("tpm", "itpm", "otpm", "uncached_tokens/60", "uncached_input_tokens/60")
    await bench.play(
        R("r1", MANY, tok=Usage(30, 20, cached_input_tokens=10)),
        *(used(f"key.{of}", n) for of, n in zip(names, (50, 30, 20, 40, 20), strict=True)),
        S("r1", usage),
        *(used(f"key.{of}", n) for of, n in zip(names, counts, strict=True)),
        used("key.rpm", 1),
    )


@cases(
    each(
        ("usage", "count"),
        [({"images": 3}, 3), ({"images": 0}, 0), ({"images": 90}, 90), ({"tokens": 5}, 2), (7, 2)],
    )
)
async def r6_a_metric_of_the_users_own(bench: Bench, usage: Any, count: int) -> None:
    """R6: trued up where it is named, kept where it is not."""
    scope = Scope("key", Limits(tpm=100, also=(Limit("images", 10, 60),)))
    await bench.play(
        R("r1", scope, amounts={"images": 2}),
        used("key.images/60", 2),
        S("r1", usage),
        used("key.images/60", count),
    )


@cases()
async def r6_a_metric_that_the_request_did_not_name_is_charged(bench: Bench) -> None:
    """R6: a settlement charges a metric of the user's own that the request did not name, at T."""
    scope = Scope("key", Limits(tpm=100, also=(Limit("images", 10, 60),)))
    await bench.play(
        R("r1", scope, at=50),
        used("key.images/60", 0),
        S("r1", {"images": 4}, at=70),
        used("key.images/60", 4),
        used("key.images/60", 0, at=120),
    )


@cases()
async def r6_a_metric_that_no_limit_counts_is_of_no_account(bench: Bench) -> None:
    """R6: naming more than the scopes limit is no error and creates nothing."""
    await bench.play(
        R("r1", key(rpm=60), tok=50, amounts={"images": 2}),
        S("r1", {"images": 9, "pages": 3, "tokens": 70}),
        Row(at=60),
        Empty(),
    )


@cases(each("requests", [1, 5, 0]))
async def r6_requests_are_not_trued_up(bench: Bench, requests: int) -> None:
    """R6: a `requests` key in a settlement is ignored; what was asked stays."""
    scope = key(rpm=60)
    await bench.play(
        R("r1", scope, amounts={"requests": requests}),
        used("key.rpm", requests),
        S("r1", {"requests": 3}),
        used("key.rpm", requests),
    )


@cases(each("ending", [C("r1", at=70), A("r1", at=70)]))
async def r7_closing_keeps_the_debit_in_its_own_window(bench: Bench, ending: Row) -> None:
    """R7: nothing moves into the window in which it is closed."""
    scope = key(rpm=60, tpm=100, tph=1_000)
    await bench.play(
        R("r1", scope, tok=80, at=55),
        ending,
        used("key.tpm", 0),
        used("key.rpm", 0),
        used("key.tph", 80),
    )


@cases(
    each(
        ("at", "minute", "hour"),
        [(57, (1, 9), (1, 9)), (62, (1, 9), (1, 9)), (3_600, (0, 0), (0, 0))],
    )
)
async def r7_cancel_gives_everything_back_where_its_windows_still_run(
    bench: Bench, at: float, minute: tuple[int, int], hour: tuple[int, int]
) -> None:
    """R7: requests too, under R6's window rule; another's request and tokens stay."""
    scope = key(rpm=60, rph=600, tpm=100, tph=1_000)
    other = R("r2", scope, tok=9, at=56 if at < 60 else 61)
    await bench.play(
        R("r1", scope, tok=80, at=55),
        other,
        X("r1", at=at),
        used("key.rpm", minute[0]),
        used("key.tpm", minute[1]),
        used("key.rph", hour[0]),
        used("key.tph", hour[1]),
    )


@cases(each(("algorithm", "after"), [("sliding_window", 0), ("token_bucket", 0)]))
async def r7_cancel_on_the_fractional_algorithms(bench: Bench, algorithm: str, after: int) -> None:
    """R7: a sliding window gives back while it counts, a bucket at any time, up to its capacity."""
    scope = key(rpm=60, tpm=60, algorithm=algorithm)
    await bench.play(
        R("r1", scope, tok=40),
        X("r1", at=70),
        used("key.rpm", after),
        used("key.tpm", after),
        R("r2", scope, tok=60),
    )


@cases()
async def r12_refunds_after_saturation_never_go_below_nothing(bench: Bench) -> None:
    """R12: two holds of which the counter could not show the second: giving both back leaves 0."""
    shadow = Scope("key", Limits(tpm=TOP), enforce=False)
    await bench.play(
        R("r1", shadow, tok=TOP),
        R("r2", shadow, tok=9),
        See("key.tpm", used=TOP, left=0),
        X("r1"),
        used("key.tpm", 0),
        X("r2"),
        See("key.tpm", used=0, left=TOP),
        R("r3", shadow, tok=5),
        used("key.tpm", 5),
    )


@cases()
async def r12_a_counter_saturates(bench: Bench) -> None:
    """R12: charges beyond 2**53 - 1 stay there; a refund is taken from what the counter shows."""
    most = key(tpm=TOP)
    await bench.play(
        R("r1", most, tok=TOP - 10),
        P(most, TOP),
        See("key.tpm", used=TOP, left=0),
        S("r1", 0),
        See("key.tpm", used=10, left=TOP - 10),
    )
