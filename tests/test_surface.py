"""The limiter's surface: peek, statuses, `enforce=False`, changing limits, reset (R17)."""

from __future__ import annotations

import pytest

from earmark import (
    Limit,
    Usage,
)
from tests.rows import Empty, R, S, Table, Z, key, play

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


# Changing limits


# Forgiving


async def test_reset_of_an_unknown_key_creates_nothing() -> None:
    """Nothing is kept of a reset, in memory."""
    await play(Z(key("unknown", rpm=5, tpm=5, concurrency=1)), Z(key("unlimited")), Empty())
