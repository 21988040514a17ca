"""The limiter's surface: peek, statuses, `enforce=False`, changing limits, reset (R17)."""

from __future__ import annotations

from typing import Any

import pytest

from earmark import (
    Limit,
    Limits,
    Scope,
    Usage,
)
from tests.rows import (
    C,
    Empty,
    R,
    S,
    See,
    Table,
    X,
    Z,
    key,
    play,
    used,
)

pytestmark = pytest.mark.anyio

ALGORITHMS = ["fixed_window", "sliding_window", "token_bucket"]


# Looking


async def test_peek_is_a_tuple_of_statuses_in_the_order_asked() -> None:
    """One ScopeStatus per scope, each with its limits in the order of refusals."""
    a, b = key("a", tpm=100, rpm=9, concurrency=2), key("b", itpm=50)
    async with Table(start=30) as table:
        await table.play(R("r1", a, b, tok=Usage(20, 15)))
        peeked = await table.limiter.peek(b, a)
        assert isinstance(peeked, tuple)
        assert [status.key for status in peeked] == ["b", "a"]
        assert [[limit.limit for limit in status.limits] for status in peeked] == [
            [*b.limits],
            [*a.limits],
        ]
        rpm, tpm, slots = peeked[1].limits
        assert (rpm.used, rpm.remaining, rpm.reset_after, rpm.would_refuse) == (1, 8, 30, False)
        assert (tpm.used, tpm.remaining, tpm.reset_after, tpm.would_refuse) == (35, 65, 30, False)
        assert (slots.used, slots.remaining, slots.reset_after, slots.would_refuse) == (
            1,
            1,
            None,
            False,
        )
        assert slots.limit.metric == "concurrency"
        assert peeked[0]["input_tokens"].used == 20
        assert await table.limiter.peek() == ()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_peek_changes_nothing(algorithm: str) -> None:
    """However often it looks, at known and unknown keys, whatever it finds."""
    scope, unknown = (
        key(rpm=9, tpm=100, concurrency=2, algorithm=algorithm),
        key("unknown", tpm=5, rpd=7),
    )
    async with Table(start=7) as table:
        await table.play(R("r1", scope, tok=40))
        size = table.backend.size()
        for at in (7, 7, 30, 59):
            table.clock.set(at)
            first = await table.limiter.peek(scope, unknown)
            assert await table.limiter.peek(scope, unknown) == first
        assert table.backend.size() == size
        assert table.kinds() == ["admitted"]
        await table.play(R("r2", scope, tok=60 if algorithm == "fixed_window" else 1))


async def test_statuses_are_what_the_request_left() -> None:
    """Statuses are of the moment of admission, for response headers, whatever happens later (B56)."""
    scope = key(rpm=100, tpm=1_000, concurrency=5)
    async with Table(start=15) as table:
        await table.play(R("r1", scope, tok=300))
        handle = table.handles["r1"]
        (status,) = handle.statuses
        assert [limit.used for limit in status.limits] == [1, 300, 1]
        assert [limit.remaining for limit in status.limits] == [99, 700, 4]
        assert [limit.reset_after for limit in status.limits] == [45, 45, None]
        await table.play(R("r2", scope, tok=300, at=70), S("r1", 20))
        assert handle.statuses == (status,)


async def test_the_tightest_limit_of_a_metric() -> None:
    """`scope_status[metric]`: the smallest `remaining`, on a tie the first; another metric: KeyError."""
    scope = key(rpm=5, rpd=100, tpm=50, tph=40, tpd=40)
    async with Table() as table:
        await table.play(R("r1", scope, tok=10))
        (status,) = await table.limiter.peek(scope)
        assert status["requests"].limit == Limit("requests", 5, 60)
        assert status["tokens"].limit == Limit("tokens", 40, 3_600)
        with pytest.raises(KeyError):
            status["input_tokens"]


# Shadow limits


async def test_enforce_false_counts_and_reports_and_never_refuses() -> None:
    """A scope that is rolled out: `would_refuse` says what it would have done to this request."""
    shadow = Scope("key", Limits(rpm=2, tpm=100, concurrency=1), enforce=False)
    rows = [
        # tokens asked, would refuse: rpm, tpm, concurrency
        (60, (False, False, False)),
        (40, (False, False, True)),
        (0, (True, True, True)),
        (500, (True, True, True)),
    ]
    async with Table() as table:
        for n, (ask, expected) in enumerate(rows, 1):
            await table.play(R(f"r{n}", shadow, tok=ask))
            (status,) = table.handles[f"r{n}"].statuses
            assert tuple(limit.would_refuse for limit in status.limits) == expected
        await table.play(
            See("key.rpm", used=4, left=0, refuses=True),
            See("key.tpm", used=600, left=0, refuses=True),
            See("key.conc", used=4, left=0, refuses=True),
            *(C(f"r{n}") for n in range(1, 5)),
            See("key.conc", used=0, left=1, refuses=False),
        )


async def test_would_refuse_is_of_this_request_in_statuses_and_of_an_empty_one_in_peek() -> None:
    """Asking exactly the capacity would not have been refused; the next one, asking nothing, would."""
    shadow = Scope("key", Limits(tpm=100), enforce=False)
    async with Table() as table:
        await table.play(R("r1", shadow, tok=100))
        assert table.handles["r1"].statuses[0]["tokens"].would_refuse is False
        await table.play(See("key.tpm", refuses=True))
        await table.play(R("r2", shadow, tok=101, at=60))
        assert table.handles["r2"].statuses[0]["tokens"].would_refuse is True


async def test_would_refuse_of_enforcing_scopes() -> None:
    """What was admitted would not have been refused; peek says whether the next one would be."""
    scope = key(rpm=1, tpm=100)
    async with Table() as table:
        await table.play(R("r1", scope, tok=5))
        assert [limit.would_refuse for limit in table.handles["r1"].statuses[0].limits] == [
            False,
            False,
        ]
        await table.play(See("key.rpm", refuses=True), See("key.tpm", refuses=False))


async def test_a_refusal_by_an_enforcing_scope_counts_nothing_in_a_shadow_scope() -> None:
    """R2 holds for the whole request; only enforcing limits are listed."""
    shadow, strict = Scope("shadow", Limits(rpm=1), enforce=False), key("strict", rpm=2)
    await play(
        R("r1", shadow, strict),
        R("r2", shadow, strict),
        R("r3", shadow, strict, deny="strict.rpm", after=60),
        used("shadow.rpm", 2),
    )


async def test_enforcing_or_not_it_is_one_counter() -> None:
    """R13: amount, burst and enforce are no part of what a counter is."""
    strict, shadow = key(rpm=2), Scope("key", Limits(rpm=9), enforce=False)
    await play(
        R("r1", shadow),
        R("r2", strict),
        R("r3", strict, deny="key.rpm"),
        R("r4", shadow),
        See("key.rpm", used=3, left=6),
    )


# Changing limits


async def test_r17_what_was_used_stays_used() -> None:
    """R17: a lower amount shows remaining 0, never negative, and refuses; a higher one admits again."""
    await play(
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


async def test_r17_another_window_or_algorithm_is_another_limit() -> None:
    """R17: each starts from nothing, and the first is as it was when it comes back."""
    variants = [
        key(tpm=100),
        Scope("key", Limits(also=(Limit("tokens", 100, 59),))),
        key(tpm=100, algorithm="sliding_window"),
        key(tpm=100, algorithm="token_bucket"),
        key(itpm=100),
    ]
    async with Table() as table:
        for n, scope in enumerate(variants, 1):
            await table.play(R(f"r{n}", scope, tok=Usage(n * 10, 0)))
        counts = [(await table.limiter.peek(scope))[0].limits[0].used for scope in variants]
        assert counts == [10, 20, 30, 40, 50]


async def test_r17_concurrency_lowered_and_raised() -> None:
    """R17: slots that are held stay held."""
    await play(
        R("r1", key(concurrency=3)),
        R("r2", key(concurrency=3)),
        R("r3", key(concurrency=1), deny="key.conc"),
        See("key.conc", used=2, left=0),
        C("r1"),
        R("r3", key(concurrency=1), deny="key.conc"),
        R("r4", key(concurrency=2)),
        R("r5", key(concurrency=2), deny="key.conc"),
    )


async def test_r17_a_bucket_refills_at_the_rate_of_the_call_that_asks() -> None:
    """R17: looking at another rate forgets nothing; a write sets what the next one starts from."""
    slow, fast = key(tpm=60, algorithm="token_bucket"), key(tpm=120, algorithm="token_bucket")
    await play(
        R("r1", slow, tok=60),
        See("key.tpm", used=40, left=80, at=10, scope=fast),
        See("key.tpm", used=50, left=10, scope=slow),
        R("r2", fast, tok=30),
        See("key.tpm", used=70, left=50),
        See("key.tpm", used=70, left=0, scope=slow),
        See("key.tpm", used=50, left=70, at=20, scope=fast),
        See("key.tpm", used=60, left=0, scope=slow),
    )


async def test_r17_a_changed_burst_is_the_same_bucket() -> None:
    """R17: capacity follows the call; what was used stays."""

    def bucket(burst: int) -> Scope:
        return Scope("key", Limits(also=(Limit("tokens", 60, 60, "token_bucket", burst),)))

    await play(
        R("r1", bucket(100), tok=90),
        See("key.tpm", used=90, left=10),
        R("r2", bucket(50), tok=1, deny="key.tpm", after=41),
        See("key.tpm", used=90, left=0),
        R("r3", bucket(200), tok=110),
    )


# Forgiving


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_reset_forgets_counts_and_not_slots(algorithm: str) -> None:
    """`reset`: nothing is used any more, slots stay held, and other keys stay as they are."""
    scope, other = key(rpm=9, tpm=100, concurrency=2, algorithm=algorithm), key("other", tpm=100)
    await play(
        R("r1", scope, other, tok=80),
        Z(scope),
        See("key.rpm", used=0, left=9),
        See("key.tpm", used=0, left=100),
        See("key.conc", used=1, left=1),
        used("other.tpm", 80),
        R("r2", scope, tok=100),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("ending", "left"),
    [(S("r1", 0), 50), (S("r1", 80), 50), (S("r1", 95), 65), (X("r1"), 50), (C("r1"), 50)],
)
async def test_reset_leaves_a_hold_nothing_to_give_back(
    algorithm: str, ending: Any, left: int
) -> None:
    """A hold from before a reset gives nothing back, and only what exceeds it is charged."""
    scope = key(tpm=100, rpm=9, algorithm=algorithm)
    await play(
        R("r1", scope, tok=80),
        Z(scope),
        R("r2", scope, tok=50),
        ending,
        used("key.tpm", left),
        used("key.rpm", 1),
    )


async def test_reset_forgives_only_what_it_names() -> None:
    """Limits of the same key that the reset did not name keep their counts, and their holds."""
    both, minute = key(tpm=100, tpd=1_000), key(tpm=100)
    await play(
        R("r1", both, tok=80),
        Z(minute),
        See("key.tpm", used=0, scope=both),
        used("key.tpd", 80),
        S("r1", 20),
        See("key.tpm", used=0, scope=both),
        used("key.tpd", 20),
    )


async def test_reset_of_a_hold_taken_afterwards_is_no_concern() -> None:
    """A hold from after the reset gives back as any other."""
    scope = key(tpm=100)
    await play(
        R("r1", scope, tok=80), Z(scope), R("r2", scope, tok=50), S("r2", 10), used("key.tpm", 10)
    )


async def test_reset_of_an_unknown_key_is_nothing() -> None:
    """Nothing is created, and resetting nothing is no error."""
    await play(Z(key("unknown", rpm=5, tpm=5, concurrency=1)), Z(key("unlimited")), Empty())
