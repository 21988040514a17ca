"""Scopes that only report, limits that change, and resets: `enforce=False`, R17, `reset`."""

from __future__ import annotations

from typing import Any, Final

from earmark.limits import Limit, Limits, Scope
from earmark.testing.contract.cases import ALGORITHMS, Bench, Cases, each
from earmark.testing.rows import C, R, S, See, X, Z, key, used
from earmark.testing.table import expect
from earmark.usage import Usage

cases: Final = Cases()


@cases()
async def enforce_false_counts_and_reports_and_never_refuses(bench: Bench) -> None:
    """R1, R2: a scope that is rolled out: `would_refuse` says what it would have done to this request."""
    shadow = Scope("key", Limits(rpm=2, tpm=100, concurrency=1), enforce=False)
    rows = [
        # tokens asked, would refuse: rpm, tpm, concurrency
        (60, (False, False, False)),
        (40, (False, False, True)),
        (0, (True, True, True)),
        (500, (True, True, True)),
    ]
    async with bench.table() as table:
        for n, (ask, expected) in enumerate(rows, 1):
            await table.play(R(f"r{n}", shadow, tok=ask))
            (status,) = table.handles[f"r{n}"].statuses
            expect(
                "tuple(limit.would_refuse for limit in status.limits)",
                tuple(limit.would_refuse for limit in status.limits),
                expected,
            )
        await table.play(
            See("key.rpm", used=4, left=0, refuses=True),
            See("key.tpm", used=600, left=0, refuses=True),
            See("key.conc", used=4, left=0, refuses=True),
            *(C(f"r{n}") for n in range(1, 5)),
            See("key.conc", used=0, left=1, refuses=False),
        )


@cases()
async def would_refuse_is_of_this_request_in_statuses_and_of_an_empty_one_in_peek(
    bench: Bench,
) -> None:
    """R3: asking exactly the capacity would not have been refused; the next one, asking nothing, would."""
    shadow = Scope("key", Limits(tpm=100), enforce=False)
    async with bench.table() as table:
        await table.play(R("r1", shadow, tok=100))
        expect(
            'table.handles["r1"].statuses[0]["tokens"].would_refuse',
            table.handles["r1"].statuses[0]["tokens"].would_refuse,
            False,
        )
        await table.play(See("key.tpm", refuses=True))
        await table.play(R("r2", shadow, tok=101, at=60))
        expect(
            'table.handles["r2"].statuses[0]["tokens"].would_refuse',
            table.handles["r2"].statuses[0]["tokens"].would_refuse,
            True,
        )


@cases()
async def would_refuse_of_enforcing_scopes(bench: Bench) -> None:
    """R3: what was admitted would not have been refused; peek says whether the next one would be."""
    scope = key(rpm=1, tpm=100)
    async with bench.table() as table:
        await table.play(R("r1", scope, tok=5))
        expect(
            '[limit.would_refuse for limit in table.handles["r1"].statuses[0].limits]',
            [limit.would_refuse for limit in table.handles["r1"].statuses[0].limits],
            [
                False,
                False,
            ],
        )
        await table.play(See("key.rpm", refuses=True), See("key.tpm", refuses=False))


@cases()
async def a_refusal_by_an_enforcing_scope_counts_nothing_in_a_shadow_scope(bench: Bench) -> None:
    """R2: it holds for the whole request; only enforcing limits are listed."""
    shadow, strict = Scope("shadow", Limits(rpm=1), enforce=False), key("strict", rpm=2)
    await bench.play(
        R("r1", shadow, strict),
        R("r2", shadow, strict),
        R("r3", shadow, strict, deny="strict.rpm", after=60),
        used("shadow.rpm", 2),
    )


@cases()
async def enforcing_or_not_it_is_one_counter(bench: Bench) -> None:
    """R13: amount, burst and enforce are no part of what a counter is."""
    strict, shadow = key(rpm=2), Scope("key", Limits(rpm=9), enforce=False)
    await bench.play(
        R("r1", shadow),
        R("r2", strict),
        R("r3", strict, deny="key.rpm"),
        R("r4", shadow),
        See("key.rpm", used=3, left=6),
    )


@cases()
async def r17_what_was_used_stays_used(bench: Bench) -> None:
    """R17: a lower amount shows remaining 0, never negative, and refuses; a higher one admits again."""
    await bench.play(
        R("r1", key(tpm=100), tok=80),
        R("r2", key(tpm=50), tok=1, deny="key.tpm", after=60),
        See("key.tpm", used=80, left=0, refuses=True),
        R("r3", key(tpm=90), tok=10),
        See("key.tpm", used=90, left=0),
        R("r4", key(tpm=100), tok=10),
        See("key.tpm", used=100, left=0),
        R("r5", key(tpm=1_000), tok=900),
        S("r1", 20),
        See("key.tpm", used=940, left=60),
    )


@cases()
async def r17_another_window_or_algorithm_is_another_limit(bench: Bench) -> None:
    """R17: each starts from nothing, and the first is as it was when it comes back."""
    variants = [
        key(tpm=100),
        Scope("key", Limits(also=(Limit("tokens", 100, 59),))),
        key(tpm=100, algorithm="sliding_window"),
        key(tpm=100, algorithm="token_bucket"),
        key(itpm=100),
    ]
    async with bench.table() as table:
        for n, scope in enumerate(variants, 1):
            await table.play(R(f"r{n}", scope, tok=Usage(n * 10, 0)))
        counts = [(await table.limiter.peek(scope))[0].limits[0].used for scope in variants]
        expect("counts", counts, [10, 20, 30, 40, 50])


@cases()
async def r17_concurrency_lowered_and_raised(bench: Bench) -> None:
    """R17: slots that are held stay held."""
    await bench.play(
        R("r1", key(concurrency=3)),
        R("r2", key(concurrency=3)),
        R("r3", key(concurrency=1), deny="key.conc"),
        See("key.conc", used=2, left=0),
        C("r1"),
        R("r3", key(concurrency=1), deny="key.conc"),
        R("r4", key(concurrency=2)),
        R("r5", key(concurrency=2), deny="key.conc"),
    )


@cases()
async def r17_a_bucket_refills_at_the_rate_of_the_call_that_asks(bench: Bench) -> None:
    """R17: looking at another rate forgets nothing; a write sets what the next one starts from."""
    slow, fast = key(tpm=60, algorithm="token_bucket"), key(tpm=120, algorithm="token_bucket")
    await bench.play(
        R("r1", slow, tok=60),
        See("key.tpm", used=40, left=80, at=10, scope=fast),
        See("key.tpm", used=50, left=10, scope=slow),
        R("r2", fast, tok=30),
        See("key.tpm", used=70, left=50),
        See("key.tpm", used=70, left=0, scope=slow),
        See("key.tpm", used=50, left=70, at=20, scope=fast),
        See("key.tpm", used=60, left=0, scope=slow),
    )


@cases()
async def r17_a_changed_burst_is_the_same_bucket(bench: Bench) -> None:
    """R17: capacity follows the call; what was used stays."""

    def bucket(burst: int) -> Scope:
        return Scope("key", Limits(also=(Limit("tokens", 60, 60, "token_bucket", burst),)))

    await bench.play(
        R("r1", bucket(100), tok=90),
        See("key.tpm", used=90, left=10),
        R("r2", bucket(50), tok=1, deny="key.tpm", after=41),
        See("key.tpm", used=90, left=0),
        R("r3", bucket(200), tok=110),
    )


@cases(each("algorithm", ALGORITHMS))
async def reset_forgets_counts_and_not_slots(bench: Bench, algorithm: str) -> None:
    """R6: `reset`: nothing is used any more, slots stay held, and other keys stay as they are."""
    scope, other = key(rpm=9, tpm=100, concurrency=2, algorithm=algorithm), key("other", tpm=100)
    await bench.play(
        R("r1", scope, other, tok=80),
        Z(scope),
        See("key.rpm", used=0, left=9),
        See("key.tpm", used=0, left=100),
        See("key.conc", used=1, left=1),
        used("other.tpm", 80),
        R("r2", scope, tok=100),
    )


@cases(
    each("algorithm", ALGORITHMS),
    each(
        ("ending", "left"),
        [(S("r1", 0), 50), (S("r1", 80), 50), (S("r1", 95), 65), (X("r1"), 50), (C("r1"), 50)],
    ),
)
async def reset_leaves_a_hold_nothing_to_give_back(
    bench: Bench, algorithm: str, ending: Any, left: int
) -> None:
    """R6: a hold from before a reset gives nothing back, and only what exceeds it is charged."""
    scope = key(tpm=100, rpm=9, algorithm=algorithm)
    await bench.play(
        R("r1", scope, tok=80),
        Z(scope),
        R("r2", scope, tok=50),
        ending,
        used("key.tpm", left),
        used("key.rpm", 1),
    )


@cases()
async def reset_forgives_only_what_it_names(bench: Bench) -> None:
    """R6: limits of the same key that the reset did not name keep their counts, and their holds."""
    both, minute = key(tpm=100, tpd=1_000), key(tpm=100)
    await bench.play(
        R("r1", both, tok=80),
        Z(minute),
        See("key.tpm", used=0, scope=both),
        used("key.tpd", 80),
        S("r1", 20),
        See("key.tpm", used=0, scope=both),
        used("key.tpd", 20),
    )


@cases()
async def reset_of_a_hold_taken_afterwards_is_no_concern(bench: Bench) -> None:
    """R6: a hold from after the reset gives back as any other."""
    scope = key(tpm=100)
    await bench.play(
        R("r1", scope, tok=80), Z(scope), R("r2", scope, tok=50), S("r2", 10), used("key.tpm", 10)
    )


@cases()
async def reset_of_an_unknown_key_is_nothing(bench: Bench) -> None:
    """R6: resetting nothing is no error, and what is admitted afterwards counts as ever."""
    unknown = key("unknown", rpm=5, tpm=5, concurrency=1)
    await bench.play(
        Z(unknown), Z(key("unlimited")), R("r1", unknown, tok=4), used("unknown.tpm", 4)
    )
