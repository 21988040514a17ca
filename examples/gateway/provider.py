"""The provider of the demo: earmark's own stand-in, which streams one body and waits where it is told."""

from __future__ import annotations

from typing import Final

import httpx

from earmark.testing.provider import Act, Provider, Recorded

MODEL: Final = "stand-in-1"


def stand_in(body: Recorded) -> Provider:
    """Streams this body to everyone; an answer in one piece uses 30 tokens, and any other model is a 404."""
    return Provider(Act(output_tokens=20), recorded=body, models={MODEL})


async def spoken(prompt: int, completion: int) -> Recorded:
    """A stream of OpenAI's shape: a few words, a report, `[DONE]`. Another stand-in says it."""
    speaker = Provider(Act(chunks=3, input_tokens=prompt, output_tokens=completion))
    transport = httpx.ASGITransport(speaker)
    async with httpx.AsyncClient(transport=transport, base_url="http://provider") as http:

        async def said(**options: object) -> bytes:
            asked = {"model": MODEL, "messages": [], "stream": True, **options}
            return (await http.post("/v1/chat/completions", json=asked)).content

        told = await said(stream_options={"include_usage": True})
        return Recorded("text/event-stream", told, await said())
