"""What type checkers see of the public surface: never run, but read by mypy and pyright on each change.

`assert_type` fails where a type became wider or narrower; a comment that ignores an error fails where there is
no error any more.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, assert_type

import earmark
from earmark import (
    Denial,
    Event,
    Explanation,
    Limit,
    Limiter,
    LimitExplanation,
    Limits,
    LimitStatus,
    MemoryBackend,
    Observed,
    ObservedStream,
    RateLimited,
    Reservation,
    ReserveOnce,
    Scope,
    ScopeStatus,
    Usage,
    observe_stream,
    usage_from_response,
)
from earmark.backends import Backend
from earmark.http import Answer, answer_to, rate_limit_headers
from earmark.testing import (
    CONTRACT,
    Case,
    ContractBroken,
    FaultyBackend,
    ManualClock,
    charged,
    check_backend,
)
from earmark.testing.oracle import Oracle
from earmark.testing.plain import PlainBackend


def values() -> None:
    """Values have the types that they were made from."""
    limit = Limit("tokens", 90_000, 60, "token_bucket", burst=1_000)
    limits = Limits(rpm=60, tpm=90_000, concurrency=4, algorithm="sliding_window", also=(limit,))
    scope = Scope("api_key:alice", limits, enforce=False)
    assert_type(scope.key, str)
    assert_type(scope.limits, Limits)
    assert_type(limit.amount, int)
    assert_type(limit.burst, int | None)
    assert_type(Usage(input_tokens=900, output_tokens=150).total, int | None)
    Limit("tokens", 90_000, 60, "leaky_bucket")  # type: ignore[arg-type]
    Limits(rpm="60")  # type: ignore[arg-type]


async def life(backend: Backend, usage: Usage) -> None:
    """The verbs take a reservation and say whether this call resolved it."""

    def observer(event: Event) -> None:
        assert_type(event.request_id, str | None)
        assert_type(event.denials, tuple[Denial, ...])

    async with Limiter(backend, observers=[observer]) as limiter:
        assert_type(limiter, Limiter)
        scope = Scope("api_key:alice", Limits(rpm=60))
        reservation = await limiter.pre_commit(
            scope, tokens=usage, amounts={"pages": 3}, request_id="a"
        )
        assert_type(reservation, Reservation)
        assert_type(reservation.scopes, tuple[Scope, ...])
        assert_type(reservation.held, Mapping[str, int])
        assert_type(reservation.statuses, tuple[ScopeStatus, ...])
        assert_type(reservation.statuses[0]["requests"], LimitStatus)
        assert_type(reservation.statuses[0]["requests"].reset_after, float | None)
        assert_type(await reservation.renew(), bool)
        assert_type(await limiter.settle_success(reservation, 320), bool)
        assert_type(await limiter.settle_success(reservation, {"pages": 2}), bool)
        assert_type(await reservation.settle_success(usage), bool)
        assert_type(await limiter.close_reserved_only(reservation), bool)
        assert_type(await limiter.abandon(reservation), bool)
        assert_type(await limiter.cancel(reservation), bool)
        await limiter.add_tokens_post_stream("api_key:alice", 12)
        await limiter.add_tokens_post_stream(scope, usage, request_id="a")
        assert_type(await limiter.peek(scope), tuple[ScopeStatus, ...])
        said = await limiter.explain(scope, tokens=usage, amounts={"images": 1})
        assert_type(said, Explanation)
        assert_type(said.limits, tuple[LimitExplanation, ...])
        assert_type(said.feasible_at, float | None)
        await limiter.reset(scope)
        await limiter.pre_commit("api_key:alice")  # type: ignore[arg-type]
        await limiter.settle_success(reservation, 3.5)  # type: ignore[arg-type]


async def attempts(limiter: Limiter, scope: Scope, source: AsyncIterator[bytes]) -> None:
    """An attempt is a reservation."""
    once = limiter.once(scope, tokens=5, lease=10.0)
    assert_type(once, ReserveOnce)
    assert_type(once.refused, RateLimited | None)
    async with once as entered:
        assert_type(entered, ReserveOnce)
        reservation: Reservation = await once.attempt(scope)
        assert_type(reservation.stream(source), ObservedStream[bytes])
        assert_type(await limiter.settle_success(reservation, 5), bool)
        assert_type(rate_limit_headers(reservation, "ietf"), dict[str, str])
        await once.attempt("p1")  # type: ignore[arg-type]
    assert_type(await once.cancel(), bool)
    limiter.once(scope, request_id="a")  # type: ignore[call-arg]


async def refusal(limiter: Limiter, scope: Scope) -> float | None:
    """A refusal carries its data."""
    try:
        async with await limiter.pre_commit(scope) as reservation:
            assert_type(reservation, Reservation)
    except RateLimited as refused:
        assert_type(refused.denials, tuple[Denial, ...])
        assert_type(refused.retryable, bool)
        assert_type(answer_to(refused, "anthropic"), Answer)
        answer_to(refused, "soap")  # type: ignore[arg-type]
        return assert_type(refused.retry_after, float | None)
    return None


async def streams(reservation: Reservation, source: AsyncIterator[bytes]) -> None:
    """A stream gives what its source gives."""

    async def counted(observed: Observed) -> None:
        assert_type(observed.usage, Usage | None)
        assert_type(observed.authoritative, bool)

    assert_type(observe_stream(source, on_complete=counted), ObservedStream[bytes])
    async for item in reservation.stream(source):
        assert_type(item, bytes)


def around(body: Mapping[str, Any]) -> None:
    """The clock of the testing kit fits the backend; a body gives a usage, or none."""
    assert_type(usage_from_response(body), Usage | None)
    clock = ManualClock(start=0.0)
    backend: Backend = MemoryBackend(clock=clock, lease=30.0)
    Limiter(backend)
    Limiter(lease=30.0)  # type: ignore[call-arg]
    earmark.Limter()  # type: ignore[attr-defined]


async def kit(broken: ContractBroken, alice: Scope) -> None:
    """The testing kit takes every backend, and makes backends."""
    assert_type(charged(20, Observed("end")), int)
    assert_type(await check_backend(MemoryBackend), None)
    await check_backend(PlainBackend, CONTRACT[:5])
    backend: Backend = FaultyBackend(PlainBackend())
    oracle = Oracle(alice, clock=ManualClock())
    limiter = Limiter(backend, observers=[oracle])
    assert_type(await oracle.finish(limiter), None)
    assert_type(broken.failures[0].case, Case)
    assert_type(broken.rules, frozenset[str])
