"""What the headers of an admission cost, and those of a refusal: at most 5 µs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from earmark import Limiter, Limits, RateLimited, Scope
from earmark.http import answer_to, rate_limit_headers
from tests.benchmarks.figures import Effort, Table, Work, least, processor

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=90_000, concurrency=4))
MODEL: Final = Scope("model:gpt-4o", Limits(tpm=2_000_000))
ONE: Final = Scope("api_key:bob", Limits(rpd=1))


def calling(call: Callable[[], Any]) -> Work:
    """A function as something to measure."""

    async def work(_: int) -> None:
        call()

    return work


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """One table."""
    limiter = Limiter()
    async with await limiter.pre_commit(ALICE, MODEL, tokens=1_200) as reservation:
        statuses = reservation.statuses
        await (await limiter.pre_commit(ONE)).close_reserved_only()
        try:
            await limiter.pre_commit(ONE)
        except RateLimited as refused:
            error = refused
        calls: dict[str, Callable[[], Any]] = {
            "the statuses of two scopes": lambda: reservation.statuses,
            "OpenAI's headers of these statuses": lambda: rate_limit_headers(statuses),
            "Anthropic's": lambda: rate_limit_headers(statuses, "anthropic"),
            "the IETF's": lambda: rate_limit_headers(statuses, "ietf"),
            "an answer to a refusal, with its bytes": lambda: answer_to(error).content,
        }
        times = effort.of(2_000)
        measures = {name: processor(calling(call), times) for name, call in calls.items()}
        found = await least(measures, 5 * effort.rounds)
    yield Table("HTTP: headers and answers", ("", "µs of the processor"), tuple(found.items()))
