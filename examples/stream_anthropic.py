"""A stream of the anthropic SDK under limits like Anthropic's own: input and output tokens, each for itself.

`reservation.stream` takes the SDK's stream, this one or that of `messages.stream(…)`, and gives the SDK's own events.
What was read from a cache is part of the input here; Anthropic counts it apart. The tokens are settled before
the reader has the last event.

    python examples/stream_anthropic.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from anthropic import AsyncAnthropic
from loopback import provider

from earmark import Event, Limiter, Limits, Scope, Usage

ALICE: Final = Scope("api_key:alice", Limits(rpm=50, itpm=30_000, otpm=8_000))
MAX_TOKENS: Final = 300


def show(event: Event) -> None:
    """Print what became of a request."""
    if event.kind != "admitted":
        for metric in ("input_tokens", "output_tokens"):
            used = event.used.get(metric, "unknown")
            print(f"\n  {event.kind}: {event.asked[metric]} {metric} held, used: {used}", end="")


async def ask(limiter: Limiter, client: AsyncAnthropic, prompt: str) -> None:
    """Ask, and print the answer as it comes."""
    estimate = Usage(input_tokens=len(prompt) // 4, output_tokens=MAX_TOKENS)
    async with await limiter.pre_commit(ALICE, tokens=estimate) as reservation:
        answer = await client.messages.create(
            model="stand-in-1",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
            stream=True,
        )
        async with aclosing(reservation.stream(answer)) as stream:
            async for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    print(event.delta.text, end="")
                elif event.type == "message_stop":
                    print("\n  the last event is here")


async def main() -> None:
    limiter = Limiter(observers=[show])
    async with (
        provider() as url,
        AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        await ask(limiter, client, "Say hello, please")


asyncio.run(main())
