"""FastAPI and Starlette (C6, B35, B43, B55, B56): refusals, a safety net, a stream that the response settles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, Final

import anyio
import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from earmark import (
    BackendUnavailable,
    Event,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    Reservation,
    Scope,
    Usage,
)
from earmark.contrib.asgi import Asks, ReservedStream, answer_refusals, reserving, style_of
from earmark.testing import ManualClock

pytestmark = pytest.mark.anyio

ALICE: Final = Scope("api_key:alice", Limits(rpm=10, tpm=1_000, concurrency=1))

TEXT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
USED: Final = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}\n\n'
DONE: Final = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """FastAPI runs on asyncio."""
    return "asyncio"


class Source:
    """Gives its items, then waits where it is told to, and knows whether it was closed."""

    def __init__(self, *items: bytes, hangs: bool = False) -> None:
        self._items = list(items)
        self._hangs = hangs
        self.closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        if self._items:
            return self._items.pop(0)
        if self._hangs:
            await anyio.sleep_forever()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


class World:
    """An application with one endpoint of each kind, and what became of its reservations."""

    def __init__(self, source: Source | None = None) -> None:
        self.events: list[Event] = []
        clock = ManualClock(20.0)
        self.limiter = limiter = Limiter(MemoryBackend(clock=clock), observers=[self.events.append])
        self.source = source or Source(TEXT, USED, DONE)
        self.app = app = FastAPI()
        answer_refusals(app)

        async def asks(request: Request) -> Asks:
            body = await request.json()
            if "tokens" not in body:
                raise HTTPException(400, "tokens")
            return Asks((ALICE,), tokens=body["tokens"])

        reserved = Depends(reserving(limiter, asks))

        @app.post("/settled")
        async def settled(reservation: Reservation = reserved) -> dict[str, int]:
            await reservation.settle_success(Usage(10, 20))
            return {"used": 30}

        @app.post("/forgotten")
        async def forgotten(reservation: Reservation = reserved) -> dict[str, str]:
            return {"state": reservation.state}

        @app.post("/failing")
        async def failing(reservation: Reservation = reserved) -> None:
            raise HTTPException(502)

        @app.post("/streamed")
        async def streamed(reservation: Reservation = reserved) -> Response:
            return ReservedStream(reservation.stream(self.source), reservation)

        @app.post("/v1/messages")
        async def messages(request: Request) -> Response:
            async with await limiter.pre_commit(ALICE, tokens=(await request.json())["tokens"]):
                return JSONResponse({})

        @app.post("/out")
        async def out() -> None:
            raise BackendUnavailable

    async def used(self) -> tuple[int, int, int]:
        (status,) = await self.limiter.peek(ALICE)
        requests, tokens, slots = (limit.used for limit in status.limits)
        return requests, tokens, slots

    @property
    def resolved(self) -> list[str]:
        return [event.kind for event in self.events if event.kind not in {"admitted", "refused"}]

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "status", "used", "resolved"),
    [
        ("/settled", 200, (1, 30, 0), ["settled"]),
        ("/forgotten", 200, (1, 50, 0), ["closed"]),
        ("/failing", 502, (1, 50, 0), ["closed"]),
        ("/streamed", 200, (1, 30, 0), ["settled"]),
    ],
)
async def test_b43_whatever_the_endpoint_does_the_reservation_is_resolved_once(
    path: str, status: int, used: tuple[int, int, int], resolved: list[str]
) -> None:
    """B43: settled in the endpoint or by the stream, else closed by the dependency's exit; the slot is free."""
    world = World()
    response = await world.post(path, {"tokens": 50})
    assert response.status_code == status
    assert await world.used() == used
    assert world.resolved == resolved
    if status == 200:
        assert response.headers["x-ratelimit-remaining-requests"] == "9"
        assert response.headers["x-ratelimit-remaining-tokens"] == "950"


async def test_b55_a_refusal_becomes_an_answer() -> None:
    """B55: from a dependency in OpenAI's words, from an endpoint of Anthropic's in its own; nothing was counted."""
    world = World()
    response = await world.post("/settled", {"tokens": 1_001})
    assert response.status_code == 429
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    response = await world.post("/v1/messages", {"tokens": 1_001})
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.json()["type"] == "error"
    assert await world.used() == (0, 0, 0)
    assert (await world.post("/out", {})).status_code == 503


async def test_what_makes_no_sense_never_reaches_the_limiter() -> None:
    """B9: the dependency's own error passes."""
    world = World()
    assert (await world.post("/settled", {})).status_code == 400
    assert world.events == []


def connection(spec_version: str) -> dict[str, Any]:
    """A request, as a server of that version of ASGI passes it on."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec_version},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/streamed",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_c6_the_slot_is_held_until_the_body_is_sent_and_settled_before_its_last_byte(
    version: str,
) -> None:
    """C6, B32: while the body runs the slot is taken; whoever has the end finds the tokens counted."""
    world = World()
    bodies: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if bodies or not asked:
            await anyio.sleep_forever()
        return asked.pop()

    asked = [{"type": "http.request", "body": json.dumps({"tokens": 50}).encode()}]

    async def send(message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        bodies.append(body)
        expected = (1, 30, 0) if DONE in body or (bodies and DONE in bodies) else (1, 50, 1)
        assert await world.used() == expected

    await world.app(connection(version), receive, send)
    assert b"".join(bodies) == TEXT + USED + DONE
    assert world.resolved == ["settled"]
    assert world.source.closed


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
async def test_b35_a_client_that_leaves_where_send_raises(sent: int) -> None:
    """ASGI 2.4: the stream is closed, the reservation resolved and the source let go, before the first item as well."""
    world = World(Source(TEXT, USED, hangs=True))
    asked = [{"type": "http.request", "body": json.dumps({"tokens": 50}).encode()}]
    passed: list[str] = []

    async def receive() -> dict[str, Any]:
        return asked.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        if len(passed) == sent:
            raise OSError
        passed.append(message["type"])

    if sent < 3:
        with pytest.raises(ClientDisconnect):
            await world.app(connection("2.4"), receive, send)
        assert world.source.closed
        # The usage was in hand when the client was found gone: it settles.
        assert world.resolved == (["settled"] if sent == 2 else ["closed"])
        return
    with anyio.move_on_after(0.05):
        await world.app(connection("2.4"), receive, send)
    assert world.source.closed
    assert world.resolved == ["settled"]


async def test_b35_a_client_that_leaves_where_the_server_cancels() -> None:
    """ASGI 2.3: the task is cancelled while it waits for the provider; the debit stays, the slot is free."""
    world = World(Source(TEXT, hangs=True))
    asked = [{"type": "http.request", "body": json.dumps({"tokens": 50}).encode()}]
    first = anyio.Event()

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await first.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            first.set()

    await world.app(connection("2.3"), receive, send)
    assert world.source.closed
    assert world.resolved == ["abandoned"]
    assert await world.used() == (1, 50, 0)


async def test_a_stream_of_an_attempt() -> None:
    """What `once` hands over is settled by the response, with the headers of the request and of its target."""
    world = World()
    provider = Scope("provider", Limits(tpm=40))

    @world.app.post("/once")
    async def once() -> Response:
        async with world.limiter.once(ALICE, tokens=35) as reserved:
            attempt = await reserved.attempt(provider)
            return ReservedStream(attempt.stream(world.source), attempt)

    response = await world.post("/once", {})
    assert response.content == TEXT + USED + DONE
    assert response.headers["x-ratelimit-remaining-tokens"] == "5"
    assert await world.used() == (1, 30, 0)
    with pytest.raises(RateLimited):
        await world.limiter.pre_commit(provider, tokens=11)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("leaves", [False, True])
async def test_c6_background_tasks_come_when_the_reservation_is_resolved(
    version: str, *, leaves: bool
) -> None:
    """C6, B35: what takes long after a response holds no slot, also where the client goes while `send` waits for it."""
    world = World()
    found: list[list[str]] = []

    async def note() -> None:
        found.append(list(world.resolved))

    @world.app.post("/behind")
    async def behind() -> Response:
        reservation = await world.limiter.pre_commit(ALICE, tokens=50)
        response = ReservedStream(reservation.stream(world.source))
        response.background = BackgroundTask(note)
        return response

    sending = anyio.Event()

    async def receive() -> dict[str, Any]:
        await (sending.wait() if leaves else anyio.sleep_forever())
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if leaves and message["type"] == "http.response.body":
            sending.set()
            if version == "2.4":
                raise OSError
            await anyio.sleep_forever()

    app = world.app
    if leaves and version == "2.4":  # where `send` raises nothing comes after it
        with pytest.raises(ClientDisconnect):
            await app({**connection(version), "path": "/behind"}, receive, send)
        assert found == []
    else:
        await app({**connection(version), "path": "/behind"}, receive, send)
        assert found == [world.resolved]
    assert world.resolved == ["closed" if leaves else "settled"]
    assert world.source.closed


async def test_b55_an_application_that_is_mounted_answers_by_itself() -> None:
    """B55: its handlers are its own, as docs/frameworks.md says; the words are those of the whole path."""
    limiter, outer, inner = Limiter(MemoryBackend(clock=ManualClock())), FastAPI(), FastAPI()
    answer_refusals(inner)

    @inner.post("/messages")
    async def messages() -> None:
        await limiter.pre_commit(Scope("nobody", Limits(rpm=0)))

    outer.mount("/v1", inner)
    transport = httpx.ASGITransport(outer)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post("/v1/messages")
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/", "anthropic"),
        ("/anthropic/v1/messages/count_tokens", "anthropic"),
        ("/v1/messages/batches", "anthropic"),
        ("/v1/chat/completions", "openai"),
        ("/v1/threads/thread_1/messages", "openai"),
        ("/v1/some-messages", "openai"),
    ],
)
def test_b55_whose_words_a_path_wants(path: str, style: str) -> None:
    """B55: Anthropic's messages API and what belongs to it; OpenAI's threads have messages as well."""
    request = Request({**connection("2.4"), "path": path, "server": ("gateway", 80)})
    assert style_of(request) == style
