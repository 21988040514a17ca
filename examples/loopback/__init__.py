"""The providers of the examples, on this machine: they answer each request with a short stream and ask for no key."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from gateway.serving import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .bodies import ANTHROPIC, GEMINI, OPENAI

__all__ = ["provider", "streamed"]

# By how the path ends that is asked; what stands before it depends on the SDK and its version.
_BODIES: Final = {
    "/chat/completions": OPENAI,
    "/messages": ANTHROPIC,
    ":streamGenerateContent": GEMINI,
}


def streamed(path: str) -> Sequence[bytes]:
    """The events that are streamed to whoever asks for this path."""
    return next(events for ending, events in _BODIES.items() if path.endswith(ending))


@asynccontextmanager
async def provider() -> AsyncGenerator[str, None]:
    """Serve all of them; yields the base URL."""
    os.environ["NO_PROXY"] = "127.0.0.1"  # clients that look for a proxy go round it
    app = Starlette(routes=[Route("/{path:path}", _answer, methods=["POST"])])
    async with serving(app) as url:
        yield url


async def _answer(request: Request) -> Response:
    return StreamingResponse(_each(streamed(request.url.path)), media_type="text/event-stream")


async def _each(events: Sequence[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event
