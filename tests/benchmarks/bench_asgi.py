"""What earmark adds to a streamed FastAPI request in memory: at most 100 µs, and 3 µs for each chunk.

The same application with and without: reserve, rate-limit headers, observe every chunk, settle before the last one. No
network: the application is called as a server calls it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import Response, StreamingResponse

from earmark import Limiter, Limits, Scope
from earmark.contrib.asgi import ReservedStream, answer_refusals
from tests.benchmarks.figures import Effort, Table, Work, least, processor

PLENTY: Final = 10**12

ALICE: Final = Scope("api_key:alice", Limits(rpm=PLENTY, tpm=PLENTY, concurrency=1_000))
MODEL: Final = Scope("model:gpt-4o", Limits(tpm=PLENTY))


def chunk(number: int) -> bytes:
    """A chunk as OpenAI sends it, of about 300 bytes."""
    body = {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "gpt-4o-2024-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
        "choices": [
            {
                "index": 0,
                "delta": {"content": f"word{number}"},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        "usage": None,
    }
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def body(chunks: int) -> list[bytes]:
    """A whole stream of so many chunks."""
    finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}\n\n'
    return [*map(chunk, range(chunks - 3)), finish, usage, b"data: [DONE]\n\n"]


async def source(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """The provider."""
    for piece in pieces:
        yield piece


def plain(pieces: list[bytes]) -> FastAPI:
    """The application without earmark."""
    app = FastAPI()

    @app.post("/")
    async def complete() -> Response:
        return StreamingResponse(source(pieces), media_type="text/event-stream")

    return app


def reserved(pieces: list[bytes]) -> FastAPI:
    """The same with everything that earmark does."""
    app, limiter = FastAPI(), Limiter()
    answer_refusals(app)

    @app.post("/")
    async def complete() -> Response:
        async with await limiter.pre_commit(ALICE, MODEL, tokens=1_200) as reservation:
            return ReservedStream(reservation.stream(source(pieces)), reservation)

    return app


def once(pieces: list[bytes]) -> FastAPI:
    """With an attempt of a `once` in place of a reservation."""
    app, limiter = FastAPI(), Limiter()
    answer_refusals(app)

    @app.post("/")
    async def complete() -> Response:
        async with limiter.once(ALICE, tokens=1_200) as request:
            attempt = await request.attempt(MODEL)
            return ReservedStream(attempt.stream(source(pieces)), attempt)

    return app


async def call(app: Any) -> None:
    """One request, as a server makes it."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "query_string": b"",
        "headers": [],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        pass

    await app(scope, receive, send)


def calling(app: FastAPI) -> Work:
    """A request as something to measure."""

    async def work(_: int) -> None:
        await call(app)

    return work


async def tables(effort: Effort) -> AsyncIterator[Table]:
    """A table for a short stream and one for a long one."""
    makes: list[Callable[[list[bytes]], FastAPI]] = [plain, reserved, once]
    for chunks in (20, 500):
        pieces = body(chunks)
        times = effort.of(20)
        found = await least(
            {make.__name__: processor(calling(make(pieces)), times) for make in makes},
            5 * effort.rounds,
        )
        bare, allowed = found.pop("plain"), 100 + 3 * chunks
        yield Table(
            f"ASGI: what is added to a request of {chunks} chunks",
            ("", "µs of the processor", "at most"),
            tuple((name, figure - bare, allowed) for name, figure in found.items()),
            f"Without earmark it takes {bare:.0f} µs.",
        )
