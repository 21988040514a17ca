"""A stand-in for a provider: an HTTP server that streams one body, and can be told where to wait.

It behaves as a real one where that matters here: a stream reports its usage only if the request asks for it, a
model that is not known is refused unbilled, and the body comes in pieces that are cut anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL: Final = "stand-in-1"

# A network cuts where it likes.
PIECE_BYTES: Final = 100

# How a recorded body is served, by the end of its file's name. Payloads, one a line, are served as they stand.
MEDIA_TYPES: Final = {
    ".sse": "text/event-stream",
    ".ndjson": "application/x-ndjson",
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class Body:
    """What the provider streams: the whole of it, and what is left where no usage was asked for."""

    media_type: str
    content: bytes
    without_usage: bytes


class Pause:
    """Where the next stream stops, by the bytes sent until then, and waits for `go_on`."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.ended = asyncio.Event()
        self._passes = asyncio.Semaphore(0)

    def go_on(self) -> None:
        """Let the stream go on to the next stop, or to its end."""
        self._passes.release()

    async def wait(self) -> None:
        """Wait at a stop."""
        await self._passes.acquire()


class Provider:
    """Streams the same body to everyone.

    Args:
        body: what is streamed.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._pauses: deque[Pause] = deque()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])

    def pause(self, *sizes: int) -> Pause:
        """Have the next stream wait once it has sent so many bytes."""
        pause = Pause(*sizes)
        self._pauses.append(pause)
        return pause

    async def complete(self, request: Request) -> Response:
        """Answer one chat completion."""
        asked: dict[str, Any] = await request.json()
        if asked.get("model") != MODEL:
            return JSONResponse({"error": {"message": "no such model", "code": "not_found"}}, 404)
        if not asked.get("stream"):
            return JSONResponse({"object": "chat.completion", "usage": usage(10, 20)})
        wanted = (asked.get("stream_options") or {}).get("include_usage")
        content = self._body.content if wanted else self._body.without_usage
        pause = self._pauses.popleft() if self._pauses else Pause()
        return StreamingResponse(_sent(content, pause), media_type=self._body.media_type)


async def _sent(content: bytes, pause: Pause) -> AsyncIterator[bytes]:
    start = 0
    try:
        for stop in pause.sizes:
            for piece in _pieces(content[start:stop]):
                yield piece
            if stop > len(content):
                return
            start = stop
            await pause.wait()
        for piece in _pieces(content[start:]):
            yield piece
    finally:
        pause.ended.set()


def _pieces(content: bytes) -> Iterator[bytes]:
    return (content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES))


def usage(prompt: int, completion: int) -> dict[str, int]:
    """A report of OpenAI's shape."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def spoken(prompt: int, completion: int) -> Body:
    """A stream of OpenAI's shape: a few words, a report, `[DONE]`."""
    chunks = [_chunk([{"index": 0, "delta": {"content": word}}]) for word in ("Hello", ", ", "you")]
    chunks.append(_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    report = _chunk([], usage=usage(prompt, completion))
    done = b"data: [DONE]\n\n"
    said = b"".join(chunks)
    return Body("text/event-stream", said + report + done, said + done)


def _chunk(choices: list[dict[str, Any]], **more: object) -> bytes:
    chunk = {"object": "chat.completion.chunk", "model": MODEL, "choices": choices, **more}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def recorded(path: Path) -> Body:
    """A recorded body, which is served as it is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or its name does not say what it is.
    """
    media_type = MEDIA_TYPES.get(path.suffix.lower())
    content = path.read_bytes()
    if media_type is None or not content:
        msg = (
            f"a recording is a file that is not empty and ends in {', '.join(MEDIA_TYPES)}: {path}"
        )
        raise ValueError(msg)
    return Body(media_type, content, content)
