"""What the headers of an admission cost, and those of a refusal: at most 5 µs (the least of many rounds).

python tests/benchmarks/bench_http.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from earmark import Limiter, Limits, RateLimited, Scope
from earmark.http import answer_to, rate_limit_headers

ROUNDS: Final = 200
CALLS: Final = 200

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=90_000, concurrency=4))
MODEL: Final = Scope("model:gpt-4o", Limits(tpm=2_000_000))
ONE: Final = Scope("api_key:bob", Limits(rpm=1))


def least(call: Callable[[], Any]) -> float:
    """Microseconds of one call, in the best of many rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.process_time_ns() - began) / CALLS / 1_000)
    return best


async def main() -> None:
    """Print a table."""
    limiter = Limiter()
    async with await limiter.pre_commit(ALICE, MODEL, tokens=1_200) as reservation:
        statuses = reservation.statuses
        rows: dict[str, Callable[[], Any]] = {
            "the statuses of two scopes": lambda: reservation.statuses,
            "OpenAI's headers of these statuses": lambda: rate_limit_headers(statuses),
            "Anthropic's": lambda: rate_limit_headers(statuses, "anthropic"),
            "the IETF's": lambda: rate_limit_headers(statuses, "ietf"),
        }
        async with await limiter.pre_commit(ONE):
            try:
                await limiter.pre_commit(ONE)
            except RateLimited as refused:
                error = refused
        rows["an answer to a refusal, with its bytes"] = lambda: answer_to(error).content
        for name, call in rows.items():
            print(f"{name:<42} {least(call):6.2f} µs")


if __name__ == "__main__":
    asyncio.run(main())
