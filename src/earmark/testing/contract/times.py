"""Times: `retry_after` and `reset_after` are exact to the microsecond, on both sides (R3, R12)."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import Bench, Cases, each
from earmark.testing.rows import R, See
from earmark.testing.table import expect

cases: Final = Cases()


def one(
    amount: int, window: float, algorithm: Any = "fixed_window", burst: int | None = None
) -> Scope:
    """A scope with one limit of tokens."""
    return Scope("key", Limits(also=(Limit("tokens", amount, window, algorithm, burst),)))


def took(*takes: tuple[float, int]) -> tuple[tuple[float, int], ...]:
    """What was taken when, for a table of histories."""
    return takes


SLIDE, POUR = "sliding_window", "token_bucket"


@cases(
    each(
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
            (
                one(25, 60, SLIDE),
                took((0, 25)),
                60,
                18,
                43.2,
            ),  # in doubles 25 · 16.8 / 60 is above 7
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
)
async def r3_retry_after_is_exact_on_both_sides(
    bench: Bench,
    scope: Scope,
    history: tuple[tuple[float, int], ...],
    at: float,
    ask: int,
    after: float,
) -> None:
    """R3: that long without other traffic admits the same ask, a microsecond less is refused."""
    limit = next(iter(scope.limits))
    async with bench.table(start=history[0][0]) as table:
        for n, (when, amount) in enumerate(history):
            await table.play(R(f"taken{n}", scope, tok=amount, at=when))
        table.clock.set(at)
        refusal = await table.refusal(scope, tokens=ask)
        expect("how many limits refuse", len(refusal.denials), 1)
        denial = refusal.denials[0]
        expect(
            "(denial.key, denial.limit, denial.asked)",
            (denial.key, denial.limit, denial.asked),
            ("key", limit, ask),
        )
        expect(
            "(denial.retry_after, refusal.retry_after)",
            (denial.retry_after, refusal.retry_after),
            (after, after),
        )
        if after > 0.000001:
            table.clock.set(at + after - 0.000001)
            refusal = await table.refusal(scope, tokens=ask)
            expect("refusal.retry_after", refusal.retry_after, 0.000001)
        await table.play(R("now", scope, tok=ask, at=at + after))


@cases(
    each(
        ("scope", "at", "resets", "empty"),
        [
            (one(100, 60), 42.5, 17.5, 17.5),
            (one(100, 60, SLIDE), 42.5, 77.5, 77.5),
            (one(100, 60, POUR), 42.5, 54, 54),
            (one(7, 60, POUR, 100), 0.25, 771.428572, 771.428572),
        ],
    )
)
async def reset_after_is_when_nothing_is_used(
    bench: Bench, scope: Scope, at: float, resets: float, empty: float
) -> None:
    """R3, R12: `reset_after`: a fixed window's end, for the others the time until `used` is 0, to the microsecond."""
    of = "key.tpm"
    await bench.play(
        R("r1", scope, tok=90, at=at),
        See(of, used=90, resets=resets),
        See(of, used=90 if scope == one(100, 60) else 1, at=at + empty - 0.000001),
        See(of, used=0, at=at + empty),
    )


@cases()
async def r12_what_is_whole_on_paper_is_whole_in_doubles(bench: Bench) -> None:
    """R12: a bucket of 3 a second that is written every 0.1 s: ten times 0.3 is 3, though not in doubles."""
    shadow = Scope("key", Limits(also=(Limit("tokens", 3, 1, "token_bucket"),)), enforce=False)
    await bench.play(
        R("r0", shadow, tok=3),
        *(R(f"r{n}", shadow, at=n / 10) for n in range(1, 10)),
        See("key.tps", used=1, left=2),
        R("r10", shadow, at=1),
        See("key.tps", used=0, left=3, resets=0),
        R("r11", Scope("key", shadow.limits), tok=3),
    )


@cases()
async def reset_after_of_what_is_unused(bench: Bench) -> None:
    """R3: a fixed window's is its end, used or not; the others' is 0; a bucket of amount 0 and slots have none."""
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
    async with bench.table(start=42) as table:
        (status,) = await table.limiter.peek(scope)
        expect(
            "[limit.reset_after for limit in status.limits]",
            [limit.reset_after for limit in status.limits],
            [18, None, 0, 0, None],
        )
