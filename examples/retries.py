"""One request in several attempts: by hand over several providers, with stamina, and with tenacity.

Whatever the loop, `limiter.once` counts the request once, and each attempt what it asks of its provider. A refusal
of the request itself ends the loop: it is the same for every later attempt, and nothing is sent for it.

    python examples/retries.py
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx
import stamina
import tenacity

from earmark import (
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    Reservation,
    Scope,
    usage_from_response,
)
from earmark.testing import ManualClock
from earmark.testing.provider import Act, Provider

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=2_000, concurrency=4))
MAIN, SPARE = (Scope(f"provider:{name}", Limits(concurrency=100)) for name in ("main", "spare"))
BODY: Final[Any] = {"model": "m", "messages": [], "max_tokens": 300}

stand_in = Provider()
http = httpx.AsyncClient(transport=httpx.ASGITransport(stand_in), base_url="http://provider")


async def ask(attempt: Reservation) -> str:
    """Ask a provider, and settle what the answer used. An error leaves the attempt, which keeps what was held."""
    response = await http.post("/v1/chat/completions", json=BODY)
    response.raise_for_status()
    usage = usage_from_response(response.content)
    if usage is not None:
        await attempt.settle_success(usage)
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def by_hand(limiter: Limiter) -> str:
    """The next provider, where one has no room or fails."""
    async with limiter.once(ALICE, tokens=310) as once:
        for provider in (MAIN, SPARE):
            try:
                async with await once.attempt(provider) as attempt:
                    return await ask(attempt)
            except RateLimited:
                if once.refused:
                    raise
            except httpx.HTTPError:
                continue
    return "nobody has answered"


async def with_stamina(limiter: Limiter) -> str:
    """Stamina retries what it is told to, and a refusal is not among it."""
    async with limiter.once(ALICE, tokens=310) as once:
        async for retry in stamina.retry_context(on=httpx.HTTPError, attempts=3, wait_max=0.01):
            with retry:
                async with await once.attempt(MAIN) as attempt:
                    return await ask(attempt)
    raise AssertionError


async def with_tenacity(limiter: Limiter) -> str:
    """Tenacity retries everything unless it is told not to."""
    async with limiter.once(ALICE, tokens=310) as once:
        async for retry in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_not_exception_type(RateLimited),
            stop=tenacity.stop_after_attempt(3),
            reraise=True,
        ):
            with retry:
                async with await once.attempt(MAIN) as attempt:
                    return await ask(attempt)
    raise AssertionError


async def main() -> None:
    for way in (by_hand, with_stamina, with_tenacity):
        limiter = Limiter(MemoryBackend(clock=ManualClock()))
        stand_in.script(Act(status=503))  # the first attempt fails
        text = await way(limiter)
        (alice, main) = await limiter.peek(ALICE, MAIN)
        print(
            f"{way.__name__:<14} {text.split()[0]}…: alice has used {alice['requests'].used} request and"
            f" {alice['tokens'].used} tokens; {main['concurrency'].used} slots are held"
        )
    limiter = Limiter(MemoryBackend(clock=ManualClock()))
    await limiter.add_tokens_post_stream(ALICE, 1_999)
    for way in (by_hand, with_stamina, with_tenacity):
        sent = len(stand_in.seen)
        try:
            await way(limiter)
        except RateLimited as refusal:
            print(f"{way.__name__:<14} is refused and sends {len(stand_in.seen) - sent}: {refusal}")
    await http.aclose()


asyncio.run(main())
