"""One request in several attempts: by hand over several providers, with stamina, and with tenacity.

Whatever the loop, `limiter.once` counts the request once, and each attempt what it asks of its provider. A refusal
of the request itself ends the loop: it is the same for every later attempt, and nothing is sent for it. Where nobody
has answered, the request is charged for what was sent: nothing where no provider could be reached, no tokens where
all have refused it unbilled.

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
    ReserveOnce,
    Scope,
    Usage,
    usage_from_response,
)
from earmark.testing import ManualClock
from earmark.testing.provider import Act, Provider

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=2_000, concurrency=4))
MAIN, SPARE = (Scope(f"provider:{name}", Limits(concurrency=100)) for name in ("main", "spare"))
BODY: Final[Any] = {"model": "m", "messages": [], "max_tokens": 300}

# What httpx raises while nothing has been sent yet, and what a provider does not bill.
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
UNBILLED: Final = frozenset({400, 401, 403, 404, 413, 422, 429})

stand_in = Provider()
http = httpx.AsyncClient(transport=httpx.ASGITransport(stand_in), base_url="http://provider")


class Tries:
    """The attempts of one request, and what became of those that have failed."""

    def __init__(self, once: ReserveOnce) -> None:
        self._once = once
        self._unbilled = self._unknown = False

    async def ask(self, provider: Scope) -> str:
        """Ask a provider, and settle what the answer used; an error says what the attempt is to be charged."""
        async with await self._once.attempt(provider) as attempt:
            try:
                return await self._answer(attempt)
            except NEVER_SENT:
                await attempt.cancel()
                raise
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in UNBILLED:
                    self._unknown = True  # leaving the attempt keeps what was held
                    raise
                await attempt.cancel()
                self._unbilled = True
                raise
            except httpx.HTTPError:
                self._unknown = True
                raise

    async def _answer(self, attempt: Reservation) -> str:
        response = await http.post("/v1/chat/completions", json=BODY)
        response.raise_for_status()
        usage = usage_from_response(response.content)
        if usage is not None:
            await attempt.settle_success(usage)
        text: str = response.json()["choices"][0]["message"]["content"]
        return text

    async def given_up(self) -> None:
        """Nobody has answered: charge the request for what was sent."""
        if self._unknown:
            return  # somebody may bill it: leaving the once keeps what was held
        if not self._unbilled:
            await self._once.cancel()
            return
        async with await self._once.attempt() as nobody:
            await nobody.settle_success(Usage(0, 0))


async def by_hand(limiter: Limiter) -> str:
    """The next provider, where one has no room or fails."""
    async with limiter.once(ALICE, tokens=310) as once:
        tries = Tries(once)
        for provider in (MAIN, SPARE):
            try:
                return await tries.ask(provider)
            except RateLimited:
                if once.refused:
                    raise
            except httpx.HTTPError:
                continue
        await tries.given_up()
    return "nobody has answered"


async def with_stamina(limiter: Limiter) -> str:
    """Stamina retries what it is told to, and a refusal is not among it."""
    async with limiter.once(ALICE, tokens=310) as once:
        tries = Tries(once)
        try:
            async for retry in stamina.retry_context(on=httpx.HTTPError, attempts=3, wait_max=0.01):
                with retry:
                    return await tries.ask(MAIN)
        except httpx.HTTPError:
            await tries.given_up()
    return "nobody has answered"


async def with_tenacity(limiter: Limiter) -> str:
    """Tenacity retries everything unless it is told not to."""
    async with limiter.once(ALICE, tokens=310) as once:
        tries = Tries(once)
        try:
            async for retry in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_not_exception_type(RateLimited),
                stop=tenacity.stop_after_attempt(3),
                reraise=True,
            ):
                with retry:
                    return await tries.ask(MAIN)
        except httpx.HTTPError:
            await tries.given_up()
    return "nobody has answered"


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
    for way, attempts in ((by_hand, 2), (with_stamina, 3), (with_tenacity, 3)):
        limiter = Limiter(MemoryBackend(clock=ManualClock()))
        stand_in.script(*[Act(status=429)] * attempts)  # all refuse it, and nobody bills it
        text = await way(limiter)
        (alice,) = await limiter.peek(ALICE)
        print(
            f"{way.__name__:<14} {text}: alice has used {alice['requests'].used} request and"
            f" {alice['tokens'].used} tokens"
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
