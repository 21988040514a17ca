"""A stream of the openai SDK under limits: held before it is asked for, settled at what OpenAI reports.

`reservation.stream` takes the SDK's stream and gives the SDK's own chunks. OpenAI reports what a stream used in its
last chunk, and only where `include_usage` asks for it. A reader who leaves before that pays what was held, since nobody
knows what the rest would have been; closing the stream gives the SDK's connection back.

    python examples/stream_openai.py
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from loopback import provider
from openai import AsyncOpenAI

from earmark import Event, Limiter, Limits, Scope

ALICE: Final = Scope("api_key:alice", Limits(rpm=60, tpm=2_000, concurrency=4))
MAX_TOKENS: Final = 300


def show(event: Event) -> None:
    """Print what became of a request."""
    if event.kind != "admitted":
        used = event.used.get("tokens", "unknown")
        print(f"\n  {event.kind}: {event.asked['tokens']} tokens held, used: {used}")


async def ask(limiter: Limiter, client: AsyncOpenAI, prompt: str, *, chunks: int) -> None:
    """Ask, and print at most so many chunks of the answer."""
    async with await limiter.pre_commit(ALICE, tokens=len(prompt) // 4 + MAX_TOKENS) as reservation:
        answer = await client.chat.completions.create(
            model="stand-in-1",
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        async with aclosing(reservation.stream(answer)) as stream:
            async for chunk in stream:
                print(*(choice.delta.content or "" for choice in chunk.choices), end="")
                chunks -= 1
                if not chunks:
                    break


async def main() -> None:
    limiter = Limiter(observers=[show])
    async with (
        provider() as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        await ask(limiter, client, "Say hello, please", chunks=100)
        await ask(limiter, client, "Say hello, please, at length", chunks=1)


asyncio.run(main())
