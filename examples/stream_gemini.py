"""A stream of the google-genai SDK under limits: read to its end, also where its reader leaves in the middle.

`reservation.stream` takes the SDK's stream and gives the SDK's own chunks. Every chunk of Gemini's has a running count,
with the thoughts counted apart; they are part of the output here. A reader who leaves early would pay what was held.
With `drain` the rest is read in the background, in the task group of `async with Limiter()`, and Gemini's own last
count is settled.

    python examples/stream_gemini.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from google.genai import Client
from google.genai.client import AsyncClient
from google.genai.types import HttpOptions
from loopback import provider

from earmark import Event, Limiter, Limits, Scope

ALICE: Final = Scope("api_key:alice", Limits(rpm=10, tpm=2_000))
MAX_TOKENS: Final = 300


def show(event: Event) -> None:
    """Print what became of a request."""
    if event.kind != "admitted":
        used = event.used.get("tokens", "unknown")
        print(f"\n  {event.kind}: {event.asked['tokens']} tokens held, used: {used}")


async def ask(limiter: Limiter, client: AsyncClient, prompt: str, *, chunks: int) -> None:
    """Ask, and print at most so many chunks of the answer."""
    async with await limiter.pre_commit(ALICE, tokens=len(prompt) // 4 + MAX_TOKENS) as reservation:
        answer = await client.models.generate_content_stream(
            model="stand-in-1", contents=prompt, config={"max_output_tokens": MAX_TOKENS}
        )
        async with aclosing(reservation.stream(answer, drain=10.0)) as stream:
            async for chunk in stream:
                print(chunk.text, end="")
                chunks -= 1
                if not chunks:
                    break


async def main() -> None:
    async with (
        provider() as url,
        Client(api_key="none", http_options=HttpOptions(base_url=url)).aio as client,
        # Its block ends when what was left of the second stream has been read.
        Limiter(observers=[show]) as limiter,
    ):
        await ask(limiter, client, "Say hello, please", chunks=100)
        await ask(limiter, client, "Say hello, please, at length", chunks=1)


asyncio.run(main())
